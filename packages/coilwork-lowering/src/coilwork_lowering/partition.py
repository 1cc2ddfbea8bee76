"""Forward and backward from the joint graph."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import torch

from coilwork_lowering.cse import merge_common_subexpressions
from coilwork_lowering.layout import lay_out_convolutions
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat import min_cut

DEFAULT_LAYOUT: Final = LayoutOptions()
log = logging.getLogger("coilwork.lowering")


def partition(
    joint_gm: torch.fx.GraphModule,
    joint_inputs: Sequence[Any],
    *,
    layout: LayoutOptions = DEFAULT_LAYOUT,
    **kw: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """AOTAutograd's `partition_fn`: our common subexpression pass, layouts, then torch's min-cut rematerialisation.

    Layouts are chosen here, where forward and backward are still one graph, so that what is saved for the backward
    stays in the layout that its convolutions want.

    torch's own pass of that kind is switched off, because it would load TorchInductor.
    """
    merge_common_subexpressions(joint_gm)
    laid_out, decision = lay_out_convolutions(joint_gm, layout)
    log.debug("joint graph: %s", decision.reason)
    return min_cut(laid_out, joint_inputs, **kw)
