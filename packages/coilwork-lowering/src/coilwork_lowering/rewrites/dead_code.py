"""Calls whose results nobody reads."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from coilwork_lowering.torch_compat.operators import Overload, schema_of


def drop_dead_code(gm: fx.GraphModule) -> int:
    """Take out of `gm`, in place, pure calls without readers; returns how many.

    What writes, checks, has effects or returns nothing stays; so does what draws random numbers, since later
    ones would change, and what tells sizes, which others may mention.
    """
    dropped = drop_dead_code_in(gm.graph)
    if dropped:
        gm.recompile()
    return dropped


def drop_dead_code_in(graph: fx.Graph) -> int:
    """`drop_dead_code` of a graph that is no module yet, or is still being changed."""
    dropped = 0
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and _is_pure(node.target):
            graph.erase_node(node)
            dropped += 1
    return dropped


def _is_pure(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, Overload) or target.namespace not in ("aten", "prims"):
        return False
    schema = schema_of(target)
    kept = {
        torch.Tag.nondeterministic_seeded,
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
    }
    makes_tensors = bool(schema.returns) and all("Tensor" in str(r.type) for r in schema.returns)
    named = schema.name.split("::")[-1]
    checks = "assert" in named or "check" in named or "token" in named
    return makes_tensors and not checks and not schema.is_mutable and kept.isdisjoint(target.tags)
