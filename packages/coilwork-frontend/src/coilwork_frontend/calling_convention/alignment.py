"""Which inputs of a graph start at multiples of 16 bytes, so that kernels may use vector accesses on them.

Torch's allocators align storages, so an input's alignment follows from its storage offset. The promise is
kept at run time by copying an input that breaks it; hence inputs whose own memory matters (overwritten, or
returned, as they are or as a view) are left out. For most of those that are overwritten, `updates.py` makes
the promise. What a forward graph saves of its inputs for the backward graph, which asks for values only, may
be of a copy. A place in an input's storage is none in the storage of a copy.
"""

from __future__ import annotations

from typing import Final

import torch

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops.access import buffers_overwritten_by, memory_aliases
from coilwork_ir.loops.nodes import Extern, Graph
from coilwork_ir.operators import find_target_info

ALIGNMENT_BYTES: Final = 16


def aligned_inputs(graph: Graph, gm: torch.fx.GraphModule, *, returned: int | None = None) -> tuple[str, ...]:
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
    source = {new: old for node in graph.nodes for new, old in memory_aliases(node)}
    handed_on = [old for node in graph.nodes for old, _ in buffers_overwritten_by(node)]
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
