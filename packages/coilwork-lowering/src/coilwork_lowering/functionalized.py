"""Calls of operators that write into their arguments, which AOTAutograd wraps in `auto_functionalized`.

A wrapped call takes the tensors that it changes and returns what they have become. Here it is written out again: copies
of these tensors, the views of the copies that are arguments, the call itself, the copies.
"""

from __future__ import annotations

from typing import Any

import torch

from coilwork_lowering.torch_compat import (
    Overload,
    copied_graph,
    copy_of_storage,
    fake_mode_of,
    functionalized_calls,
    surely,
    traced_call,
)


def with_calls_written_out(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm` itself if it wraps no operator, else a copy that calls them."""
    wrappers = functionalized_calls(_copied)
    if not any(_is_wrapped(node, wrappers) for node in gm.graph.nodes):
        return gm
    made = torch.fx.GraphModule(gm, copied_graph(gm.graph))
    made.meta.update(gm.meta)
    for node in list(made.graph.nodes):
        if _is_wrapped(node, wrappers):
            _write_out(made, node, wrappers[node.target])
    return made


def _copied(value: torch.Tensor) -> torch.Tensor:
    """A copy of `value`, in which views lie as in `value`: with what surrounds it in its storage, where something does."""
    if surely(value.storage_offset() == 0) and _is_dense(value):
        return value.clone()
    return copy_of_storage(value)


def _is_dense(value: torch.Tensor) -> bool:
    """Whether the elements surely fill a stretch of memory, each its own place."""
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


def _write_out(gm: torch.fx.GraphModule, node: torch.fx.Node, meaning: Any) -> None:
    nodes = node.all_input_nodes

    def call(*values: Any) -> Any:
        given = dict(zip(nodes, values, strict=True))
        args = torch.fx.map_arg(node.args, given.__getitem__)
        kwargs = torch.fx.map_arg(node.kwargs, given.__getitem__)
        return meaning(*args, **kwargs)

    inner = traced_call(call, [n.meta["val"] for n in nodes], fake_mode_of(gm))
    replaced = dict(zip((n for n in inner.nodes if n.op == "placeholder"), nodes, strict=True))
    with gm.graph.inserting_before(node):
        for old in inner.nodes:
            if old.op == "call_function":
                new = replaced[old] = gm.graph.node_copy(old, replaced.__getitem__)
                new.meta = {**node.meta, "val": old.meta.get("val")}
    results: Any = torch.fx.map_arg(inner.output_node().args[0], replaced.__getitem__)
    for user in list(node.users):
        # the wrapper returns a tuple, of which nothing but items can be used
        found = results[user.args[1]]
        if isinstance(found, torch.fx.Node):
            user.replace_all_uses_with(found)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
