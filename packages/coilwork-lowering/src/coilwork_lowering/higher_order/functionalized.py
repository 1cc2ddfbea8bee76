"""Calls of operators that write into their arguments, which AOTAutograd wraps in `auto_functionalized`.

A wrapped call takes the tensors that it changes and returns what they have become. Here it is written out
again: copies of these tensors, the views of the copies that are arguments, the call itself, the copies.
"""

from __future__ import annotations

from typing import Any

import torch

from coilwork_lowering.higher_order.written_out import Note, write_out
from coilwork_lowering.torch_compat.graphs import copy_graph
from coilwork_lowering.torch_compat.operators import Overload, copy_of_storage, list_functionalized_calls
from coilwork_lowering.torch_compat.sizes import surely


def write_out_calls(gm: torch.fx.GraphModule, note: Note) -> torch.fx.GraphModule:
    """`gm` itself if it wraps no operator, else a copy that calls them."""
    wrappers = list_functionalized_calls(_copy_view)
    if not any(_is_wrapped(node, wrappers) for node in gm.graph.nodes):
        return gm
    made = torch.fx.GraphModule(gm, copy_graph(gm.graph))
    made.meta.update(gm.meta)
    for node in list(made.graph.nodes):
        if _is_wrapped(node, wrappers):
            write_out(made, node, wrappers[node.target])
            note(node)
    return made


def _copy_view(value: torch.Tensor) -> torch.Tensor:
    """A copy of `value`, in which views lie as in `value`: with what surrounds it in its storage, where
    something does.
    """
    if surely(value.storage_offset() == 0) and _is_dense(value):
        return value.clone()
    return copy_of_storage(value)


def _is_dense(value: torch.Tensor) -> bool:
    """Tell if the elements surely fill a stretch of memory, each its own place."""
    pairs = sorted(
        (
            (step, size)
            for step, size in zip(value.stride(), value.shape, strict=True)
            if not surely(size == 1)
        ),
        key=lambda pair: [surely(pair[0] > step) for step in value.stride()].count(True),
    )
    below: Any = 1
    for step, size in pairs:
        if not surely(step == below):
            return False
        below = below * size
    return True


def _is_wrapped(node: torch.fx.Node, wrappers: dict[Any, Any]) -> bool:
    # what wraps a higher-order operator stays, and is refused by its name
    return node.op == "call_function" and node.target in wrappers and isinstance(node.args[0], Overload)
