"""Operators that return their operand, taken out of a joint graph before it is partitioned."""

from __future__ import annotations

from typing import Any

import torch

from coilwork_ir.operators import find_target_info
from coilwork_lowering.torch_compat.operators import Overload, qualified_name


def drop_identities(graph: torch.fx.Graph) -> int:
    """Let readers of `detach` and `alias` read the operand, in place; returns how many calls went.

    In a functional graph they change nothing, but a partitioner takes them for kernels of their own, and what
    these read in the backward for values that must be in memory: it would save the `tanh` of every GELU. A
    call that the graph returns stays for that output alone, so that outputs are as many tensors as before.
    What a checkpointed region decided about them is of no consequence.
    """
    dropped = 0
    output = graph.output_node()
    for node in list(graph.nodes):
        if node.op != "call_function" or not _is_same(node.target):
            continue
        (source, *_) = node.args
        assert isinstance(source, torch.fx.Node)
        readers = [user for user in node.users if user is not output]
        for user in readers:
            user.replace_input_with(node, source)
        if not node.users:
            graph.erase_node(node)
            dropped += 1
    return dropped


def _is_same(target: Any) -> bool:
    if not isinstance(target, Overload):
        return False
    info = find_target_info(qualified_name(target))
    return info.is_view and info.is_identity
