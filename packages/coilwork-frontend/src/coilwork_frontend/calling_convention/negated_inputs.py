"""Inputs that are marked as negated or conjugated: memory holds `z.conj().imag` with the other sign.

Torch marks such a tensor with a bit, which its kernels look at and generated ones, that read memory, do not.
They are called with copies, in the layout that was captured; what a graph writes into one goes back to the
input. Dynamo's guards tell which inputs are marked. Nothing tells of gradients that a backward graph is
given, so each call looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.torch_compat.autograd import is_tangent
from coilwork_frontend.torch_compat.tensors import real_tensors

Call = Callable[[list[Any]], Sequence[Any]]

_COPY: Final = torch.ops.aten.copy_.default


@dataclass(frozen=True, slots=True, kw_only=True)
class _MarkedInput:
    """An input that may be marked.

    Attributes:
        position: among the inputs.
        is_overwritten: the graph writes into it.
        is_conjugated: it was captured as a conjugate, which the graph takes into account.
    """

    position: int
    is_overwritten: bool
    is_conjugated: bool


def resolve_marked_inputs(gm: fx.GraphModule, call: Call) -> Call:
    """`call`, which reads memory, for the inputs of `gm`, its graph."""
    marked = tuple(_find_marked_inputs(gm))
    if not marked:
        return call

    def called(args: list[Any]) -> Sequence[Any]:
        written = []
        for one in marked:
            value = args[one.position]
            if value is not None and (value.is_neg() or value.is_conj() > one.is_conjugated):
                copy = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=value.device
                )
                copy.copy_(value)
                args[one.position] = copy.conj() if one.is_conjugated else copy
                if one.is_overwritten:
                    written.append((value, args[one.position]))
        results = call(args)
        for value, copy in written:
            value.copy_(copy)
        return results

    return called


def resolve_constant(value: torch.Tensor) -> torch.Tensor:
    """A tensor that a graph holds, as memory is to hold it; conjugates stay, which the graph knows of."""
    if not value.is_neg():
        return value
    with real_tensors():
        return value.resolve_neg()


def _find_marked_inputs(gm: fx.GraphModule) -> Iterator[_MarkedInput]:
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(placeholders):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            continue
        if value.is_neg() or (is_tangent(node) and (value.is_floating_point() or value.is_complex())):
            yield _MarkedInput(
                position=position,
                is_overwritten=any(user.target is _COPY and user.args[0] is node for user in node.users),
                is_conjugated=value.is_conj(),
            )
