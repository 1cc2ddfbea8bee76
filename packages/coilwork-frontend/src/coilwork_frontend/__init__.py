"""From Dynamo's graph to ATen graphs and back: torch's faults are mended, and calls of programs finished.

Open `compile_captured.py` first: one graph from its capture to a callable. `capture/` works on Dynamo's
graphs, `calling_convention/` on what a program takes and gives; `workarounds.py` lists torch's faults.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
