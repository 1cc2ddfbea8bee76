"""`scan` and `map`: a function called for each row in turn, whose results are stacked.

`scan` also carries values from row to row. Few rows of a short function are unrolled: the calls stand one
after another, and what they compute for neighbouring rows fuses like anything else. Otherwise they are a
loop, whose body is compiled once (`rounds.py`). A round reads its rows where they lie, and stores its results
in the stacks of all rounds.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.fx.node import map_arg

from coilwork_lowering.facts.fx_nodes import get_operator_name
from coilwork_lowering.higher_order.rounds import RoundNumber, run_rounds, store_row, take_row
from coilwork_lowering.torch_compat.graphs import copy_graph, find_mode_among

# ---- Operands and copies of calls ----


def is_scan(node: torch.fx.Node) -> bool:
    """Tell if `node` calls a function once for each row."""
    return node.op == "call_function" and get_operator_name(node) in ("scan", "map_impl")


def split_operands(node: torch.fx.Node) -> tuple[list[Any], list[Any], list[Any]]:
    """Return what is carried from row to row, what the rows are of, and what all calls get. A `map`
    carries nothing.
    """
    given: tuple[Any, ...] = node.args[1:]
    carried, rows, others = given if len(given) == 3 else ((), *given)
    return list(carried), list(rows), list(others)


def copy_call(
    gm: torch.fx.GraphModule,
    node: torch.fx.Node,
    combine: torch.fx.GraphModule,
    name: str,
    operands: Sequence[Any],
) -> list[Any]:
    """Copy what `combine`, which is attribute `name` of `gm`, does with `operands`; its results."""
    result: dict[torch.fx.Node, Any] = dict(
        zip(combine.graph.find_nodes(op="placeholder"), operands, strict=True)
    )
    for inner in combine.graph.nodes:
        if inner.op == "get_attr":
            result[inner] = gm.graph.get_attr(f"{name}.{inner.target}")
            result[inner].meta.update(inner.meta)
        elif inner.op == "call_function":
            arguments = map_arg((inner.args, inner.kwargs), result.__getitem__)
            result[inner] = _new(gm.graph, inner.target, *arguments)
            result[inner].meta = {**inner.meta, **copy_origin(node)}
    results: Any = map_arg(combine.graph.output_node().args[0], result.__getitem__)
    return list(results) if isinstance(results, list | tuple) else [results]


def insert_call(
    graph: torch.fx.Graph, node: torch.fx.Node, target: Any, args: tuple[Any, ...], **kwargs: Any
) -> torch.fx.Node:
    """Return a call of `target` in the stead of the scan `node`, whose metadata says what its result looks
    like.
    """
    values: Any = map_arg(args, lambda other: other.meta["val"])
    mode = find_mode_among(other.meta.get("val") for other in node.all_input_nodes)
    assert mode is not None
    result = _new(graph, target, args, kwargs)
    with mode:
        result.meta = {**copy_origin(node), "val": target(*values, **kwargs)}
    return result


def _new(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
    result = graph.call_function(target)
    # not when it is made, where torch warns of sizes that are no nodes, which lowering knows
    result.args, result.kwargs = args, kwargs
    return result


def copy_origin(node: torch.fx.Node) -> Mapping[str, Any]:
    """Return the metadata that tells the user where a node comes from."""
    return {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}


# ---- Loops ----


aten: Final = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operands:
    """The operands of each round of the loop: nodes of the graph around it, or the loop's own placeholders
    for them.

    Attributes:
        carried: from round to round.
        stacks: of results per row, which the body overwrites.
        rows: what a round takes one of.
        others: as they are in all rounds.
    """

    carried: Sequence[Any]
    stacks: Sequence[fx.Node]
    rows: Sequence[Any]
    others: Sequence[Any]

    @property
    def extra(self) -> tuple[Any, ...]:
        return (*self.stacks, *self.rows, *self.others)


def build_loop(gm: fx.GraphModule, node: fx.Node, combine: fx.GraphModule) -> list[Any]:
    """Return the results of the scan `node`, which calls `combine`: items of a loop, put into `gm` where it
    inserts.

    Rows that were flipped for the scan are taken from the end, and results that are only flipped are put
    there from the end.
    """
    carried, rows, others = split_operands(node)
    results: Any = combine.graph.output_node().args[0]
    per_row = results[len(carried) :]
    rounds = rows[0].meta["val"].shape[0]
    flips = [_find_flip(node, len(carried) + k) for k in range(len(per_row))]
    given = _Operands(
        carried=carried,
        stacks=[_stack(gm.graph, node, rounds, item) for item in per_row if isinstance(item, fx.Node)],
        rows=[row.args[0] if _is_flip(row) else row for row in rows],
        others=others,
    )
    order = _Order(
        rows=[_is_flip(row) for row in rows],
        stacks=[
            flip is not None for flip, item in zip(flips, per_row, strict=True) if isinstance(item, fx.Node)
        ],
    )
    setattr(gm, f"{node.name}_body", _body(node, given, order, combine, rounds))
    body = gm.graph.get_attr(f"{node.name}_body")
    loop = gm.graph.call_function(run_rounds)
    # not when it is made, where torch warns of sizes that are no nodes, which lowering knows
    loop.args = (rounds, body, tuple(carried), given.extra)
    last = list(node.meta["val"][: len(carried)])
    values = [*last, *(stack.meta["val"] for stack in given.stacks)]
    loop.meta = {**copy_origin(node), "val": tuple(last)}
    items = iter([_item(loop, k, value) for k, value in enumerate(values)])
    created = [next(items) if isinstance(item, fx.Node) else None for item in (*carried, *per_row)]
    for flip, item in zip(flips, created[len(carried) :], strict=True):
        if flip is not None and isinstance(item, fx.Node):
            flip.replace_all_uses_with(item)
            gm.graph.erase_node(flip)
    return created


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The direction of each tensor's rows, and of each stack's: true if they are taken from the end."""

    rows: Sequence[bool]
    stacks: Sequence[bool]


