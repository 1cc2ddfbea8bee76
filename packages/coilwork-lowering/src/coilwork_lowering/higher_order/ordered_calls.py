"""Calls that torch ties to what stands before and behind them, by `control_deps`: those that record events
and wait for streams.

`control_deps((a, b), subgraph, b)` calls an operator behind all that makes `a` and `b`, and returns its
result and `b`, which whatever stands behind reads in the place of `b`. Torch 2.13 makes that of every
operator that waits, so that no pass of its own moves one. The operators are barriers here, which stay where
they are: the ties become the plain calls again.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from coilwork_lowering.facts.fx_nodes import operator_name
from coilwork_lowering.torch_compat.graphs import copy_graph


def write_out_ties(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm` itself if it ties no calls, else a copy that makes them where they stand."""
    if not any(_is_tied(node) for node in gm.graph.nodes):
        return gm
    made = fx.GraphModule(gm, copy_graph(gm.graph))
    made.meta.update(gm.meta)
    # from behind: the last of them are tied to earlier ones, which they name
    for node in reversed([node for node in made.graph.nodes if _is_tied(node)]):
        _write_out(made, node)
    return made


def _is_tied(node: fx.Node) -> bool:
    return node.op == "call_function" and operator_name(node) == "control_deps"


def _write_out(gm: fx.GraphModule, node: fx.Node) -> None:
    """Replace `node`, in place, by what its subgraph calls."""
    attribute: Any = node.args[1]
    subgraph: Any = gm.get_submodule(str(attribute.target))
    inner: fx.Graph = subgraph.graph
    values: dict[fx.Node, Any] = dict(zip(inner.find_nodes(op="placeholder"), node.args[2:], strict=True))
    with gm.graph.inserting_before(node):
        for one in inner.nodes:
            if one.op == "call_function":
                values[one] = gm.graph.node_copy(one, values.__getitem__)
    returned: Any = fx.map_arg(inner.output_node().args[0], values.__getitem__)
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(returned[user.args[1]])
            gm.graph.erase_node(user)
    if node.users:
        node.replace_all_uses_with(returned)
    gm.graph.erase_node(node)
    if not attribute.users:
        gm.graph.erase_node(attribute)
