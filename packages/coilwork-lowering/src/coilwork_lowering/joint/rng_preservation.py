"""Random numbers that a checkpoint would draw again are drawn once, and kept for the backward.

A checkpoint asks that its operators be computed again. For those that draw numbers the partitioner then keeps
the state of the generator in the forward and sets it in the backward, by operators that run on the host
between two kernels, and that no program can contain. The result of such an operator is kept instead, a byte
per element for dropout that ATen draws: both halves agree since there is one set of numbers. Dropout that
generated code draws comes before: `rng_remat.py`.
"""

from __future__ import annotations

import operator

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_lowering.torch_compat.operators import Overload

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def keep_random_numbers(joint_gm: torch.fx.GraphModule) -> int:
    """Mark the results of operators of a joint graph that draw numbers, in place; returns of how many
    operators.
    """
    found = [
        node
        for node in joint_gm.graph.nodes
        if isinstance(node.target, Overload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
        and node.meta.get("recompute") in _AGAIN
    ]
    for node in found:
        items = [user for user in node.users if user.target is operator.getitem]
        if items:
            # the tuple itself cannot be kept
            del node.meta["recompute"]
        for kept in items or (node,):
            kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return len(found)
