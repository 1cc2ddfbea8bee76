"""Rows that end where data says: the loop over the reduction may end at the longest row of a program.

Sums of sorted segments are of this kind; their lengths differ a great deal, and most are short.
"""

from __future__ import annotations

from collections.abc import Iterable

from coilwork_ir.scalar import Reduce, Scalar, leading_points, postorder


def points_of(node: Reduce) -> Scalar | None:
    """How many points along its only long axis `node` combines at most; None if perhaps all of them."""
    return leading_points(node.kind, node.operands[0], node.axes) if len(node.operands) == 1 else None


def is_ragged(roots: Iterable[Scalar]) -> bool:
    """True if there are reductions below `roots`, and all of them end where data says."""
    found = [points_of(node) for node in postorder(tuple(roots)) if isinstance(node, Reduce)]
    return bool(found) and all(count is not None for count in found)
