"""Memory layouts of convolutions, chosen for a whole ATen graph before it is partitioned or lowered."""

from coilwork_lowering.layout.choose import lay_out_convolutions
from coilwork_lowering.layout.cost import LayoutDecision

__all__ = ["LayoutDecision", "lay_out_convolutions"]