def _is_flip(node: Any) -> bool:
    """Tell if `node` turns the order of rows, and of nothing else."""
    return isinstance(node, fx.Node) and node.target is aten.flip.default and node.args[1] in ([0], (0,))


def _find_flip(node: fx.Node, position: int) -> fx.Node | None:
    """Return the node that flips result `position` of `node`, if nothing else uses the result."""
    items = [user for user in node.users if user.args[1] == position]
    users = [user for item in items for user in item.users]
    return users[0] if len(users) == 1 and _is_flip(users[0]) else None


def _stack(graph: fx.Graph, node: fx.Node, count: int | torch.SymInt, row: fx.Node) -> fx.Node:
    """Return memory for `count` results like `row`."""
    value = row.meta["val"]
    shape = [count, *value.shape]
    return insert_call(
        graph, node, aten.empty.memory_format, (shape,), dtype=value.dtype, device=value.device
    )


def _item(loop: fx.Node, position: int, value: torch.Tensor) -> fx.Node:
    item = loop.graph.call_function(operator.getitem, (loop, position))
    item.meta = {**copy_origin(loop), "val": value}
    return item


def _body(
    node: fx.Node, given: _Operands, order: _Order, combine: fx.GraphModule, rounds: int | torch.SymInt
) -> fx.GraphModule:
    """`combine` of what is carried and one row; returns what is carried to the next round."""
    created = fx.GraphModule({}, fx.Graph())
    created.combine = combine
    graph = created.graph
    taken = _placeholders(graph, given)
    number = graph.placeholder("number")
    number.meta["val"] = RoundNumber(rounds)
    slices = [
        _take(graph, node, row, number, is_reversed)
        for row, is_reversed in zip(taken.rows, order.rows, strict=True)
    ]
    results = copy_call(created, node, combine, "combine", [*taken.carried, *slices, *taken.others])
    per_row = [item for item in results[len(given.carried) :] if isinstance(item, fx.Node)]
    for stack, result, is_reversed in zip(taken.stacks, per_row, order.stacks, strict=True):
        store = graph.call_function(store_row, (stack, number, result, is_reversed))
        store.meta = {**copy_origin(node), "val": None}
    graph.output(tuple(results[: len(given.carried)]))
    created.recompile()
    return created


