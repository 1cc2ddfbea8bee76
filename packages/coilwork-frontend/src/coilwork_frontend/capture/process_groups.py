"""Process groups that a graph is given as objects: its collectives get their names, under which torch finds
them again.

Functional collectives take a group or its name since torch 2.13, and Dynamo makes an input of a group. No
program can hold such an object, and torch bakes the first one into what AOTAutograd traces, without a guard
on it. Here Dynamo gets the guard: for another group it compiles anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import fx

from coilwork_frontend.capture.input_storages import copy_of
from coilwork_frontend.torch_compat.dynamo import guard_identity, is_process_group
from coilwork_frontend.torch_compat.operators import space_of

_NAMESPACES: Final = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"}
)


def has_group_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Tell if Dynamo's graph is given process groups that only collectives read, which take names, too."""
    groups = _groups(gm, example_inputs)
    readers = {reader for node in groups for reader in node.users}
    return bool(groups) and all(_takes_names(reader) for reader in readers)


def name_groups(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any], Callable[[list[Any]], list[Any]]]:
    """A copy of `gm` without its process groups, the other inputs, and what leaves groups out before a call.

    That takes a list, which it empties.
    """
    for node in _groups(gm, example_inputs):
        guard_identity(node)
    # Dynamo calls with what its own graph takes
    gm = copy_of(gm)
    for node, group in _groups(gm, example_inputs).items():
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


def _groups(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> dict[fx.Node, Any]:
    placeholders = gm.graph.find_nodes(op="placeholder")
    pairs = zip(placeholders, example_inputs, strict=True)
    return {node: value for node, value in pairs if is_process_group(value)}


def _takes_names(node: fx.Node) -> bool:
    return node.op == "call_function" and space_of(node.target) in _NAMESPACES
