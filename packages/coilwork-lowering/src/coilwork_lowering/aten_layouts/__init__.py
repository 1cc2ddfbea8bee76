"""Memory layouts of convolutions and matrix products, chosen for a whole ATen graph before it is lowered.

Open `convolution_layout.py` first for convolutions, and `product_padding.py` for products: the entries.
`patch_products.py` makes products of some convolutions. The cost models are `convolution_cost.py` and
`products.py`.
"""

from coilwork_lowering.aten_layouts.convolution_layout import (
    LayoutDecision,
    lay_out_convolutions,
    lay_out_frozen_weights,
)
from coilwork_lowering.aten_layouts.product_padding import PaddingDecision, pad_products

__all__ = [
    "LayoutDecision",
    "PaddingDecision",
    "lay_out_convolutions",
    "lay_out_frozen_weights",
    "pad_products",
]
