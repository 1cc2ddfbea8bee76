"""Collectives in place in Dynamo's graphs, which AOTAutograd refuses, become collectives and copies.

`all_reduce_(x)` becomes `x.copy_(wait_tensor(all_reduce(x)))`. The operand is overwritten where the program
waits, so what lies between start and wait still overlaps. A program that reads the operand there reads what
it was before; in eager mode that is a race. Without a wait in the graph it is overwritten at once.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx

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
class _InPlace:
    """A call in place: what takes its stead, and the tensors that it writes, one by one or as a list."""

    node: fx.Node
    functional: Any
    written: tuple[fx.Node, ...]
    is_list: bool


def write_collectives_out(gm: fx.GraphModule) -> None:
    """Let Dynamo's graph `gm`, in place, hold no collective that writes into its operand."""
    calls = [found for node in gm.graph.nodes if (found := _match_in_place(node)) is not None]
    for call in calls:
        _replace(gm.graph, call)
    if calls:
        gm.recompile()


def _name(target: object) -> str:
    """`"wait_tensor"` of a functional collective or an overload of one; empty for anything else."""
    packet = getattr(target, "overloadpacket", target)
    namespace, _, name = str(packet).rpartition(".")
    return name if namespace == _NAMESPACE else ""


def _match_in_place(node: fx.Node) -> _InPlace | None:
    found = _OUT_OF_PLACE.get(_name(node.target)) if node.op == "call_function" else None
    if found is None:
        return None
    name, argument, position = found
    given = node.kwargs.get(argument, node.args[position] if 0 <= position < len(node.args) else None)
    items = given if isinstance(given, list | tuple) else (given,)
    written = tuple(item for item in items if isinstance(item, fx.Node))
    if len(written) != len(items):
        return None
    functional = getattr(torch.ops._c10d_functional, name).default
    return _InPlace(node, functional, written, isinstance(given, list | tuple))


def _replace(graph: fx.Graph, call: _InPlace) -> None:
    node = call.node
    kwargs = {name: value for name, value in node.kwargs.items() if name != "out"}
    with graph.inserting_before(node):
        started = graph.call_function(call.functional, node.args, kwargs)
    behind, position = {node}, node
    while (position := position.next).op != "root":
        behind.add(position)
    for number, written in enumerate(call.written):
        names = [written, *_results(call, number)]
        waits = [one for one in behind if _name(one.target) == "wait_tensor" and one.args[0] in names]
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


def _results(call: _InPlace, number: int) -> list[fx.Node]:
    """The nodes for result `number` of the call, which is the tensor that it has written."""
    if not call.is_list:
        return [call.node]
    return [user for user in call.node.users if user.target is operator.getitem and user.args[1] == number]
