"""Results that are views of inputs which the graph overwrites: views of the input's own memory.

AOTAutograd hands such a result to the caller as a view of the input, made anew. Of what the graph returns it takes size,
strides and the place in the storage. In the captured graph the result is a view of the input's new contents, a tensor
of its own that is copied into the input at the end: it has that place only by chance.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from coilwork.torch_compat import aliased_inputs, is_view


def returning_views_of_inputs(gm: fx.GraphModule) -> fx.GraphModule:
    """The forward or inference graph that is being compiled, with such results taken from the inputs."""
    return with_views(gm, aliased_inputs())


def with_views(gm: fx.GraphModule, aliases: Sequence[tuple[int, int]]) -> fx.GraphModule:
    """`gm`, or a copy in which the outputs named by `aliases`, pairs (output, input), are views of the inputs.

    What is no view of a value of the input's form stays.
    """
    found = [(output, chain, base) for output, base in aliases if (chain := _chain(gm, output, base))]
    if not found:
        return gm
    copies: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    last = graph.output_node()
    results = list(_items(last))
    with graph.inserting_before(last):
        for output, chain, base in found:
            replaced = {**copies, chain[0]: inputs[base]}
            for node in chain[1:]:
                replaced[node] = graph.node_copy(node, replaced.__getitem__)
            results[output] = replaced[chain[-1]]
    last.args = (tuple(results),)
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _items(output: fx.Node) -> Sequence[Any]:
    items: Any = output.args[0]
    assert isinstance(items, list | tuple)
    return items


def _chain(gm: fx.GraphModule, output: int, base: int) -> list[fx.Node]:
    """From the new contents of input `base` to the output, view by view; empty if the output is made otherwise."""
    node = _items(gm.graph.output_node())[output]
    given = [one for one in gm.graph.nodes if one.op == "placeholder"][base]
    chain: list[fx.Node] = []
    while isinstance(node, fx.Node):
        chain.insert(0, node)
        if not _is_view(node):
            break
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.op == "placeholder":
        return []
    return chain if _form(node) == _form(given) else []


def _is_view(node: fx.Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, fx.Node) and source.op == "call_function" and is_view(source.target)


def _form(node: fx.Node) -> tuple[object, ...] | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    # Sizes as text: their comparison would be a guard.
    return (value.dtype, *map(str, value.shape), *map(str, value.stride()))
