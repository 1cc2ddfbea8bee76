"""Exponentials that only sums of at least 1 see: of distances from the largest of what is summed.

The sum of a softmax has a term exp(0). Terms that f32 could only hold as subnormal numbers, below 2^-126, are
nothing beside it, so they may be 0: the hardware's exponential flushes them, and takes three instructions
less where it may.
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Op, Reduce, Scalar
from coilwork_triton.facts.kernel_analysis import Users


def beside_one(order: Sequence[Scalar], roots: Sequence[Scalar], users: Users) -> frozenset[Scalar]:
    """Return those exponentials of f32 among `order`, all scalars of a kernel, which stores and checks
    `roots`.
    """
    stored = frozenset(roots)
    found: set[Scalar] = set()
    for node in order:
        if isinstance(node, Op) and node.op == "exp" and node.dtype is DType.F32 and node not in stored:
            axes = _largest_of(node.operands[0])
            if axes is not None and users[node] and all(_sums_along(user, axes) for user in users[node]):
                found.add(node)
    return frozenset(found)


def _largest_of(distance: Scalar) -> frozenset[object] | None:
    """The axes along which `distance` is one from the largest value; None if it is none."""
    if not isinstance(distance, Op) or distance.op != "sub":
        return None
    value, largest = distance.operands
    if isinstance(largest, Reduce) and largest.kind == "max" and largest.operands == (value,):
        return frozenset(largest.axes)
    return None


def _sums_along(user: Scalar, axes: frozenset[object]) -> bool:
    return isinstance(user, Reduce) and user.kind == "sum" and frozenset(user.axes) == axes
