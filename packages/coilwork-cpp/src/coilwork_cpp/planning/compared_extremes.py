"""Kernels that compare values with an extreme of them: what equals it must be found again, whichever loop
computes it.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Op, Reduce, Scalar, postorder

_COMPARISONS: Final = frozenset("eq ne lt le gt ge".split())
_EXTREMES: Final = frozenset({"max", "min"})


def compares_extremes(kernel: Kernel) -> bool:
    """Tell whether a value is compared with what the largest or smallest of a row was found from.

    Several loops may compute it, and a loop gives its last elements, for which it has no whole vector,
    another function than the rest.
    """
    roots = tuple(store.value for store in kernel.stores)
    values = tuple(postorder(roots))
    if not any(_is_extreme(value) for value in values):
        return False
    return any(
        _is_found_from(one, other) or _is_found_from(other, one)
        for value in values
        if isinstance(value, Op) and value.op in _COMPARISONS
        for one, other in (value.operands,)
        if one.dtype.is_float
    )


def _is_extreme(value: Scalar) -> bool:
    return isinstance(value, Reduce) and value.kind in _EXTREMES


def _is_found_from(found: Scalar, value: Scalar) -> bool:
    """Tell if an extreme that takes part in `found` was taken of something computed that takes part in
    `value`.
    """
    extremes = tuple(one for one in postorder((found,)) if _is_extreme(one))
    if not extremes:
        return False
    computed = frozenset(one for one in postorder((value,)) if isinstance(one, Op))
    return any(one in computed for one in postorder(extremes))
