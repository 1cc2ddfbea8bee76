"""Offsets of masked loads: where the mask is false nothing is read, so divisions may rely on what it says.

A slice that is flattened and padded again is the usual case: `i // 1023` and `i % 1023` of an `i` that the
mask keeps below
1023. Without them the load is of the very element that the padding writes, so that one may take the other's
      place.
"""

from __future__ import annotations

from collections.abc import Mapping

from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    bounds,
    floordiv,
    fold,
    maximum,
    minimum,
    mod,
    product,
    total,
)
from coilwork_ir.index import (
    const as index_const,
)
from coilwork_ir.scalar import Const, IndexValue, Op, Scalar


def index_where(index: Expr, mask: Scalar) -> Expr:
    """An expression equal to `index` wherever `mask` is true."""
    below = _limits(mask)
    if not below:
        return index

    def quotient(numerator: Expr, denominator: Expr) -> Expr:
        return as_expr(0) if _fits(numerator, denominator, below) else floordiv(numerator, denominator)

    def remainder(numerator: Expr, denominator: Expr) -> Expr:
        return numerator if _fits(numerator, denominator, below) else mod(numerator, denominator)

    return fold(
        index,
        const=index_const,
        symbol=lambda symbol: symbol,
        add=lambda parts: total(parts),
        mul=lambda parts: product(parts),
        floordiv=quotient,
        mod=remainder,
        minimum=lambda parts: minimum(*parts),
        maximum=lambda parts: maximum(*parts),
    )


def _fits(numerator: Expr, denominator: Expr, below: Mapping[Expr, int]) -> bool:
    limit, divisor = below.get(numerator), as_int(denominator)
    return limit is not None and divisor is not None and limit <= divisor


def _limits(mask: Scalar) -> dict[Expr, int]:
    """Expressions that are not negative, and which numbers they stay below where `mask` is true."""
    found: dict[Expr, int] = {}
    open_parts = [mask]
    while open_parts:
        match open_parts.pop():
            case Op(op="bitwise_and" | "logical_and", operands=operands):
                open_parts.extend(operands)
            case Op(
                op=("lt" | "le") as name, operands=(IndexValue(expr=expr, operands=()), Const(value=value))
            ):
                limit = int(value) + (name == "le")
                lowest = bounds(expr).lo
                if lowest is not None and lowest >= 0:
                    found[expr] = min(limit, found.get(expr, limit))
            case _:
                pass
    return found
