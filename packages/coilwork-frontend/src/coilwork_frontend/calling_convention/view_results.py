"""Return views of inputs from the inputs' own memory.

AOTAutograd gives a caller such a result as a new view of the input, with the size, strides and storage offset
of what the graph returned. Two kinds need help. A view of an input that the graph overwrites is captured as a
view of the new contents, another tensor; `return_input_views` takes it from the input. A view of an expanded
input with open sizes loses the way it was made, and with it its gradient; `replay_views` makes it again from
the input, view by view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import list_aliased_inputs, list_updated_inputs
from coilwork_frontend.torch_compat.operators import is_view_node
from coilwork_frontend.torch_compat.sizes import are_equal_sizes
from coilwork_frontend.torch_compat.tensors import run_on_fakes, track_views
from coilwork_ir.calling_convention import CallRole, Value

# ---- Views of overwritten inputs ----


_COPY = torch.ops.aten.copy_.default


def return_input_views(gm: fx.GraphModule) -> fx.GraphModule:
    """Return `gm`, the forward or inference graph being compiled, with results that are views of inputs taken
    from these inputs.
    """
    return insert_input_views(gm, list_aliased_inputs(), list_updated_inputs())


def insert_input_views(
    gm: fx.GraphModule, aliases: Sequence[tuple[int, int]], renewed: Sequence[tuple[int, int]] = ()
) -> fx.GraphModule:
    """Return `gm` with the outputs in `aliases`, pairs (output, input), as views of these inputs.

    `renewed` are pairs of an output that is the new contents of an input, and the input; the graph does not
    overwrite it itself. A result that is no view of new contents stays. The graph is copied if anything
    changes.
    """
    if not aliases:
        return gm
    contents = _find_final_contents(gm, renewed)
    chains = {output: _find_view_chain(gm, output, contents.get(base)) for output, base in aliases}
    if not any(chains.values()):
        return gm
    copies: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    last = graph.output_node()
    results = list(_list_results(last))
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
    result = fx.GraphModule(gm, graph)
    result.meta.update(gm.meta)
    return result


def _list_results(output: fx.Node) -> Sequence[Any]:
    items: Any = output.args[0]
    assert isinstance(items, list | tuple)
    return items


def _find_final_contents(gm: fx.GraphModule, renewed: Sequence[tuple[int, int]]) -> dict[int, fx.Node]:
    """Return the nodes that overwrite inputs with a value of their dtype and shape, by the inputs'
    positions."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    results = _list_results(gm.graph.output_node())
    contents = {base: results[output] for output, base in renewed}
    for node in gm.graph.nodes:
        if node.target is _COPY and node.args[0] in inputs:
            contents[inputs.index(node.args[0])] = node.args[1]
    return {
        base: node
        for base, node in contents.items()
        if isinstance(node, fx.Node) and _are_alike(node.meta.get("val"), inputs[base].meta.get("val"))
    }


def _find_view_chain(gm: fx.GraphModule, output: int, contents: fx.Node | None) -> list[fx.Node]:
    """Return the nodes from `contents` to the output, view by view; empty if the output is no such view."""
    node = _list_results(gm.graph.output_node())[output]
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
    """Tell if both are tensors of one dtype and of shapes that are known to be equal."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.dtype == other.dtype and are_equal_sizes(one.shape, other.shape)


# ---- Views of expanded inputs ----


def replay_views(
    gm: fx.GraphModule, aliases: Sequence[tuple[int, int]]
) -> tuple[CallRole, Callable[..., Sequence[Any]]] | None:
    """Return the role of results that are views of expanded inputs, and the function that makes them.

    `aliases` are pairs of an output of `gm` and the input that it is a view of. None if no result needs it.
    AOTAutograd learns how a view of open sizes was made from the tensor that the graph returns. If torch has
    not made it by views, AOTAutograd uses `as_strided`, whose gradient is the mean over repeated elements.
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
    views, needed = _extract_views(gm, list(replayed.values()), inputs)

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
    """Tell if elements of `value` share memory: a dimension of several elements has stride 0."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return any(
        are_equal_sizes([stride], [0]) and not are_equal_sizes([size], [1])
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )


def _is_open_view(result: object, base: fx.Node) -> bool:
    """Tell if `result` is made from `base` by views alone, with open sizes; AOTAutograd handles static
    ones."""
    if not isinstance(result, fx.Node) or result is base:
        return False
    views = [
        node
        for node in _list_sources(result)
        if isinstance(node.meta.get("val"), torch.Tensor) and node is not base
    ]
    sizes = [size for node in views for size in node.meta["val"].shape]
    return all(is_view_node(node) for node in views) and any(isinstance(size, torch.SymInt) for size in sizes)


def _list_sources(result: fx.Node) -> Iterator[fx.Node]:
    """Yield `result` and all nodes that it is made from."""
    seen: dict[fx.Node, None] = {result: None}
    pending = [result]
    while pending:
        node = pending.pop()
        yield node
        new = [source for source in node.all_input_nodes if source not in seen]
        seen.update(dict.fromkeys(new))
        pending += new


def _extract_views(
    gm: fx.GraphModule, results: Sequence[fx.Node], inputs: Sequence[fx.Node]
) -> tuple[Callable[..., Sequence[Any]], list[int]]:
    """Return a module that computes `results` alone, and the positions of the inputs that it takes."""
    wanted = {node for result in results for node in _list_sources(result)}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node in wanted:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[result] for result in results))
    return fx.GraphModule(gm, graph), [position for position, node in enumerate(inputs) if node in wanted]