def _take(graph: fx.Graph, node: fx.Node, rows: Any, number: fx.Node, is_reversed: bool) -> fx.Node:
    value = rows.meta["val"]
    mode = find_mode_among([value])
    assert mode is not None
    row = graph.call_function(take_row, (rows, number, is_reversed))
    with mode:
        empty = torch.empty_strided(
            value.shape[1:], value.stride()[1:], dtype=value.dtype, device=value.device
        )
    row.meta = {**copy_origin(node), "val": empty}
    return row


def _placeholders(graph: fx.Graph, given: _Operands) -> _Operands:
    def take_operand(operand: Any, name: str) -> fx.Node:
        result = graph.placeholder(name)
        result.meta["val"] = operand.meta["val"] if isinstance(operand, fx.Node) else operand
        return result

    def take_all(operands: Sequence[Any], name: str) -> list[fx.Node]:
        return [take_operand(operand, f"{name}_{k}") for k, operand in enumerate(operands)]

    return _Operands(
        carried=take_all(given.carried, "carried"),
        stacks=take_all(given.stacks, "stack"),
        rows=take_all(given.rows, "rows"),
        others=take_all(given.others, "other"),
    )


# ---- Unrolling ----


# Nodes that one scan may be unrolled to: a round of a loop costs about as much time as a launch, and as many
# nodes take about a second to compile
_MOST_NODES: Final = 256


def unroll_scans(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm` itself if it calls no `scan` and no `map`, else a copy that does without."""
    if not any(is_scan(node) for node in gm.graph.nodes):
        return gm
    result = torch.fx.GraphModule(gm, copy_graph(gm.graph))
    result.meta.update(gm.meta)
    for node in list(result.graph.nodes):
        if is_scan(node):
            _unroll(result, node)
    for node in result.graph.find_nodes(op="get_attr"):
        if not node.users:
            result.graph.erase_node(node)
    return result


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
        _, rows, _ = split_operands(node)
        count = rows[0].meta["val"].shape[0]
        if type(count) is int and count * len(combine.graph.nodes) <= _MOST_NODES:
            created = _call_each_row(gm, node, combine, count)
        else:
            created = build_loop(gm, node, combine)
    for user in list(node.users):
        # every user takes an item of the results
        assert user.target is operator.getitem
        number: Any = user.args[1]
        result = created[number]
        if isinstance(result, torch.fx.Node):
            user.replace_all_uses_with(result)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
    for row in dict.fromkeys(rows):
        if _is_flip(row) and not row.users:
            gm.graph.erase_node(row)


def _call_each_row(
    gm: torch.fx.GraphModule, node: torch.fx.Node, combine: torch.fx.GraphModule, count: int
) -> list[Any]:
    """Return the results of `combine`, called `count` times."""
    carried, rows, others = split_operands(node)
    name = str(getattr(node.args[0], "target", ""))
    stacked: list[list[Any]] = []
    for k in range(count):
        slices = [insert_call(gm.graph, node, torch.ops.aten.select.int, (row, 0, k)) for row in rows]
        results = copy_call(gm, node, combine, name, [*carried, *slices, *others])
        carried, stacked = results[: len(carried)], [*stacked, results[len(carried) :]]
    columns = [
        insert_call(gm.graph, node, torch.ops.aten.stack.default, (list(item),))
        if isinstance(item[0], torch.fx.Node)
        else None
        for item in zip(*stacked, strict=True)
    ]
    return [*carried, *columns]
