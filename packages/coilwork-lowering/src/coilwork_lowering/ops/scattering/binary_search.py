"""Binary search of elements in order, as scalars of the loop IR."""

from __future__ import annotations

from collections.abc import Callable

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, bounds
from coilwork_ir.scalar import Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue
from coilwork_lowering.scalar_math import add, both, index, select, sub


def lower_bound(
    builder: Builder,
    ordered: TensorValue,
    before: Callable[[Scalar], Scalar],
    between: tuple[Scalar, Scalar] | None = None,
    most: int | None = None,
) -> Scalar:
    """How many elements of `ordered` are `before`, which holds for none behind one it fails for; those of
    `between` alone are looked at if it is given, in front of which all are.

    Searches all of `ordered` by quarters, whose three loads are on their way together: half as many waits as
    by halves. What lies `between` two positions is near and short, hence in a cache: by halves, with fewer
    loads. Steps are as many as the largest size takes, or `most` elements. The result, and what is `between`,
    are `i32` if that holds what the search adds up, else `i64`: see `search_type`.
    """
    (count,) = ordered.shape
    width, bits = search_type(count), _bits(count if most is None else as_expr(most))
    found, end = (const(0, width), cast(index(count), width)) if between is None else between
    at_once = 1 if between is not None else 2
    for low in reversed(range(0, bits, at_once)):
        first = found
        for part in range(1, 1 << min(at_once, bits - low)):
            further = add(first, const(part << low, width))
            inside = op("le", further, end)
            last = sub(further, const(1, width))
            element = builder.read(ordered, (placeholder(0),), indirect=(last,), mask=inside)
            found = select(both(inside, before(element)), further, found)
    return found


def search_type(count: Expr) -> DType:
    """Return what positions among `count` are counted in."""
    return DType.I32 if _bits(count) < 30 else DType.I64


def _bits(count: Expr) -> int:
    longest = bounds(count).hi
    return 48 if longest is None else max(longest.bit_length(), 1)
