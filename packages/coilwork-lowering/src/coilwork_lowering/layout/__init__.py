"""Memory layouts of convolutions and matrix products, chosen for a whole ATen graph before it is lowered.

Open `choose.py` first for convolutions, and `products.py` for products. `rewrite.py` changes the graph,
`cost.py` says when that pays.
"""

from coilwork_lowering.layout.convolution_cost import LayoutDecision
from coilwork_lowering.layout.convolution_layout import lay_out_convolutions
from coilwork_lowering.layout.row_padding import PaddingDecision, pad_products

__all__ = ["LayoutDecision", "PaddingDecision", "lay_out_convolutions", "pad_products"]
