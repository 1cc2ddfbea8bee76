"""Make the forward and the backward graph of a joint graph, for the values that are saved between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import torch

from coilwork_lowering.facts.alias_analysis import is_wait
from coilwork_lowering.joint.indexed_joint import IndexedJoint, is_item
from coilwork_lowering.torch_compat.graphs import copy_node
from coilwork_lowering.torch_compat.partitioning import (
    SIZES,
    describe_saved,
    get_bound_symbol,
    is_seed,
    list_symbols,
    make_lazy_module,
)


class ForeignResultError(ValueError):
    """A result of one half is computed of what that half does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """A part of a joint graph, by positions.

    Attributes:
        inputs: what it is given, in order.
        calls: what it computes, in order.
        results: what it returns: positions, numbers and None.
    """

    inputs: Sequence[int]
    calls: Sequence[int]
    results: Sequence[Any]


def extract(
    joint: IndexedJoint,
    half: Literal["forward", "backward"],
    inputs: Sequence[int],
    results: Sequence[Any],
) -> Extract:
    """Return the calls that compute `results` from `inputs`, and those with effects that `inputs` allow.

    Raises:
        ForeignResultError: they are not enough for a result.
    """
    nodes, operands = joint.nodes, joint.operands
    given = bytearray(len(nodes))
    for at in inputs:
        given[at] = 1
    foreign = joint.must_be_in_backward if half == "forward" else joint.must_be_in_forward
    known = bytearray(given)
    for at, node in enumerate(nodes):
        if node.op != "placeholder" and not foreign[at] and not known[at]:
            known[at] = all(known[operand] for operand in operands[at])
    returned = [_find_result(joint, known, result) for result in results]
    needed = bytearray(len(nodes))
    for result in returned:
        if isinstance(result, _Position):
            needed[result.at] = 1
    calls: list[int] = []
    for at in reversed(range(len(nodes))):
        if given[at] or not known[at] or not (needed[at] or joint.is_impure[at]):
            continue
        calls.append(at)
        for operand in operands[at]:
            needed[operand] = 1
    calls.reverse()
    return Extract(inputs=inputs, calls=calls, results=returned)


@dataclass(frozen=True, slots=True)
class _Position:
    """A node that is a result."""

    at: int


def _find_result(joint: IndexedJoint, known: bytearray, result: Any) -> Any:
    if not isinstance(result, torch.fx.Node):
        return result
    at = joint.positions[result]
    if not known[at] and joint.must_be_in_backward[at] and joint.traits[at].is_copy:
        # an input that the backward overwrites is the forward's as it comes
        at = joint.operands[at][0]
    if not known[at]:
        raise ForeignResultError(result.name)
    return _Position(at)


# ---- what is saved ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The values that the forward hands over, by positions: tensors and sizes.

    The tensors from number `unchecked` on are saved without a check of their version.
    """

    tensors: Sequence[int]
    unchecked: int
    sizes: Sequence[int]


def settle_saved(joint: IndexedJoint, chosen: Iterable[int]) -> Saved:
    """Return those of the `chosen` values that the backward reads, and the sizes in what it is given."""
    sizes: list[int] = []
    tensors: list[int] = []
    for at in chosen:
        if not isinstance(joint.nodes[at].meta.get("val"), SIZES):
            tensors.append(at)
        elif not _is_only_asserted(joint.nodes[at]):
            sizes.append(at)
    tangents = [at for at, node in enumerate(joint.nodes) if is_tangent(node)]
    draft = extract(
        joint,
        "backward",
        [*sizes, *tensors, *tangents, *_list_backward_seeds(joint)],
        joint.list_results(forward=False),
    )
    read = _list_read(joint, draft)
    tensors = [at for at in tensors if at in read]
    tensors.sort(key=lambda at: bool(joint.nodes[at].meta.get("saved_tensor_with_no_vc_check")))
    unchecked = sum(not joint.nodes[at].meta.get("saved_tensor_with_no_vc_check") for at in tensors)
    sizes = _bind_symbols(joint, [at for at in sizes if at in read], [*tensors, *tangents])
    return Saved(tensors=tensors, unchecked=unchecked, sizes=sizes)


def _list_read(joint: IndexedJoint, backward: Extract) -> Set[int]:
    """Inputs of `backward` that it reads, or returns. One that is only waited for is not."""
    read = {result.at for result in backward.results if isinstance(result, _Position)}
    unread = _find_unread(joint, backward, read)
    for at in backward.calls:
        if at not in unread or not is_wait(joint.nodes[at].target):
            read.update(joint.operands[at])
    return read


def _find_unread(joint: IndexedJoint, backward: Extract, returned: Set[int]) -> Set[int]:
    operands = {operand for at in backward.calls for operand in joint.operands[at]}
    return {at for at in backward.calls if at not in operands and at not in returned}


def _bind_symbols(joint: IndexedJoint, sizes: Sequence[int], values: Sequence[int]) -> list[int]:
    """`sizes`, those that are symbols themselves first, after which come the other symbols of what the
    backward is given.
    """
    binding: list[int] = []
    derived: list[int] = []
    bound: set[Any] = set()
    for at in sizes:
        symbol = get_bound_symbol(joint.nodes[at])
        (derived if symbol is None else binding).append(at)
        bound.update(() if symbol is None else (symbol,))
    binders: dict[Any, int] | None = None
    for at in (*derived, *values):
        value = joint.nodes[at].meta.get("val")
        if value is None or not _is_open(value):
            continue
        if binders is None:
            binders = _find_binders(joint)
        for symbol in list_symbols(value):
            if symbol not in bound:
                bound.add(symbol)
                binding += [binders[symbol]] if symbol in binders else []
    return binding + derived


def _is_open(value: object) -> bool:
    """Tell if `value` may have symbols."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        return any(type(number) is not int for number in numbers)
    return not isinstance(value, int | float)


