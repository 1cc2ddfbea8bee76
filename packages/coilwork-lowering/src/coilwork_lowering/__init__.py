"""ATen FX graphs, as AOTAutograd makes them, to Coilwork's loop IR.

Open `lower.py` first: one pass over a graph, node by node. `ops/` has the rules by family of operators,
`rewrites/`, `joint/` and `aten_layouts/` change the graph before, and `registry.py` joins the rules.
"""

from coilwork_lowering.aten_layouts import LayoutDecision, PaddingDecision, lay_out_convolutions, pad_products
from coilwork_lowering.decompositions.table import decompositions
from coilwork_lowering.errors import LoweringError, MistracedError
from coilwork_lowering.guard_watch import AddedGuard, GuardWatch, watch_decompositions
from coilwork_lowering.joint.partition import partition
from coilwork_lowering.lower import Lowered, lower
from coilwork_lowering.options import LayoutOptions, LoweringOptions, RewriteOptions
from coilwork_lowering.pipeline import list_generated_calls

__version__ = "0.1.0"

__all__ = [
    "AddedGuard",
    "GuardWatch",
    "LayoutDecision",
    "LayoutOptions",
    "Lowered",
    "LoweringError",
    "LoweringOptions",
    "MistracedError",
    "PaddingDecision",
    "RewriteOptions",
    "__version__",
    "decompositions",
    "lay_out_convolutions",
    "list_generated_calls",
    "lower",
    "pad_products",
    "partition",
    "watch_decompositions",
]
