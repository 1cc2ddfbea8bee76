"""Results that are views of inputs which the graph overwrites: views of the input's own memory.

AOTAutograd hands such a result to the caller as a view of the input, made anew. Of what the graph returns it
takes size, strides and the place in the storage. In the captured graph the result is a view of the input's
new contents, a tensor of its own that is copied into the input at the end: it has that place only by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import aliased_inputs, renewed_inputs
from coilwork_frontend.torch_compat.operators import is_view_node
from coilwork_frontend.torch_compat.sizes import are_equal_sizes
from coilwork_frontend.torch_compat.tensors import run_on_fakes

_COPY = torch.ops.aten.copy_.default


def returning_views_of_inputs(gm: fx.GraphModule) -> fx.GraphModule:
    """The forward or inference graph that is being compiled, with such results taken from the inputs."""
    return with_views(gm, aliased_inputs(), renewed_inputs())


def with_views(
    gm: fx.GraphModule, aliases: Sequence[tuple[int, int]], renewed: Sequence[tuple[int, int]] = ()
) -> fx.GraphModule:
    """`gm`, or a copy in which the outputs named by `aliases` are views of the inputs: pairs (output, input).

    `renewed` are the outputs that are new contents of inputs, which the graph does not overwrite itself. A
    result that is no view of new contents stays.
    """
    if not aliases:
        return gm
    contents = _contents(gm, renewed)
    chains = {output: _chain(gm, output, contents.get(base)) for output, base in aliases}
    if not any(chains.values()):
        return gm
    copies: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    last = graph.output_node()
    results = list(_items(last))
    with graph.inserting_before(last):
        for output, base in aliases:
            replaced = dict(copies)
            for position, node in enumerate(chains[output]):
                replaced[node] = (
                    inputs[base] if position == 0 else graph.node_copy(node, replaced.__getitem__)
                )
                replaced[node].meta["val"] = run_on_fakes(replaced[node])
                results[output] = replaced[node]
    last.args = (tuple(results),)
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _items(output: fx.Node) -> Sequence[Any]:
    items: Any = output.args[0]
    assert isinstance(items, list | tuple)
    return items


def _contents(gm: fx.GraphModule, renewed: Sequence[tuple[int, int]]) -> dict[int, fx.Node]:
    """Return what inputs, by position, hold in the end, as far as they are overwritten by something of
    their form.
    """
    given = [node for node in gm.graph.nodes if node.op == "placeholder"]
    results = _items(gm.graph.output_node())
    found = {base: results[output] for output, base in renewed}
    for node in gm.graph.nodes:
        if node.target is _COPY and node.args[0] in given:
            found[given.index(node.args[0])] = node.args[1]
    return {
        base: node
        for base, node in found.items()
        if isinstance(node, fx.Node) and _are_alike(node.meta.get("val"), given[base].meta.get("val"))
    }


def _chain(gm: fx.GraphModule, output: int, contents: fx.Node | None) -> list[fx.Node]:
    """From `contents` to the output, view by view; empty if the output is made otherwise."""
    node = _items(gm.graph.output_node())[output]
    chain: list[fx.Node] = []
    while isinstance(node, fx.Node):
        chain.insert(0, node)
        if node is contents:
            return chain
        if not is_view_node(node):
            break
        node = node.args[0]
    return []


def _are_alike(one: object, other: object) -> bool:
    """Tell if two are tensors of one type and, as far as is known, of one shape."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.dtype == other.dtype and are_equal_sizes(one.shape, other.shape)
