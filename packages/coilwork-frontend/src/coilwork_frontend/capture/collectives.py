"""Prepare collectives in Dynamo's graphs for AOTAutograd.

AOTAutograd refuses collectives in place: `all_reduce_(x)` becomes `x.copy_(wait_tensor(all_reduce(x)))`. The
operand is overwritten where the program waits, so work between start and wait still overlaps. Reading the
operand there is a race in eager mode, and gives the old value here. Without a wait in the graph the operand
is overwritten at once.

A process group that is an input becomes its name, by which torch finds it. No program can hold the object,
and torch would bake the first one in; here Dynamo gets a guard, and compiles anew for another group.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.capture.input_storages import copy_graph
from coilwork_frontend.torch_compat.dynamo import guard_identity, is_process_group
from coilwork_frontend.torch_compat.operators import get_namespace

# ---- Collectives in place ----


# by operator: the one that makes a new tensor, and the name and position of the argument that is written
_OUT_OF_PLACE: Final[Mapping[str, tuple[str, str, int]]] = MappingProxyType(
    {
        "all_reduce_": ("all_reduce", "input", 0),
        "all_reduce_coalesced_": ("all_reduce_coalesced", "inputs", 0),
        "broadcast_": ("broadcast", "input", 0),
        "all_gather_into_tensor_out": ("all_gather_into_tensor", "out", -1),
        "reduce_scatter_tensor_out": ("reduce_scatter_tensor", "out", -1),
    }
)
_NAMESPACE: Final = "_c10d_functional"


@dataclass(frozen=True, slots=True)
class _InPlaceCollective:
    """A collective in place, its functional overload, and the tensors that it writes, singly or as a list."""

    node: fx.Node
    functional: Any
    written: tuple[fx.Node, ...]
    is_list: bool


def functionalize_collectives(gm: fx.GraphModule) -> None:
    """Replace collectives in place in Dynamo's graph `gm`, in place, by functional ones and copies."""
    calls = [call for node in gm.graph.nodes if (call := _match_in_place(node)) is not None]
    for call in calls:
        _replace(gm.graph, call)
    if calls:
        gm.recompile()


def _functional_name(target: object) -> str:
    """Return the name of a functional collective or its overload (`"wait_tensor"`); empty for others."""
    packet = getattr(target, "overloadpacket", target)
    namespace, _, name = str(packet).rpartition(".")
    return name if namespace == _NAMESPACE else ""


def _match_in_place(node: fx.Node) -> _InPlaceCollective | None:
    row = _OUT_OF_PLACE.get(_functional_name(node.target)) if node.op == "call_function" else None
    if row is None:
        return None
    name, argument, position = row
    operand = node.kwargs.get(argument, node.args[position] if 0 <= position < len(node.args) else None)
    items = operand if isinstance(operand, list | tuple) else (operand,)
    written = tuple(item for item in items if isinstance(item, fx.Node))
    if len(written) != len(items):
        return None
    functional = getattr(torch.ops._c10d_functional, name).default
    return _InPlaceCollective(node, functional, written, isinstance(operand, list | tuple))


def _replace(graph: fx.Graph, call: _InPlaceCollective) -> None:
    node = call.node
    kwargs = {name: value for name, value in node.kwargs.items() if name != "out"}
    with graph.inserting_before(node):
        started = graph.call_function(call.functional, node.args, kwargs)
    behind, position = {node}, node
    while (position := position.next).op != "root":
        behind.add(position)
    for number, written in enumerate(call.written):
        names = [written, *_results(call, number)]
        waits = [
            one for one in behind if _functional_name(one.target) == "wait_tensor" and one.args[0] in names
        ]
        first = min(waits, default=None)
        with graph.inserting_before(first) if first is not None else graph.inserting_after(started):
            part = graph.call_function(operator.getitem, (started, number)) if call.is_list else started
        with graph.inserting_after(part) if first is None else graph.inserting_before(first):
            waited = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (part,))
        with graph.inserting_after(waited):
            graph.call_method("copy_", (written, waited))
        for one in (*waits, *_results(call, number)):
            one.replace_all_uses_with(written)
        for one in waits:
            graph.erase_node(one)
    for number in range(len(call.written)):
        for one in _results(call, number):
            if one is not node:
                graph.erase_node(one)
    graph.erase_node(node)


def _results(call: _InPlaceCollective, number: int) -> list[fx.Node]:
    """Return the nodes that stand for result `number` of the call, the tensor that it has written."""
    if not call.is_list:
        return [call.node]
    return [user for user in call.node.users if user.target is operator.getitem and user.args[1] == number]


# ---- Process groups ----


_GROUP_NAMESPACES: Final = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"}
)


def has_group_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Tell if Dynamo's graph has process groups as inputs that only collectives read, which accept names."""
    groups = _list_groups(gm, example_inputs)
    readers = {reader for node in groups for reader in node.users}
    return bool(groups) and all(_accepts_group_names(reader) for reader in readers)


def name_groups(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any], Callable[[list[Any]], list[Any]]]:
    """Replace the process groups among the inputs of `gm` by their names.

    Returns a copy of `gm` without these inputs, the other inputs, and a function that drops groups from a
    call's arguments, a list, which it empties.
    """
    for node in _list_groups(gm, example_inputs):
        guard_identity(node)
    # Dynamo calls with what its own graph takes
    gm = copy_graph(gm)
    for node, group in _list_groups(gm, example_inputs).items():
        for reader in list(node.users):
            reader.args = tuple(group.group_name if one is node else one for one in reader.args)
            reader.kwargs = {
                key: group.group_name if one is node else one for key, one in reader.kwargs.items()
            }
        gm.graph.erase_node(node)
    gm.recompile()
    left = [position for position, value in enumerate(example_inputs) if not is_process_group(value)]

    def leave_out(args: list[Any]) -> list[Any]:
        kept = [args[position] for position in left]
        args.clear()
        return kept

    return gm, [example_inputs[position] for position in left], leave_out


def _list_groups(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> dict[fx.Node, Any]:
    placeholders = gm.graph.find_nodes(op="placeholder")
    pairs = zip(placeholders, example_inputs, strict=True)
    return {node: value for node, value in pairs if is_process_group(value)}


def _accepts_group_names(node: fx.Node) -> bool:
    return node.op == "call_function" and get_namespace(node.target) in _GROUP_NAMESPACES
