"""Which inputs of a graph start at multiples of 16 bytes, so that kernels may use vector accesses on them.

Torch's allocators align storages, so an input's alignment follows from its storage offset. The promise is kept at run
time by copying an input that breaks it; hence inputs whose own memory matters (overwritten, or returned as a view) are
left out. For most of those that are overwritten, `updates.py` makes the promise.
"""

from __future__ import annotations

from typing import Final

import torch

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops.access import shares_memory
from coilwork_ir.loops.nodes import Graph

ALIGNMENT_BYTES: Final = 16


def aligned_inputs(graph: Graph, gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """Names of the input buffers of `graph`, lowered from `gm`, that are aligned and may be copied when they are not."""
    own_memory = {source for node in graph.nodes for _, source in shares_memory(node)}
    own_memory |= {output.name for output in graph.outputs if isinstance(output, Ref)}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return tuple(
        entry.name
        for entry, node in zip(graph.inputs, placeholders, strict=True)
        if isinstance(entry, Buffer) and entry.name not in own_memory and starts_aligned(node.meta.get("val"))
    )


def starts_aligned(value: object) -> bool:
    """Whether `value` is a tensor that starts at such a multiple of bytes in its storage."""
    if not isinstance(value, torch.Tensor):
        return False
    offset = value.storage_offset()
    return type(offset) is int and offset * value.element_size() % ALIGNMENT_BYTES == 0
