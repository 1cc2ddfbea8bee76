"""The settings of the layout pass: from the options, and from what torch allows convolutions to round."""

from __future__ import annotations

import torch

from coilwork.compile_options import CompileOptions
from coilwork_frontend.torch_compat.operators import convolutions_use_tf32
from coilwork_lowering import LayoutOptions


def layout_options(options: CompileOptions) -> LayoutOptions:
    """What decides layouts of convolutions and products now. It reads torch's TF32 setting, so it belongs in cache keys as a whole.

    With strict numerics, kernels are those of the captured layout: another layout's sum in another order.
    """
    layout = options.conv_layout
    if layout == "auto" and options.numerics == "strict":
        layout = "captured"
    return LayoutOptions(
        layout=layout,
        tf32_convolutions=convolutions_use_tf32(),
        # a kernel of ours stores rows of any length
        pad_products=options.numerics != "strict" and options.contractions != "generated",
        by_rows=options.contractions == "aten" or torch.version.hip is not None,
    )
