"""What a `scan` or `map` is given, and what replaces it: calls of ATen's, and copies of what its function
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_arg

from coilwork_lowering.facts.fx_nodes import operator_name
from coilwork_lowering.torch_compat.graphs import mode_among


def is_scan(node: torch.fx.Node) -> bool:
    """Tell if `node` calls a function once for each row."""
    return node.op == "call_function" and operator_name(node) in ("scan", "map_impl")


def operands_of(node: torch.fx.Node) -> tuple[list[Any], list[Any], list[Any]]:
    """Return what is carried from row to row, what the rows are of, and what all calls get. A `map`
    carries nothing.
    """
    given: tuple[Any, ...] = node.args[1:]
    carried, rows, others = given if len(given) == 3 else ((), *given)
    return list(carried), list(rows), list(others)


def copied_call(
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
            arguments = map_arg((inner.args, inner.kwargs), made.__getitem__)
            made[inner] = _new(gm.graph, inner.target, *arguments)
            made[inner].meta = {**inner.meta, **where(node)}
    results: Any = map_arg(combine.graph.output_node().args[0], made.__getitem__)
    return list(results)


def insert_call(
    graph: torch.fx.Graph, node: torch.fx.Node, target: Any, args: tuple[Any, ...], **kwargs: Any
) -> torch.fx.Node:
    """A call of `target` in the stead of the scan `node`, whose metadata says what its result looks like."""
    values: Any = map_arg(args, lambda other: other.meta["val"])
    mode = mode_among(other.meta.get("val") for other in node.all_input_nodes)
    assert mode is not None
    made = _new(graph, target, args, kwargs)
    with mode:
        made.meta = {**where(node), "val": target(*values, **kwargs)}
    return made


def _new(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
    made = graph.call_function(target)
    # not when it is made, where torch warns of sizes that are no nodes, which lowering knows
    made.args, made.kwargs = args, kwargs
    return made


def where(node: torch.fx.Node) -> Mapping[str, Any]:
    """Return what the user is told of a node's origin."""
    return {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
