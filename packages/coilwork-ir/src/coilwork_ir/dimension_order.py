"""The order in which dimensions are nested in memory without gaps, and the strides of such an order.

Sizes and strides may be numbers, index expressions or torch's symbolic integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def find_dimension_order(
    sizes: Sequence[Any], strides: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> tuple[int, ...] | None:
    """Return the dimensions of a value without gaps, the outermost first.

    None: it has gaps, or nothing tells.

    Args:
        sizes: elements along each dimension.
        strides: elements between neighbours along each dimension. A dimension of one element may have any
            stride.
        is_same: tells if two sizes, or strides, are certain to be equal.
    """
    left = list(range(len(sizes)))
    inwards: list[int] = []
    step: Any = 1
    while left:
        fitting = [k for k in left if is_same(strides[k], step)] or [k for k in left if is_same(sizes[k], 1)]
        if not fitting:
            return None
        inner = fitting[-1]
        inwards.append(inner)
        left.remove(inner)
        step = step * sizes[inner]
    return tuple(reversed(inwards))


def make_dense_strides(sizes: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Return the strides that nest dimensions of `sizes` in `order`, the outermost first, without gaps."""
    strides: list[Any] = [1] * len(sizes)
    step: Any = 1
    for dimension in reversed(order):
        strides[dimension] = step
        step = step * sizes[dimension]
    return tuple(strides)
