"""ATen FX graphs, as AOTAutograd makes them, to Coilwork's loop IR."""

from coilwork_lowering.decompositions import decompositions
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.lower import Lowered, lower
from coilwork_lowering.options import LoweringOptions
from coilwork_lowering.partition import partition

__version__ = "0.1.0"

__all__ = [
    "Lowered",
    "LoweringError",
    "LoweringOptions",
    "__version__",
    "decompositions",
    "lower",
    "partition",
]
