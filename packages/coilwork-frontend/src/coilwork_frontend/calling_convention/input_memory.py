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
from coilwork_frontend.torch_compat.operators import is_functional
from coilwork_frontend.torch_compat.sizes import are_equal_sizes
from coilwork_frontend.torch_compat.tensors import identify_strided_storage
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.calling_convention import InputRole, Value
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.fx_metadata import OWN_PADDING
from coilwork_ir.loops.access import list_memory_aliases, list_overwritten_buffers
from coilwork_ir.loops.nodes import Extern, Graph
from coilwork_ir.operators import find_target_info

# ---- Alignment ----


ALIGNMENT_BYTES: Final = 16


def list_aligned_inputs(
    graph: Graph, gm: torch.fx.GraphModule, *, returned: int | None = None
) -> tuple[str, ...]:
    """Return the names of input buffers of `graph`, lowered from `gm`, that may be assumed to be aligned.

    An input that is not aligned in a call is copied, so its own memory must not matter. The first `returned`
    outputs go to the caller, who gets an input that is among them, or a view of one, in its own memory;
    `None`: all outputs do. A forward graph may save a copy for the backward graph, which only needs values.
    """
    own_memory = _list_own_memory(graph, returned)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return tuple(
        entry.name
        for entry, node in zip(graph.inputs, placeholders, strict=True)
        if isinstance(entry, Buffer) and entry.name not in own_memory and is_aligned(node.meta.get("val"))
    )


def _list_own_memory(graph: Graph, returned: int | None) -> set[str]:
    """Return the buffers of `graph` whose own memory matters.

    It is overwritten, read by an operator that counts from the storage's start, or returned to the caller.
    """
    source = {new: old for node in graph.nodes for new, old in list_memory_aliases(node)}
    kept = [old for node in graph.nodes for old, _ in list_overwritten_buffers(node)]
    calls = [
        node
        for node in graph.nodes
        if isinstance(node, Extern) and find_target_info(node.target).counts_from_storage
    ]
    kept += [value.name for node in calls for value in node.args if isinstance(value, Ref)]
    kept += [output.name for output in graph.outputs[:returned] if isinstance(output, Ref)]
    names: set[str] = set()
    for start in kept:
        name: str | None = start
        while name is not None and name not in names:
            names.add(name)
            name = source.get(name)
    return names


def is_aligned(value: object) -> bool:
    """Tell if `value` is a tensor that starts at a multiple of 16 bytes in its storage."""
    if not isinstance(value, torch.Tensor):
        return False
    offset = value.storage_offset()
    return type(offset) is int and offset * value.element_size() % ALIGNMENT_BYTES == 0


# ---- Updates ----


_COPY: Final = torch.ops.aten.copy_.default


def list_aligned_updates(gm: fx.GraphModule, *, on_cpu: bool) -> tuple[int, ...]:
    """Return the positions of inputs of `gm` that are overwritten and may be assumed to be aligned.

    Nothing but the input's own values may leave its memory: no result and no view shares it. Inputs on CPUs
    count only with `on_cpu`, if Triton runs there. Single elements are left out: they gain nothing.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return tuple(
        position
        for position, node in enumerate(placeholders)
        if is_aligned(node.meta.get("val"))
        and (on_cpu or not has_trait(node.meta["val"].device.type, PROCESSOR))
        and not _is_single(node.meta["val"])
        and any(user.target is _COPY and user.args[0] is node for user in node.users)
        and all(_keeps_memory_private(user, node) for user in node.users)
    )


def name_inputs(graph: Graph, positions: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the input buffers of `graph` at `positions`."""
    entries = [graph.inputs[position] for position in positions]
    return tuple(entry.name for entry in entries if isinstance(entry, Buffer))


def make_update_roles(positions: Sequence[int]) -> tuple[InputRole, ...]:
    """Return the roles of inputs at `positions`, which the program overwrites and assumes to be aligned."""
    return tuple(
        InputRole(value=Value("in", position), kind="aligned", is_update=True) for position in positions
    )


def _keeps_memory_private(user: fx.Node, source: fx.Node) -> bool:
    """Tell if `user` makes nothing in the memory of `source`, and overwrites it only as a whole, at the
    end."""
    if user.target is _COPY and user.args[0] is source:
        return not user.users
    return is_functional(user.target) and not find_target_info(str(user.target)).counts_from_storage


def _is_single(value: torch.Tensor) -> bool:
    return all(type(extent) is int and extent == 1 for extent in value.shape)


# ---- Donated buffers ----


def list_donated_inputs(gm: fx.GraphModule) -> tuple[int, ...]:
    """Return the positions of donated inputs of `gm`, the backward graph that is being compiled.

    AOTAutograd says which saved tensors are no inputs, results or gradients of the user's. Left out are those
    that share memory with another input, are not aligned, or have gaps, in which other tensors may live; gaps
    that Coilwork itself has padded are empty.
    """
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in inputs]
    aligned = [p for p in list_donated_positions() if p < len(values) and is_aligned(values[p])]
    whole = [p for p in aligned if OWN_PADDING in inputs[p].meta or is_whole(values[p])]
    return select_unshared(values, whole) if whole else ()


def is_whole(value: object) -> bool:
    """Tell if the elements of `value` fill its memory from the first to the last, whatever its sizes."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return are_equal_sizes((span,), (value.numel(),))


def select_unshared(values: Sequence[object], positions: Sequence[int]) -> tuple[int, ...]:
    """Return the `positions` of strided tensors whose storage no other of `values` shares."""
    storages = [identify_strided_storage(value) for value in values]
    users = Counter(storages)
    return tuple(p for p in positions if storages[p] is not None and users[storages[p]] == 1)