def _find_binders(joint: IndexedJoint) -> dict[Any, int]:
    binders: dict[Any, int] = {}
    for at, node in enumerate(joint.nodes):
        if isinstance(node.meta.get("val"), torch.SymInt):
            symbol = get_bound_symbol(node)
            if symbol is not None:
                binders.setdefault(symbol, at)
    return binders


def _is_only_asserted(node: torch.fx.Node) -> bool:
    return (
        isinstance(node.meta.get("val"), torch.SymBool)
        and bool(node.users)
        and all(user.target is torch.ops.aten._assert_scalar.default for user in node.users)
    )


def is_tangent(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def _list_backward_seeds(joint: IndexedJoint) -> list[int]:
    return [at for at, node in enumerate(joint.nodes) if is_seed(node, forward=False)]


# ---- the order of the backward ----


def order_backward(joint: IndexedJoint, backward: Extract) -> Extract:
    """`backward` with what it computes again right before the first call that reads it.

    In the joint graph's order all of it would come first, and lie in memory until it is read. What nothing
    behind the first gradient reads is left out, unless it copies into an input.
    """
    calls = backward.calls
    tangents = {at for at in backward.inputs if is_tangent(joint.nodes[at])}
    start = next(
        (place for place, at in enumerate(calls) if not tangents.isdisjoint(joint.operands[at])), None
    )
    returned = [result.at for result in backward.results if isinstance(result, _Position)]
    if start is None:
        if tangents.isdisjoint(returned):
            return backward
        start = len(calls)
    is_call = bytearray(len(joint.nodes))
    for at in calls:
        is_call[at] = 1
    ordered: list[int] = []

    def place(wanted: Iterable[int]) -> None:
        found: list[int] = []
        pending = list(wanted)
        while pending:
            at = pending.pop()
            if is_call[at]:
                is_call[at] = 0
                found.append(at)
                pending.extend(joint.operands[at])
        ordered.extend(sorted(found))

    for at in calls[:start]:
        if joint.traits[at].is_copy:
            place((at,))
    for at in calls[start:]:
        place((at,))
    place(returned)
    return Extract(inputs=backward.inputs, calls=ordered, results=backward.results)


def raise_items(joint: IndexedJoint, part: Extract) -> Extract:
    """`part` with values taken out of tuples right behind the calls that return these.

    The other values of a tuple are free then.
    """
    computed = set(part.calls)
    items: dict[int, list[int]] = {}
    for at in part.calls:
        if is_item(joint.nodes[at]) and len(joint.operands[at]) == 1 and joint.operands[at][0] in computed:
            items.setdefault(joint.operands[at][0], []).append(at)
    raised = {at for group in items.values() for at in group}
    calls: list[int] = []
    for at in part.calls:
        if at not in raised:
            calls.append(at)
        calls += items.get(at, ())
    return Extract(inputs=part.inputs, calls=calls, results=part.results)


# ---- graphs ----


def build_forward(joint: IndexedJoint, root: torch.nn.Module, saved: Saved) -> torch.fx.GraphModule:
    """Return the graph that returns the forward's results, then what is `saved`: tensors, then sizes."""
    handed = [joint.nodes[at] for at in (*saved.tensors, *saved.sizes)]
    part = extract(
        joint, "forward", joint.list_forward_inputs(), [*joint.list_results(forward=True), *handed]
    )
    notes = [
        *joint.notes[: joint.forward_results],
        *describe_saved(len(handed), range(saved.unchecked, len(saved.tensors))),
    ]
    return make_lazy_module(root, _build_graph(joint, raise_items(joint, part), notes))


def build_backward(joint: IndexedJoint, root: torch.nn.Module, saved: Saved) -> torch.fx.GraphModule:
    """Return the graph that takes what is `saved`, sizes first, then gradients, and returns the backward's
    results.
    """
    tangents = [at for at, node in enumerate(joint.nodes) if is_tangent(node)]
    inputs = [*saved.sizes, *saved.tensors, *tangents, *_list_backward_seeds(joint)]
    part = extract(joint, "backward", inputs, joint.list_results(forward=False))
    part = raise_items(joint, order_backward(joint, part))
    graph = _build_graph(joint, part, list(joint.notes[joint.forward_results :]))
    for node in graph.nodes:
        if node.op in ("call_function", "get_attr"):
            node.meta["autograd_backward"] = True
    return make_lazy_module(root, graph)


def _build_graph(joint: IndexedJoint, part: Extract, notes: Sequence[Any]) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    find: Callable[[torch.fx.Node], torch.fx.Node] = made.__getitem__
    for at in part.inputs:
        node = joint.nodes[at]
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    for at in part.calls:
        node = joint.nodes[at]
        made[node] = copy_node(graph, node, find)
    results = tuple(
        find(joint.nodes[result.at]) if isinstance(result, _Position) else result for result in part.results
    )
    last = graph.output(results)
    last.meta["desc"] = list(notes)
    last.meta["output_stack_traces"] = [
        result.meta.get("stack_trace") if isinstance(result, torch.fx.Node) else None for result in results
    ]
    return graph
