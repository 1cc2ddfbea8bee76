"""Inputs that are marked as negated or conjugated: memory holds `z.conj().imag` with the other sign.

Torch marks such a tensor with a bit, which its kernels look at and generated ones, that read memory, do not.
They are called with copies, in the layout that was captured; what a graph writes into one goes back to the
input. Dynamo's guards tell which inputs are marked. Nothing tells of gradients that a backward graph is
given, so each call looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import is_tangent
from coilwork_frontend.torch_compat.tensors import real_tensors
from coilwork_ir.roles import InputRole, Value

_COPY: Final = torch.ops.aten.copy_.default


def resolve_constant(value: torch.Tensor) -> torch.Tensor:
    """A tensor that a graph holds, as memory is to hold it; conjugates stay, which the graph knows of."""
    if not value.is_neg():
        return value
    with real_tensors():
        return value.resolve_neg()


def resolved_roles(gm: fx.GraphModule) -> Iterator[InputRole]:
    """The roles of inputs of `gm` that may be marked.

    What was captured as a conjugate the graph takes into account.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(placeholders):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            continue
        if value.is_neg() or (is_tangent(node) and (value.is_floating_point() or value.is_complex())):
            yield InputRole(
                value=Value("in", position),
                kind="resolved",
                is_update=any(user.target is _COPY and user.args[0] is node for user in node.users),
                is_conjugate=value.is_conj(),
            )
