"""Inputs that a graph overwrites, and that kernels may take to start at multiples of 16 bytes.

The promise is kept outside of the program: by its role, an input that breaks it is replaced by an aligned
copy, whose values go back where they belong after the call. That needs an input whose memory nothing but its
own values leaves by: no result and no view shares it. Parameters and moments in an optimizer's step are of
this kind, and most of what it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import fx

from coilwork_frontend.calling_convention.alignment import starts_aligned
from coilwork_frontend.torch_compat.operators import shares_nothing
from coilwork_ir.buffers import Buffer
from coilwork_ir.calling_convention import InputRole, Value
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.operators import find_target_info

_COPY: Final = torch.ops.aten.copy_.default


def aligned_updates(gm: fx.GraphModule, *, on_cpu: bool) -> tuple[int, ...]:
    """Positions of the inputs of `gm`; those on a CPU only if Triton runs there.

    Single elements are left out: they gain nothing.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return tuple(
        position
        for position, node in enumerate(placeholders)
        if starts_aligned(node.meta.get("val"))
        and (on_cpu or not has_trait(node.meta["val"].device.type, PROCESSOR))
        and not _is_single(node.meta["val"])
        and any(user.target is _COPY and user.args[0] is node for user in node.users)
        and all(_keeps_to_itself(user, node) for user in node.users)
    )


def names_at(graph: Graph, positions: Sequence[int]) -> tuple[str, ...]:
    """The buffers of `graph`, lowered from a graph module, that are its inputs at `positions`."""
    entries = [graph.inputs[position] for position in positions]
    return tuple(entry.name for entry in entries if isinstance(entry, Buffer))


def update_roles(positions: Sequence[int]) -> tuple[InputRole, ...]:
    """The roles of the inputs at `positions`, which the program overwrites and takes to be aligned."""
    return tuple(
        InputRole(value=Value("in", position), kind="aligned", is_update=True) for position in positions
    )


def _keeps_to_itself(user: fx.Node, source: fx.Node) -> bool:
    """`user` makes nothing that shares the memory of `source`, and overwrites it only as a whole, at last."""
    if user.target is _COPY and user.args[0] is source:
        return not user.users
    return shares_nothing(user.target) and not find_target_info(str(user.target)).counts_from_storage


def _is_single(value: torch.Tensor) -> bool:
    return all(type(extent) is int and extent == 1 for extent in value.shape)
