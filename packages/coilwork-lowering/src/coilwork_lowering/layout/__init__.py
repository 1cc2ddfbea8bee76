"""Memory layouts of convolutions and of matrix products, chosen for a whole ATen graph before it is
partitioned or lowered.
"""

from coilwork_lowering.layout.choose import lay_out_convolutions
from coilwork_lowering.layout.cost import LayoutDecision
from coilwork_lowering.layout.padding import PaddingDecision, pad_products

__all__ = ["LayoutDecision", "PaddingDecision", "lay_out_convolutions", "pad_products"]
