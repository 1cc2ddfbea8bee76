"""Decide what a program may assume of the memory of its inputs: alignment, and which inputs it may overwrite.

Kernels use vector accesses on inputs that start at multiples of 16 bytes. Torch aligns storages, so alignment
follows from the storage offset. The promise is kept at run time by copying an input that breaks it, so an
input whose own memory matters (overwritten, or returned, as it is or as a view) gets no promise. The
exception are updates, as of parameters in an optimizer's step: an aligned copy takes the input's place, and
its values are copied back after the call. A backward graph may reuse the memory of donated buffers, which the
forward graph saved for it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import list_donated_positions
from coilwork_frontend.torch_compat.operators import shares_nothing
from coilwork_frontend.torch_compat.sizes import are_equal_sizes
from coilwork_frontend.torch_compat.tensors import identify_strided_storage
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.graph_marks import OWN_PADDING
from coilwork_ir.loops.access import overwritten, shares_memory
from coilwork_ir.loops.nodes import Extern, Graph
from coilwork_ir.operators import find_target_info
from coilwork_ir.roles import InputRole, Value

# ---- Alignment ----


ALIGNMENT_BYTES: Final = 16


def list_aligned_inputs(
    graph: Graph, gm: torch.fx.GraphModule, *, returned: int | None = None
) -> tuple[str, ...]:
    """Names of the input buffers of `graph`, lowered from `gm`, that are aligned and may be copied when they
    are not.

    `returned`: so many of the first outputs go to the caller, who expects an input that is among them, as a
    view perhaps, to be the same memory, not just as good; `None`: all of them do.
    """
    own_memory = _own_memory(graph, returned)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return tuple(
        entry.name
        for entry, node in zip(graph.inputs, placeholders, strict=True)
        if isinstance(entry, Buffer) and entry.name not in own_memory and starts_aligned(node.meta.get("val"))
    )


def _own_memory(graph: Graph, returned: int | None) -> set[str]:
    """Buffers of `graph` that hand on their own memory: to what overwrites it, looks for a place in it, or to
    the caller.
    """
    source = {new: old for node in graph.nodes for new, old in shares_memory(node)}
    handed_on = [old for node in graph.nodes for old, _ in overwritten(node)]
    calls = [
        node
        for node in graph.nodes
        if isinstance(node, Extern) and find_target_info(node.target).counts_from_storage
    ]
    handed_on += [value.name for node in calls for value in node.args if isinstance(value, Ref)]
    handed_on += [output.name for output in graph.outputs[:returned] if isinstance(output, Ref)]
    found: set[str] = set()
    for start in handed_on:
        name: str | None = start
        while name is not None and name not in found:
            found.add(name)
            name = source.get(name)
    return found


def starts_aligned(value: object) -> bool:
    """Tell if `value` is a tensor that starts at such a multiple of bytes in its storage."""
    if not isinstance(value, torch.Tensor):
        return False
    offset = value.storage_offset()
    return type(offset) is int and offset * value.element_size() % ALIGNMENT_BYTES == 0


# ---- Updates ----


_COPY: Final = torch.ops.aten.copy_.default


def list_aligned_updates(gm: fx.GraphModule, *, on_cpu: bool) -> tuple[int, ...]:
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
        and all(_keeps_memory_private(user, node) for user in node.users)
    )


def name_inputs(graph: Graph, positions: Sequence[int]) -> tuple[str, ...]:
    """The buffers of `graph`, lowered from a graph module, that are its inputs at `positions`."""
    entries = [graph.inputs[position] for position in positions]
    return tuple(entry.name for entry in entries if isinstance(entry, Buffer))


def make_update_roles(positions: Sequence[int]) -> tuple[InputRole, ...]:
    """The roles of the inputs at `positions`, which the program overwrites and takes to be aligned."""
    return tuple(
        InputRole(value=Value("in", position), kind="aligned", is_update=True) for position in positions
    )


def _keeps_memory_private(user: fx.Node, source: fx.Node) -> bool:
    """`user` makes nothing that shares the memory of `source`, and overwrites it only as a whole, at last."""
    if user.target is _COPY and user.args[0] is source:
        return not user.users
    return shares_nothing(user.target) and not find_target_info(str(user.target)).counts_from_storage


def _is_single(value: torch.Tensor) -> bool:
    return all(type(extent) is int and extent == 1 for extent in value.shape)


# ---- Donated buffers ----


def list_donated_inputs(gm: fx.GraphModule) -> tuple[int, ...]:
    """Positions of the inputs of `gm`, the backward graph that is being compiled, that are given
    away to it.
    """
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in inputs]
    given = [p for p in list_donated_positions() if p < len(values) and starts_aligned(values[p])]
    whole = [p for p in given if OWN_PADDING in inputs[p].meta or is_whole(values[p])]
    return select_unshared(values, whole) if whole else ()


def is_whole(value: object) -> bool:
    """Tell if elements of `value` fill its memory, from the first to the last, whatever its sizes."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return are_equal_sizes((span,), (value.numel(),))


def select_unshared(values: Sequence[object], positions: Sequence[int]) -> tuple[int, ...]:
    """Return those of `positions` at which there is a strided tensor whose storage no other of
    `values` has.
    """
    storages = [identify_strided_storage(value) for value in values]
    users = Counter(storages)
    return tuple(p for p in positions if storages[p] is not None and users[storages[p]] == 1)
