"""Make a callable of Dynamo's graph: fix what torch's tracing gets wrong, run AOTAutograd, restore results.

Open `compile_captured.py` first: one graph from its capture to a callable. `capture/` works on Dynamo's
graphs, `calling_convention/` around compiled ATen graphs; `workarounds.py` is the table of torch's faults.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
