"""Inputs that the forward overwrites and the backward computes with: it gets the values that they had before.

Buffers are in memory anyway, so that torch's partitioner lets the backward compute again from them: by then
they hold other numbers. A copy of such an input, which must not be made again, stands in its place wherever
it is read. It is in memory only if nothing computed from it is what the backward needs.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.utils.checkpoint import CheckpointPolicy

_COPY: Final = torch.ops.aten.copy_.default
_CLONE: Final = torch.ops.aten.clone.default


def keep_overwritten_inputs(joint_gm: torch.fx.GraphModule) -> int:
    """Read such inputs of a joint graph through copies, in place; returns how many there are."""
    graph = joint_gm.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    backward = _behind([node for node in placeholders if "tangents" in str(node.target)])
    found = [node for node in placeholders if _is_overwritten(node, backward) and _behind([node]) & backward]
    for node in found:
        with graph.inserting_after(placeholders[-1]):
            copy = graph.call_function(_CLONE, (node,))
        copy.meta["val"] = _CLONE(node.meta["val"])
        copy.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        for user in list(node.users):
            if user is not copy and not _writes(user, node):
                user.replace_input_with(node, copy)
    if found:
        joint_gm.recompile()
    return len(found)


def _is_overwritten(node: torch.fx.Node, backward: set[torch.fx.Node]) -> bool:
    """By the forward."""
    return any(_writes(user, node) and user not in backward for user in node.users)


def _writes(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    return user.target is _COPY and user.args[0] is node


def _behind(nodes: list[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return what is computed from `nodes`; not what is returned."""
    found: set[torch.fx.Node] = set()
    pending = list(nodes)
    while pending:
        new = [user for user in pending.pop().users if user.op != "output" and user not in found]
        found.update(new)
        pending.extend(new)
    return found
