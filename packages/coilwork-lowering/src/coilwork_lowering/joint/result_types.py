"""Results whose element type torch's meta functions have wrong, in a joint graph: what is saved for the
backward is taken by its type.
"""

from __future__ import annotations

import operator

import torch

from coilwork_lowering.torch_compat.fakes import fake_mode_of
from coilwork_lowering.torch_compat.operators import kernel_dtype


def correct_result_types(gm: torch.fx.GraphModule) -> int:
    """Give results of calls in `gm` the types that kernels give them; returns of how many that was another
    one.
    """
    mode = fake_mode_of(gm)
    if mode is None:
        return 0
    corrected = 0
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not operator.getitem:
            continue
        call, number = node.args
        first = (
            call.args[0].meta.get("val") if call.args and isinstance(call.args[0], torch.fx.Node) else None
        )
        dtype = kernel_dtype(call.target, number, first.dtype if isinstance(first, torch.Tensor) else None)
        value = node.meta.get("val")
        if dtype is not None and isinstance(value, torch.Tensor) and value.dtype is not dtype:
            with mode:
                node.meta["val"] = value.to(dtype)
            corrected += 1
    return corrected
