"""Handle torch's lazy negation and conjugation, which set a bit and leave the numbers in memory as they are.

Generated kernels read memory and not the bits. Marked inputs are replaced by resolved copies in the captured
layout, and writes to such a copy go back to the input. Dynamo guards the bits of inputs; gradients that a
backward graph is given have no guard, so each call looks at them. A result that carries a bit, such as
`(z * 2).mH`, is returned unmarked, and the bit is set after the call. AOTAutograd marks the base where eager
mode marks the view that was written to; `restore_marks` swaps them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import is_tangent
from coilwork_frontend.torch_compat.operators import is_view_node
from coilwork_frontend.torch_compat.tensors import (
    Marks,
    get_marks,
    identify_node_storage,
    leave_fake_mode,
    run_on_fakes,
)
from coilwork_ir.calling_convention import InputRole, OutputRole, Value

# ---- Inputs ----


_COPY: Final = torch.ops.aten.copy_.default


def resolve_constant(value: torch.Tensor) -> torch.Tensor:
    """Return a constant of a graph without the negative bit; the graph itself handles the conjugate bit."""
    if not value.is_neg():
        return value
    with leave_fake_mode():
        return value.resolve_neg()


def make_resolve_roles(gm: fx.GraphModule) -> Iterator[InputRole]:
    """Yield the roles of inputs of `gm` that may carry a bit: those that did when captured, and gradients.

    An input that was captured as a conjugate stays one: the graph takes it into account.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(placeholders):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            continue
        if value.is_neg() or (is_tangent(node) and (value.is_floating_point() or value.is_complex())):
            yield InputRole(
                value=Value("in", position),
                kind="resolved",
                is_update=any(user.target is _COPY and user.args[0] is node for user in node.users),
                is_conjugate=value.is_conj(),
            )


# ---- Results ----


_OTHER_TYPE: Final = torch.ops.aten.view.dtype


@dataclass(frozen=True, slots=True)
class _MarkOperators:
    """The operators of one of torch's bits.

    Attributes:
        view: flips the bit.
        compute: negates or conjugates the numbers in memory.
        unlike: views of a marked tensor that are not marked views of the same memory.
    """

    view: Any
    compute: Any
    unlike: frozenset[object]


# in the order of the fields of `Marks`
_OPERATORS: Final = (
    _MarkOperators(
        torch.ops.aten._neg_view.default, torch.ops.aten.neg.default, unlike=frozenset({_OTHER_TYPE})
    ),
    _MarkOperators(
        torch.ops.aten._conj.default,
        torch.ops.aten._conj_physical.default,
        unlike=frozenset(
            {_OTHER_TYPE, torch.ops.aten.view_as_real.default, torch.ops.aten.view_as_complex.default}
        ),
    ),
)
_MARKING_VIEWS: Final = frozenset(operators.view for operators in _OPERATORS)


def restore_marks(gm: fx.GraphModule, marks: Mapping[int, Marks]) -> fx.GraphModule:
    """Return `gm` with results in one memory marked as in eager mode: `marks`, by position.

    The graph is copied if anything changes.
    """
    for index, operators in enumerate(_OPERATORS):
        expected = {position: wanted[index] for position, wanted in marks.items()}
        gm = _restore_mark(gm, expected, index, operators)
    return gm


def _restore_mark(
    gm: fx.GraphModule, expected: Mapping[int, bool], index: int, operators: _MarkOperators
) -> fx.GraphModule:
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
        if root.op == "call_function" and _are_marks_swapped(group, listed, expected, index)
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
            memory = graph.call_function(operators.compute, (copies[root],))
            memory.meta = dict(copies[root].meta)
            memory.meta["val"] = run_on_fakes(memory)
            for position, views in group.items():
                results[position] = _mark_once(graph, memory, views, copies, operators)
    last.args = (tuple(results),)
    restored = fx.GraphModule(gm, graph)
    restored.meta.update(gm.meta)
    return restored


