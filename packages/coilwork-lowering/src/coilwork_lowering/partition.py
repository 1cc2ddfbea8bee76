"""Forward and backward from the joint graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coilwork_lowering.cse import merge_common_subexpressions
from coilwork_lowering.torch_compat import min_cut


def partition(
    joint_gm: torch.fx.GraphModule, joint_inputs: Sequence[Any], **kw: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """AOTAutograd's `partition_fn`: our common subexpression pass, then torch's min-cut rematerialisation.

    torch's own pass of that kind is switched off, because it would load TorchInductor.
    """
    merge_common_subexpressions(joint_gm)
    return min_cut(joint_gm, joint_inputs, **kw)
