"""Inputs that are negated views: `z.conj().imag`, whose numbers are those in memory with the other sign.

Torch marks such a tensor with a bit, which its kernels look at and generated ones, that read memory, do not. They are called with
copies, in the layout that was captured; what a graph writes into one goes back to the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx

Call = Callable[[list[Any]], Sequence[Any]]

_COPY: Final = torch.ops.aten.copy_.default


def with_negated_inputs(gm: fx.GraphModule, call: Call) -> Call:
    """`call`, which reads memory, for the inputs of `gm`, its graph."""
    negated = tuple(_negated(gm))
    if not negated:
        return call

    def called(args: list[Any]) -> Sequence[Any]:
        written = []
        for position, overwritten in negated:
            value = args[position]
            if value.is_neg():
                copy = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=value.device
                )
                args[position] = copy.copy_(value)
                if overwritten:
                    written.append((value, copy))
        results = call(args)
        for value, copy in written:
            value.copy_(copy)
        return results

    return called


def _negated(gm: fx.GraphModule) -> Sequence[tuple[int, bool]]:
    """The positions of such inputs, and whether the graph overwrites them."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return [
        (position, any(user.target is _COPY and user.args[0] is node for user in node.users))
        for position, node in enumerate(placeholders)
        if isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].is_neg()
    ]
