"""The settings of the layout pass: from the options, and from what torch allows convolutions to round."""

from __future__ import annotations

from typing import Final

import torch

from coilwork.compile_options import CompileOptions
from coilwork_frontend.torch_compat.operators import convolutions_use_tf32
from coilwork_lowering import LayoutOptions

SCHEDULED: Final = ("cuda",)
"""Types of devices whose convolutions in 16 bits the scheduler's pass lays out."""


def layout_options(options: CompileOptions, *, joins_scheduler: bool = False) -> LayoutOptions:
    """What decides layouts of convolutions and products now. It reads torch's TF32 setting, so it belongs in cache keys as a whole.

    With strict numerics, kernels are those of the captured layout: another layout's sum in another order. Where
    lowering `joins_scheduler`, whose pass decides over the graph that follows or over both graphs of a training
    step, convolutions in 16 bits are the scheduler's to lay out on GPUs whose library is known to follow its operands.
    """
    layout = options.conv_layout
    if layout == "auto" and options.numerics == "strict":
        layout = "captured"
    return LayoutOptions(
        layout=layout,
        scheduled_devices=SCHEDULED
        if joins_scheduler and not options.batch_invariant and torch.version.hip is None
        else (),
        tf32_convolutions=convolutions_use_tf32(),
        # a kernel of ours stores rows of any length
        pad_products=options.numerics != "strict" and options.contractions != "generated",
        by_rows=options.contractions == "aten" or torch.version.hip is not None,
    )