def _mark_once(
    graph: fx.Graph,
    memory: fx.Node,
    views: Sequence[fx.Node],
    copies: Mapping[fx.Node, fx.Node],
    operators: _MarkOperators,
) -> fx.Node:
    """Apply `views` to `memory`, whose numbers have the other sign or are conjugated.

    Views that mark are left out, and one is added at the end if their number is even.
    """
    is_marked = True
    result = memory
    for view in views:
        if view.target is operators.view:
            is_marked = not is_marked
            continue
        (source, *_) = view.all_input_nodes
        replaced = {**copies, source: result}
        result = graph.node_copy(view, replaced.__getitem__)
        result.meta["val"] = run_on_fakes(result)
    if is_marked:
        result = graph.call_function(operators.view, (result,))
        result.meta["val"] = run_on_fakes(result)
    return result


def _are_marks_swapped(
    group: Mapping[int, Sequence[fx.Node]], results: Sequence[Any], expected: Mapping[int, bool], index: int
) -> bool:
    """Tell if bit number `index` of the results of `group` is the opposite of eager's, for all that are
    known."""
    known = [position for position in group if position in expected]
    # hardly any graph gets further, and what follows looks at all results
    if not known or any(_marks(results[position])[index] is expected[position] for position in known):
        return False
    if any(view.target in _OPERATORS[index].unlike for views in group.values() for view in views):
        return False
    memory = {identify_node_storage(results[position]) for position in group}
    others = (
        identify_node_storage(result) for position, result in enumerate(results) if position not in group
    )
    return memory.isdisjoint(others)


def _views_behind(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """Return the node that `node` is a view of, and the views from there to `node`."""
    views: list[fx.Node] = []
    while is_view_node(node) and isinstance(node.args[0], fx.Node):
        views.insert(0, node)
        node = node.args[0]
    return node, views


def return_unmarked(
    gm: fx.GraphModule, returned: int | None
) -> tuple[fx.GraphModule, tuple[tuple[int, Marks], ...]]:
    """Return `gm` with results as they are in memory, and the positions and marks of those that carried
    marks.

    Views that set or clear a bit are left out. Only the first `returned` results go to the caller (`None`:
    all) and change. Inputs that are marked stay marked. The graph is copied if anything changes.
    """
    items: Any = gm.graph.output_node().args[0]
    listed = items if isinstance(items, list | tuple) else ()
    chains = {position: _find_marking_views(item) for position, item in enumerate(listed[:returned])}
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
        for position, chain in chains.items():
            replaced = dict(copies)
            for node in chain:
                if node.target in _MARKING_VIEWS:
                    (source,) = node.args
                    assert isinstance(source, fx.Node)
                    replaced[node] = replaced[source]
                else:
                    replaced[node] = graph.node_copy(node, replaced.__getitem__)
                    replaced[node].meta["val"] = run_on_fakes(replaced[node])
            results[position] = replaced[chain[-1]]
    last.args = (tuple(results),)
    unmarked = fx.GraphModule(gm, graph)
    unmarked.meta.update(gm.meta)
    return unmarked, tuple((position, _marks(listed[position])) for position in chains)


def make_mark_roles(marked: Sequence[tuple[int, Marks]], *, are_gradients: bool) -> tuple[OutputRole, ...]:
    """Return the roles that mark results after the call; with `are_gradients`, as views, as in eager mode."""
    return tuple(
        OutputRole(
            value=Value("out", position),
            kind="marked",
            marks=(marks.negative, marks.conjugate),
            is_gradient=are_gradients,
        )
        for position, marks in marked
    )


def _find_marking_views(item: object) -> list[fx.Node]:
    """Return the views from what memory holds to the result `item`, from the first that marks on.

    Empty if no view marks.
    """
    chain: list[fx.Node] = []
    length = 0
    node = item
    while isinstance(node, fx.Node) and is_view_node(node):
        source = node.args[0]
        if not isinstance(source, fx.Node) or (node.target is _OTHER_TYPE and any(_marks(source))):
            break
        chain.insert(0, node)
        if node.target in _MARKING_VIEWS and not any(_marks(source)):
            length = len(chain)
        node = source
    return chain[len(chain) - length :]


def _marks(node: fx.Node) -> Marks:
    """Return the marks of the tensor of `node`, or those that its tensors have in common."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    marks = [get_marks(part) for part in values]
    return Marks(*map(all, zip(*marks, strict=True))) if marks else Marks()
