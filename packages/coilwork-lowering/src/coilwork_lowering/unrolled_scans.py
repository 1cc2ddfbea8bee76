"""`scan`: a function of what is carried and of one row, called for each row in turn, whose results are stacked.

There is no node for it in the loop IR. Where the number of rows is known, the calls are written out one after another, and
what is computed for neighbouring rows is fused like anything else.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx.node import map_arg

from coilwork_lowering.errors import LoweringError
from coilwork_lowering.origins import operator_name, origin_of
from coilwork_lowering.torch_compat import copied_graph, mode_among

# nodes that may be written out for one scan; as many take about ten seconds to compile
_MOST_NODES: Final = 8192


def with_scans_unrolled(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm` itself if it calls no `scan`, else a copy that does without.

    Raises:
        LoweringError[no-lowering]: how many rows there are is not known, or they are too many.
    """
    if not any(_is_scan(node) for node in gm.graph.nodes):
        return gm
    made = torch.fx.GraphModule(gm, copied_graph(gm.graph))
    made.meta.update(gm.meta)
    for node in list(made.graph.nodes):
        if _is_scan(node):
            _unroll(made, node)
    for node in made.graph.find_nodes(op="get_attr"):
        if not node.users:
            made.graph.erase_node(node)
    return made


def _is_scan(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and operator_name(node) == "scan"


def _unroll(gm: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    """Replace `scan(combine, carried, rows, others)`, which returns what is carried last and stacked results."""
    attribute = node.args[0]
    operands: tuple[Any, ...] = node.args[1:]
    carried, rows, others = operands
    assert isinstance(attribute, torch.fx.Node) and isinstance(attribute.target, str)
    combine = gm.get_submodule(attribute.target)
    assert isinstance(combine, torch.fx.GraphModule)
    combine = with_scans_unrolled(combine)
    setattr(gm, attribute.target, combine)
    count = _count(node, rows, len(combine.graph.nodes))
    with gm.graph.inserting_before(node):
        stacked: list[list[Any]] = []
        for k in range(count):
            slices = [_called(gm, node, torch.ops.aten.select.int, (row, 0, k)) for row in rows]
            results = _one_call(gm, node, combine, attribute.target, [*carried, *slices, *others])
            carried, stacked = results[: len(carried)], [*stacked, results[len(carried) :]]
        columns = [
            _called(gm, node, torch.ops.aten.stack.default, (list(one),))
            if isinstance(one[0], torch.fx.Node)
            else None
            for one in zip(*stacked, strict=True)
        ]
    for user in list(node.users):
        # the results are taken apart at once
        assert user.target is operator.getitem
        number: Any = user.args[1]
        found = [*carried, *columns][number]
        if isinstance(found, torch.fx.Node):
            user.replace_all_uses_with(found)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _count(node: torch.fx.Node, rows: Sequence[torch.fx.Node], size: int) -> int:
    count = rows[0].meta["val"].shape[0]
    if type(count) is int and count * size <= _MOST_NODES:
        return count
    raise LoweringError(
        "no-lowering",
        f"scan over {count} rows",
        node=node.format_node() or node.name,
        origins=(origin_of(node),),
        reason="a scan is written out row by row, and "
        + ("it would be too long" if type(count) is int else "how many rows there are is not known"),
        remedy="scan over fewer rows of a known number at a time, or use torch.while_loop",
    )


def _one_call(
    gm: torch.fx.GraphModule,
    node: torch.fx.Node,
    combine: torch.fx.GraphModule,
    name: str,
    operands: Sequence[Any],
) -> list[Any]:
    """Copy what `combine`, which is attribute `name` of `gm`, does with `operands`; its results."""
    made: dict[torch.fx.Node, Any] = dict(
        zip(combine.graph.find_nodes(op="placeholder"), operands, strict=True)
    )
    for inner in combine.graph.nodes:
        if inner.op == "get_attr":
            made[inner] = gm.graph.get_attr(f"{name}.{inner.target}")
            made[inner].meta.update(inner.meta)
        elif inner.op == "call_function":
            made[inner] = gm.graph.node_copy(inner, made.__getitem__)
            made[inner].meta = {**inner.meta, **_where(node)}
    results: Any = map_arg(combine.graph.output_node().args[0], made.__getitem__)
    return list(results)


def _called(
    gm: torch.fx.GraphModule, node: torch.fx.Node, target: Any, args: tuple[Any, ...]
) -> torch.fx.Node:
    """A call of `target`, whose metadata says what its result looks like."""
    values: Any = map_arg(args, lambda other: other.meta["val"])
    mode = mode_among(values[0] if isinstance(values[0], Sequence) else values[:1])
    assert mode is not None
    made = gm.graph.call_function(target, args)
    with mode:
        made.meta = {**_where(node), "val": target(*values)}
    return made


def _where(node: torch.fx.Node) -> Mapping[str, Any]:
    """What the user is told of a node's origin."""
    return {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
