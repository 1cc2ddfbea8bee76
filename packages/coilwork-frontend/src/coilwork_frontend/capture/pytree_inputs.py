"""Flatten inputs that are lists, tuples or dictionaries, as compiled autograd passes them.

AOTAutograd and the passes on captured graphs take flat inputs. Each nested input becomes one placeholder per
leaf, and taking an item of the input becomes that leaf.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import fx
from torch.fx.node import map_arg

from coilwork_frontend.torch_compat.tensors import TreeSpec, get_tree_spec, list_leaves, unflatten_tree

_NESTED: Final = (list, tuple, dict)


def has_pytree_inputs(example_inputs: Sequence[Any]) -> bool:
    """Tell if an input is a list, a tuple or a dictionary."""
    return any(isinstance(value, _NESTED) for value in example_inputs)


def flatten_inputs(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any], Callable[[list[Any]], list[Any]]]:
    """Return the graph of `gm` with flat inputs, these inputs, and a function that flattens a call's
    arguments.

    The function takes a list and empties it, so that the caller keeps no tensor alive. It also empties the
    argument lists that Dynamo lets a callee empty.
    """
    specs = [get_tree_spec(value) if isinstance(value, _NESTED) else None for value in example_inputs]
    emptied = [
        position
        for position, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if node.meta.get("steal_arg", False)
    ]

    def flatten(args: list[Any]) -> list[Any]:
        flat = _flatten_values(args, specs)
        for position in emptied:
            args[position].clear()
        args.clear()
        return flat

    return _rebuild_with_flat_inputs(gm, specs), _flatten_values(example_inputs, specs), flatten


def _flatten_values(values: Sequence[Any], specs: Sequence[TreeSpec | None]) -> list[Any]:
    flat: list[Any] = []
    for value, spec in zip(values, specs, strict=True):
        if spec is None:
            flat.append(value)
        else:
            flat.extend(list_leaves(value))
    return flat


def _rebuild_with_flat_inputs(gm: fx.GraphModule, specs: Sequence[TreeSpec | None]) -> fx.GraphModule:
    """Return `gm` with a placeholder per leaf of its inputs; `specs` has their nesting, None for flat
    ones."""
    graph = fx.Graph()
    values: dict[fx.Node, Any] = {}
    placeholders = gm.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, specs, strict=True):
        if spec is None:
            values[node] = graph.node_copy(node)
        else:
            values[node] = unflatten_tree([_leaf(graph, node, k) for k in range(spec.num_leaves)], spec)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        whole = values.get(node.args[0]) if _takes_item(node) else None
        if isinstance(whole, _NESTED):
            values[node] = whole[node.args[1]]
        else:
            # `node_copy` wants nodes, and a list of leaves may stand where a nested input stood.
            copied = graph.node_copy(node, lambda other: other)
            copied.args, copied.kwargs = (
                _replace_nodes(node.args, values),
                _replace_nodes(node.kwargs, values),
            )
            values[node] = copied
    return fx.GraphModule(gm, graph)


def _leaf(graph: fx.Graph, nested: fx.Node, k: int) -> fx.Node:
    leaf = graph.placeholder(f"{nested.name}_{k}")
    if "example_value" in nested.meta:
        leaf.meta["example_value"] = list_leaves(nested.meta["example_value"])[k]
    return leaf


def _takes_item(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def _replace_nodes(tree: Any, values: dict[fx.Node, Any]) -> Any:
    return map_arg(tree, values.__getitem__)
