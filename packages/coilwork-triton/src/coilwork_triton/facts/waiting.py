"""Loads that wait for each other: a search is little else, and is fast where many threads wait at once."""

from __future__ import annotations

from collections.abc import Iterable

from coilwork_ir.scalar import Load, Scalar, postorder


def loads_in_turn(roots: Iterable[Scalar]) -> int:
    """How many loads below `roots` come one after the other at most, each at a place that the one before
    decides.
    """
    turns: dict[Scalar, int] = {}
    for node in postorder(tuple(roots)):
        before = max((turns[operand] for operand in node.operands), default=0)
        turns[node] = before + isinstance(node, Load)
    return max(turns.values(), default=0)
