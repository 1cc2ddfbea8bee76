"""`scan` over rows whose number the run tells, or that are too many to be written out: a loop that counts
them.

A round stores its results per row where the stacks of all rounds' lie, so it costs what one row costs.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from coilwork_lowering.higher_order.scan_calls import copied_call, insert_call, operands_of, where

aten: Final = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operands:
    """What each round of the loop is given: nodes of the graph around it, or the loop's own placeholders for
    them.

    Attributes:
        number: of the row, a tensor of no dimensions.
        carried: from round to round, as `number` is.
        stacks: of results per row, which the body overwrites.
        rows: what a round takes one of.
        others: as they are in all rounds.
    """

    number: fx.Node
    carried: Sequence[Any]
    stacks: Sequence[fx.Node]
    rows: Sequence[fx.Node]
    others: Sequence[Any]

    @property
    def extra(self) -> tuple[Any, ...]:
        return (*self.stacks, *self.rows, *self.others)


def build_loop(gm: fx.GraphModule, node: fx.Node, combine: fx.GraphModule) -> list[Any]:
    """The results of the scan `node`, which calls `combine`: items of a `while_loop`, put into `gm` where it
    inserts.
    """
    carried, rows, others = operands_of(node)
    results: Any = combine.graph.output_node().args[0]
    per_row = results[len(carried) :]
    count, device = rows[0].meta["val"].shape[0], rows[0].meta["val"].device
    given = _Operands(
        number=insert_call(gm.graph, node, aten.full.default, ([], 0), dtype=torch.int64, device=device),
        carried=carried,
        stacks=[_stack(gm.graph, node, count, one) for one in per_row if isinstance(one, fx.Node)],
        rows=rows,
        others=others,
    )
    regions = (_condition(node, given, count), _body(node, given, combine))
    attributes = []
    for name, region in zip(("condition", "body"), regions, strict=True):
        setattr(gm, f"{node.name}_{name}", region)
        attributes.append(gm.graph.get_attr(f"{node.name}_{name}"))
    loop = gm.graph.call_function(
        torch.ops.higher_order.while_loop, (*attributes, (given.number, *carried), given.extra)
    )
    last = list(node.meta["val"][: len(carried)])
    loop.meta = {**where(node), "val": (given.number.meta["val"], *last)}
    values = [*last, *(stack.meta["val"] for stack in given.stacks)]
    items = iter([_item(loop, 1 + k, value) for k, value in enumerate(values)])
    return [next(items) if isinstance(one, fx.Node) else None for one in (*carried, *per_row)]


def _stack(graph: fx.Graph, node: fx.Node, count: int | torch.SymInt, row: fx.Node) -> fx.Node:
    """Memory for `count` results like `row`."""
    value = row.meta["val"]
    shape = [count, *value.shape]
    return insert_call(
        graph, node, aten.empty.memory_format, (shape,), dtype=value.dtype, device=value.device
    )


def _item(loop: fx.Node, position: int, value: torch.Tensor) -> fx.Node:
    item = loop.graph.call_function(operator.getitem, (loop, position))
    item.meta = {**where(loop), "val": value}
    return item


def _condition(node: fx.Node, given: _Operands, count: int | torch.SymInt) -> fx.GraphModule:
    """Tell if there is a row of that number."""
    graph = fx.Graph()
    taken = _placeholders(graph, given)
    graph.output(insert_call(graph, node, aten.lt.Scalar, (taken.number, count)))
    return fx.GraphModule({}, graph)


def _body(node: fx.Node, given: _Operands, combine: fx.GraphModule) -> fx.GraphModule:
    """`combine` of what is carried and one row; returns the next row's number and what is carried to it."""
    made = fx.GraphModule({}, fx.Graph())
    made.combine = combine
    graph = made.graph
    taken = _placeholders(graph, given)
    slices = [insert_call(graph, node, aten.index.Tensor, (row, [taken.number])) for row in taken.rows]
    results = copied_call(made, node, combine, "combine", [*taken.carried, *slices, *taken.others])
    per_row = [one for one in results[len(given.carried) :] if isinstance(one, fx.Node)]
    for stack, result in zip(taken.stacks, per_row, strict=True):
        new = insert_call(graph, node, aten.index_put.default, (stack, [taken.number], result))
        insert_call(graph, node, aten.copy_.default, (stack, new))
    following = insert_call(graph, node, aten.add.Tensor, (taken.number, 1))
    graph.output((following, *results[: len(given.carried)]))
    made.recompile()
    return made


def _placeholders(graph: fx.Graph, given: _Operands) -> _Operands:
    def take_row(operand: Any, name: str) -> fx.Node:
        made = graph.placeholder(name)
        made.meta["val"] = operand.meta["val"] if isinstance(operand, fx.Node) else operand
        return made

    def each(operands: Sequence[Any], name: str) -> list[fx.Node]:
        return [take_row(operand, f"{name}_{k}") for k, operand in enumerate(operands)]

    return _Operands(
        number=take_row(given.number, "number"),
        carried=each(given.carried, "carried"),
        stacks=each(given.stacks, "stack"),
        rows=each(given.rows, "rows"),
        others=each(given.others, "other"),
    )
