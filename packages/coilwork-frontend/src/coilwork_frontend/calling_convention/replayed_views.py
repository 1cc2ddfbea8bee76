"""Results that are views of an input whose elements share memory, as those of `expand` do: made of the input
anew, view by view.

AOTAutograd hands such a result to the caller as a view of the input, and its gradients go the way that the
view came. Where sizes are open it learns that way from the tensor that the graph returns: from the views that
it is, if torch has made them. Of any other tensor it takes place and strides, and what `as_strided` gives
back to elements that share memory is their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from coilwork_frontend.torch_compat.operators import is_view_node
from coilwork_frontend.torch_compat.sizes import are_equal_sizes
from coilwork_frontend.torch_compat.tensors import track_views
from coilwork_ir.roles import CallRole, Value


def replay_views(
    gm: fx.GraphModule, aliases: Sequence[tuple[int, int]]
) -> tuple[CallRole, Callable[..., Sequence[Any]]] | None:
    """The role of such results of `gm` among the outputs that `aliases` names, pairs (output, input), and
    what makes them; None if there are none.
    """
    (results,) = gm.graph.output_node().args
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    assert isinstance(results, list | tuple)
    replayed: dict[int, Any] = {
        output: results[output]
        for output, base in aliases
        if _shares_memory(inputs[base].meta.get("val")) and _is_open_view(results[output], inputs[base])
    }
    if not replayed:
        return None
    views, needed = _views_alone(gm, list(replayed.values()), inputs)

    def make_views(*given: Any) -> Sequence[Any]:
        with track_views():
            return views(*given)

    role = CallRole(
        kind="made",
        name="views",
        takes=tuple(Value("in", position) for position in needed),
        gives=tuple(Value("out", position) for position in replayed),
    )
    return role, make_views


def _shares_memory(value: object) -> bool:
    """Tell if elements of `value` share memory: along a dimension of more than one of them nothing is stepped
    over.
    """
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return any(
        are_equal_sizes([stride], [0]) and not are_equal_sizes([size], [1])
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )


def _is_open_view(result: object, base: fx.Node) -> bool:
    """Tell if `result` is a view of `base`, and of nothing else but sizes, some of which are open; closed
    ones AOTAutograd knows.
    """
    if not isinstance(result, fx.Node) or result is base:
        return False
    made = [
        node
        for node in _behind(result)
        if isinstance(node.meta.get("val"), torch.Tensor) and node is not base
    ]
    sizes = [size for node in made for size in node.meta["val"].shape]
    return all(is_view_node(node) for node in made) and any(isinstance(size, torch.SymInt) for size in sizes)


def _behind(result: fx.Node) -> Iterator[fx.Node]:
    """`result` and all that it is made from."""
    seen: dict[fx.Node, None] = {result: None}
    pending = [result]
    while pending:
        node = pending.pop()
        yield node
        new = [source for source in node.all_input_nodes if source not in seen]
        seen.update(dict.fromkeys(new))
        pending += new


def _views_alone(
    gm: fx.GraphModule, results: Sequence[fx.Node], inputs: Sequence[fx.Node]
) -> tuple[Callable[..., Sequence[Any]], list[int]]:
    """Return what computes `results` alone, and the positions of the inputs that it takes."""
    wanted = {node for result in results for node in _behind(result)}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node in wanted:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[result] for result in results))
    return fx.GraphModule(gm, graph), [position for position, node in enumerate(inputs) if node in wanted]
