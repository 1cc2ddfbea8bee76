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

from coilwork_ir.dimension_order import find_dimension_order, make_dense_strides

SAVED_LAYOUT: Final = "coilwork_saved_layout"
"""Key of `node.meta`: the `SavedLayout` of a saved value, and of the backward graph's input that it is."""


@dataclass(slots=True)
class SavedLayout:
    """The mark. `order`: of the dimensions; None: as captured, or as autograd is told."""

    order: tuple[int, ...] | None = None


def find_order(
    sizes: Sequence[Any], strides: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> tuple[int, ...] | None:
    """Return the order of dimensions of a value without gaps, as `SavedLayout` has it; None: it has some, or
    nothing tells. `is_same` tells if two sizes are certain to be equal.
    """
    nested = find_dimension_order(sizes, strides, is_same)
    if nested is None:
        return None
    order = [0] * len(sizes)
    for place, dimension in enumerate(reversed(nested), 1):
        order[dimension] = -place
    return tuple(order)


def nest_strides(sizes: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Return the strides of a value of `sizes` without gaps, whose dimensions are in `order`."""
    return make_dense_strides(sizes, sorted(range(len(sizes)), key=lambda dimension: order[dimension]))
