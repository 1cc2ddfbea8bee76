"""From what Dynamo captured to ATen graphs, and back: what torch gets wrong on the way, and how compiled
programs are called.

`capture/` looks at Dynamo's graphs, `calling_convention/` at what a program takes and gives; `workarounds.py`
lists torch's faults.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
