"""Results that are negated views: `(z * 2).conj().imag`, whose numbers are those in memory with the other sign.

AOTAutograd computes what is written to such a view and negates its base, where eager writes into the base: the bits
of both come out exchanged, and are exchanged again.

A program returns memory. It is given back what torch's bit would negate, so that neither side changes signs, and the bit is
set after the call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from coilwork.torch_compat.operators import is_view
from coilwork.torch_compat.tensors import creation_of, run_on_fakes, set_creation, strided_storage

Call = Callable[[list[Any]], Sequence[Any]]

_NEGATED: Final = torch.ops.aten._neg_view.default
_OTHER_TYPE: Final = torch.ops.aten.view.dtype


def restore_marks(gm: fx.GraphModule, marks: Mapping[int, bool]) -> fx.GraphModule:
    """`gm`, or a copy in which results that lie in one memory are negated views where eager's are: `marks`, by position."""
    items: Any = gm.graph.output_node().args[0]
    listed = items if isinstance(items, list | tuple) else ()
    groups: dict[fx.Node, dict[int, list[fx.Node]]] = {}
    for position, item in enumerate(listed):
        if isinstance(item, fx.Node):
            root, views = _views_behind(item)
            groups.setdefault(root, {})[position] = views
    wrong = [
        (root, group)
        for root, group in groups.items()
        if root.op == "call_function" and _are_exchanged(group, listed, marks)
    ]
    if not wrong:
        return gm
    copies: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results: list[Any] = [copies.get(item, item) for item in listed]
    last = graph.output_node()
    with graph.inserting_before(last):
        for root, group in wrong:
            memory = graph.call_function(torch.ops.aten.neg.default, (copies[root],))
            memory.meta = dict(copies[root].meta)
            memory.meta["val"] = run_on_fakes(memory)
            for position, views in group.items():
                results[position] = _negate_once(graph, memory, views, copies)
    last.args = (tuple(results),)
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _negate_once(
    graph: fx.Graph, memory: fx.Node, views: Sequence[fx.Node], copies: Mapping[fx.Node, fx.Node]
) -> fx.Node:
    """`views` of what `memory` is negated: those that do not negate, and one that does if that is needed."""
    is_negated = True
    found = memory
    for view in views:
        if view.target is _NEGATED:
            is_negated = not is_negated
            continue
        (source, *_) = view.all_input_nodes
        replaced = {**copies, source: found}
        found = graph.node_copy(view, replaced.__getitem__)
        found.meta["val"] = run_on_fakes(found)
    if is_negated:
        found = graph.call_function(_NEGATED, (found,))
        found.meta["val"] = run_on_fakes(found)
    return found


def _are_exchanged(
    group: Mapping[int, Sequence[fx.Node]], results: Sequence[Any], marks: Mapping[int, bool]
) -> bool:
    """Tell if the bits of all results of `group` of which eager's are known are not eager's."""
    known = [position for position in group if position in marks]
    memory = {_storage(results[position]) for position in group}
    others = {_storage(result) for position, result in enumerate(results) if position not in group}
    is_movable = not memory & others and all(
        view.target is not _OTHER_TYPE for views in group.values() for view in views
    )
    return (
        bool(known)
        and is_movable
        and all(_is_negated(results[position]) is not marks[position] for position in known)
    )


def _views_behind(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The node that `node` is a view of, and the views from there to it."""
    views: list[fx.Node] = []
    while _is_view_or_part(node) and isinstance(node.args[0], fx.Node):
        views.insert(0, node)
        node = node.args[0]
    return node, views


def _is_view_or_part(node: fx.Node) -> bool:
    """Tell if `node` is a view, one of several that an operator gives, or all of these."""
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, fx.Node) and source.op == "call_function" and is_view(source.target)


def returning_memory(gm: fx.GraphModule, returned: int | None) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """`gm`, or a copy that returns what lies in memory, and the positions of results that are negated views of that.

    Only the first `returned` results go to the caller, `None`: all. What is computed with the other sign, or negated
    before the graph is entered, stays.
    """
    items: Any = gm.graph.output_node().args[0]
    listed = items if isinstance(items, list | tuple) else ()
    chains = {position: _chain(item) for position, item in enumerate(listed[:returned])}
    chains = {position: chain for position, chain in chains.items() if chain}
    if not chains:
        return gm, ()
    copies: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    last = graph.output_node()
    results: list[Any] = [copies.get(item, item) for item in listed]
    with graph.inserting_before(last):
        for position, (negation, *views) in chains.items():
            memory = copies[negation].args[0]
            assert isinstance(memory, fx.Node)
            replaced = {**copies, negation: memory}
            for node in views:
                replaced[node] = graph.node_copy(node, replaced.__getitem__)
                replaced[node].meta["val"] = run_on_fakes(replaced[node])
            results[position] = replaced[(negation, *views)[-1]]
    last.args = (tuple(results),)
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made, tuple(chains)


def with_negated_results(call: Call, positions: Sequence[int]) -> Call:
    """`call`, whose results at `positions` are returned as negated views."""
    if not positions:
        return call

    def negating(args: list[Any]) -> Sequence[Any]:
        results = list(call(args))
        for position in positions:
            memory = results[position]
            creation = creation_of(memory)
            negated = _NEGATED(memory)
            # it takes the writes that the view takes
            results[position] = negated if creation is None else set_creation(negated, creation)
        return results

    return negating


def _chain(item: object) -> list[fx.Node]:
    """The only negation that a negated result is a view of, and the views from there to the result; empty if there is none."""
    chain: list[fx.Node] = []
    node = item
    while isinstance(node, fx.Node) and _is_negated(node) and _is_view_or_part(node):
        chain.insert(0, node)
        if node.target is _NEGATED:
            return chain
        node = node.args[0]
    return []


def _storage(node: object) -> int | None:
    return strided_storage(node.meta.get("val")) if isinstance(node, fx.Node) else None


def _is_negated(node: fx.Node) -> bool:
    """Tell if `node` is a negated tensor, or several."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    return bool(values) and all(isinstance(part, torch.Tensor) and part.is_neg() for part in values)
