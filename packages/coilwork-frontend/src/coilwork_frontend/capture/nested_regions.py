"""Graphs that a captured graph calls, put in the places where they are called.

Regions that the user marked with `torch.compiler.nested_compile_region` are traced once and called by
`invoke_subgraph`, and what a function does to lists of tensors is called by `foreach_map`. AOTAutograd would
keep the calls apart: nothing in one is fused with, or partitioned by, what surrounds it, and it refuses
regions that train and update buffers, as a batch norm does. Equal kernels are built once anyway, so the calls
are replaced by what they call.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx
from torch.fx.node import map_arg

# operators that call a graph, and how many of their arguments precede its operands
_CALLS: Final[Mapping[object, int]] = MappingProxyType(
    {torch.ops.higher_order.invoke_subgraph: 2, torch.ops.higher_order.foreach_map: 1}
)


def put_in_place(gm: fx.GraphModule) -> None:
    """Replace the calls of graphs in Dynamo's graph `gm`, in place, and in the graphs that it holds, by their
    contents.
    """
    for held in list(gm.children()):
        if isinstance(held, fx.GraphModule):
            put_in_place(held)
    calls = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in _CALLS]
    for call in calls:
        _replace(gm, call)
    if calls:
        _forget_unused(gm)
        gm.recompile()


def _replace(gm: fx.GraphModule, call: fx.Node) -> None:
    """`invoke_subgraph(region, identifier, *operands)` becomes a copy of what `region`, an attribute of `gm`,
    does.
    """
    attribute, operands = call.args[0], call.args[_CALLS[call.target] :]
    assert isinstance(attribute, fx.Node) and isinstance(attribute.target, str)
    region = gm.get_submodule(attribute.target)
    assert isinstance(region, fx.GraphModule)
    made: dict[fx.Node, Any] = dict(zip(region.graph.find_nodes(op="placeholder"), operands, strict=True))
    results: Any = None
    with gm.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op == "output":
                results = map_arg(node.args[0], made.__getitem__)
            elif node.op == "get_attr":
                made[node] = gm.graph.get_attr(f"{attribute.target}.{node.target}")
                made[node].meta.update(node.meta)
            elif node.op != "placeholder":
                made[node] = gm.graph.node_copy(node, made.__getitem__)
    for user in list(call.users):
        # Dynamo takes the results apart at once
        assert user.target is operator.getitem
        found = results[user.args[1]]
        if isinstance(found, fx.Node):
            user.replace_all_uses_with(found)
        else:
            _replace_by_value(user, found)
        gm.graph.erase_node(user)
    gm.graph.erase_node(call)


def _replace_by_value(node: fx.Node, value: Any) -> None:
    """Let the users of `node` have `value`, which is no node: None or a number."""
    for user in list(node.users):
        user.args = map_arg(user.args, lambda other: value if other is node else other)
        user.kwargs = map_arg(user.kwargs, lambda other: value if other is node else other)


def _forget_unused(gm: fx.GraphModule) -> None:
    for node in gm.graph.find_nodes(op="get_attr"):
        if not node.users:
            gm.graph.erase_node(node)
