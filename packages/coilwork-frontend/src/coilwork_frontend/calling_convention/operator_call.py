"""Run the operators of a compiled graph one by one, for calls that its kernels cannot serve.

Kernels read memory. Tensors without memory (fake, functional, batched, meta), or a dispatch mode that watches
operators, need torch's own operators. Such calls are rare, so the graph is kept as a row per node, which is
much smaller than the graph, and the rows are interpreted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.fx.node import map_aggregate, map_arg

Call = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _Value:
    """The value of a node, by the node's number."""

    number: int


@dataclass(frozen=True, slots=True)
class _Row:
    """A node.

    Attributes:
        op, target: as in `fx.Node`.
        args, kwargs: the same with a `_Value` for each node.
        ends: numbers of the nodes whose values have their last use here.
    """

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    ends: tuple[int, ...]


def make_operator_call(gm: fx.GraphModule) -> Call:
    """Return a call that runs the operators of `gm` for one list of inputs, which it empties. It keeps no
    node."""
    rows = _record(gm.graph)
    roots = {row.target.partition(".")[0] for row in rows if row.op in ("get_attr", "call_module")}
    owner = {name: getattr(gm, name) for name in roots}

    def call(args: list[Any]) -> Sequence[Any]:
        inputs = iter(tuple(args))
        args.clear()
        values: list[Any] = []
        for row in rows[:-1]:
            values.append(next(inputs) if row.op == "placeholder" else _run(row, values, owner))
            for number in row.ends:
                values[number] = None
        results: Sequence[Any] = _fill(rows[-1].args, values)[0]
        return results

    return call


def _record(graph: fx.Graph) -> tuple[_Row, ...]:
    """Return the rows of `graph`, in its order; the last is its output."""
    nodes = tuple(graph.nodes)
    numbers = {node: number for number, node in enumerate(nodes)}
    last = {node: user for user in nodes for node in user.all_input_nodes}
    ends: dict[fx.Node, list[int]] = {}
    for node in nodes:
        # a node without users ends at once
        ends.setdefault(last.get(node, node), []).append(numbers[node])

    def refer(node: fx.Node) -> Any:
        return _Value(numbers[node])

    return tuple(
        _Row(
            node.op,
            node.target,
            map_arg(node.args, refer),
            map_arg(node.kwargs, refer),
            tuple(ends.get(node, ())),
        )
        for node in nodes
    )


def _fill(template: Any, values: Sequence[Any]) -> Any:
    def look_up(item: Any) -> Any:
        return values[item.number] if isinstance(item, _Value) else item

    return map_aggregate(template, look_up)


def _run(row: _Row, values: Sequence[Any], owner: Mapping[str, Any]) -> Any:
    args, kwargs = _fill(row.args, values), _fill(row.kwargs, values)
    match row.op:
        case "get_attr":
            return _attribute(row.target, owner)
        case "call_module":
            return _attribute(row.target, owner)(*args, **kwargs)
        case "call_method":
            return getattr(args[0], row.target)(*args[1:], **kwargs)
        case _:
            return row.target(*args, **kwargs)


def _attribute(target: str, owner: Mapping[str, Any]) -> Any:
    root, *path = target.split(".")
    return functools.reduce(getattr, path, owner[root])
