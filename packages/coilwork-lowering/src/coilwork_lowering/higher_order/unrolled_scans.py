"""`scan`: a function of what is carried and of one row, called for each row in turn, whose results are
stacked. `map` carries nothing.

There is no node for it in the loop IR. Where the number of rows is known and small, the calls are written out
one after another, and what is computed for neighbouring rows is fused like anything else. Else they are a
loop (looped_scans.py).
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

from coilwork_lowering.higher_order.looped_scans import build_loop
from coilwork_lowering.higher_order.scan_calls import copied_call, insert_call, is_scan, operands_of
from coilwork_lowering.torch_compat.graphs import copy_graph

# nodes that may be written out for one scan; as many take about ten seconds to compile
_MOST_NODES: Final = 8192


def unroll_scans(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm` itself if it calls no `scan` and no `map`, else a copy that does without."""
    if not any(is_scan(node) for node in gm.graph.nodes):
        return gm
    made = torch.fx.GraphModule(gm, copy_graph(gm.graph))
    made.meta.update(gm.meta)
    for node in list(made.graph.nodes):
        if is_scan(node):
            _unroll(made, node)
    for node in made.graph.find_nodes(op="get_attr"):
        if not node.users:
            made.graph.erase_node(node)
    return made


def _unroll(gm: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    """Replace `scan(combine, carried, rows, others)`, which returns what is carried last and stacked results;
    or `map`.
    """
    attribute = node.args[0]
    assert isinstance(attribute, torch.fx.Node) and isinstance(attribute.target, str)
    combine = gm.get_submodule(attribute.target)
    assert isinstance(combine, torch.fx.GraphModule)
    combine = unroll_scans(combine)
    setattr(gm, attribute.target, combine)
    with gm.graph.inserting_before(node):
        _, rows, _ = operands_of(node)
        count = rows[0].meta["val"].shape[0]
        if type(count) is int and count * len(combine.graph.nodes) <= _MOST_NODES:
            made = _one_by_one(gm, node, combine, count)
        else:
            made = build_loop(gm, node, combine)
    for user in list(node.users):
        # the results are taken apart at once
        assert user.target is operator.getitem
        number: Any = user.args[1]
        found = made[number]
        if isinstance(found, torch.fx.Node):
            user.replace_all_uses_with(found)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _one_by_one(
    gm: torch.fx.GraphModule, node: torch.fx.Node, combine: torch.fx.GraphModule, count: int
) -> list[Any]:
    """The results of `combine`, called `count` times."""
    carried, rows, others = operands_of(node)
    name = str(getattr(node.args[0], "target", ""))
    stacked: list[list[Any]] = []
    for k in range(count):
        slices = [insert_call(gm.graph, node, torch.ops.aten.select.int, (row, 0, k)) for row in rows]
        results = copied_call(gm, node, combine, name, [*carried, *slices, *others])
        carried, stacked = results[: len(carried)], [*stacked, results[len(carried) :]]
    columns = [
        insert_call(gm.graph, node, torch.ops.aten.stack.default, (list(one),))
        if isinstance(one[0], torch.fx.Node)
        else None
        for one in zip(*stacked, strict=True)
    ]
    return [*carried, *columns]
