"""The settings of the layout pass: from the options, and from what torch allows convolutions to round."""

from __future__ import annotations

import torch

from coilwork.compile_options import CompileOptions
from coilwork_frontend.torch_compat.operators import convolutions_use_tf32
from coilwork_lowering import LayoutOptions


def layout_options(options: CompileOptions, *, joins_scheduler: bool = False) -> LayoutOptions:
    """What decides layouts of convolutions and products now. It reads torch's TF32 setting, so it belongs in cache keys as a whole.

    With strict numerics, kernels are those of the captured layout: another layout's sum in another order. Where
    lowering `joins_scheduler`, which sees whole inference graphs, convolutions in 16 bits are the scheduler's to lay
    out on GPUs whose library is known to follow its operands.
    """
    layout = options.conv_layout
    if layout == "auto" and options.numerics == "strict":
        layout = "captured"
    return LayoutOptions(
        layout=layout,
        scheduled_devices=("cuda",)
        if joins_scheduler and not options.batch_invariant and torch.version.hip is None
        else (),
        tf32_convolutions=convolutions_use_tf32(),
        # a kernel of ours stores rows of any length
        pad_products=options.numerics != "strict" and options.contractions != "generated",
        by_rows=options.contractions == "aten" or torch.version.hip is not None,
    )
