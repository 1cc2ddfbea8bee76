"""Floats that a graph reads from tensors, and that a guard has made a constant, stand in it as numbers.

A Python float that differs from call to call is captured as a tensor. Where torch had to decide something by
it, as the formula of a gradient does by a factor, the graph holds for that one value. A float that is read
all the same would be saved for the backward, which takes tensors and integers.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import map_arg

from coilwork_lowering.torch_compat.sizes import known_float

_READ: Final = torch.ops.aten._local_scalar_dense.default


def write_out_known_numbers(joint_gm: torch.fx.GraphModule) -> int:
    """Put such numbers where they are used in a joint graph, in place; returns how many there are."""
    graph = joint_gm.graph
    known = {
        node: number
        for node in graph.nodes
        if node.target is _READ and (number := known_float(node.meta.get("val"))) is not None
    }
    for node in known:
        for user in [user for user in node.users if user.op != "output"]:
            user.args = map_arg(user.args, lambda given: known.get(given, given))
            user.kwargs = map_arg(user.kwargs, lambda given: known.get(given, given))
        if not node.users:
            graph.erase_node(node)
    if known:
        joint_gm.recompile()
    return len(known)
