"""How values of open sizes lie that a forward graph saves for its backward graph.

Autograd carries the strides of such values as numbers alone. Where sizes are open, the order of dimensions
says how a value without gaps lies: for each dimension a number below zero, -1 for the innermost. The
compilation of the forward graph writes it into a mark that the value has in both graphs, and that of the
backward graph, which comes after, reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

SAVED_LAYOUT: Final = "coilwork_saved_layout"
"""Key of `node.meta`: the `SavedLayout` of a saved value, and of the backward graph's input that it is."""


@dataclass(slots=True)
class SavedLayout:
    """The mark. `order`: of the dimensions; None: as captured, or as autograd is told."""

    order: tuple[int, ...] | None = None


def find_order(
    sizes: Sequence[Any], strides: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> tuple[int, ...] | None:
    """The order of dimensions of a value without gaps; None: it has some, or that is not known. `is_same`
    tells if two sizes surely are one.
    """
    order = [0] * len(sizes)
    left, step = list(range(len(sizes))), 1
    for place in range(1, len(sizes) + 1):
        fitting = [k for k in left if is_same(strides[k], step)]
        if not fitting:
            # one element has no neighbour, and any stride
            fitting = [k for k in left if is_same(sizes[k], 1)]
        if not fitting:
            return None
        inner = fitting[-1]
        order[inner] = -place
        left.remove(inner)
        step = step * sizes[inner]
    return tuple(order)


def nest_strides(sizes: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """The strides of a value of `sizes` without gaps, whose dimensions are in `order`."""
    strides: list[Any] = [0] * len(sizes)
    step: Any = 1
    for dimension in sorted(range(len(sizes)), key=lambda k: -order[k]):
        strides[dimension] = step
        step = step * sizes[dimension]
    return tuple(strides)
