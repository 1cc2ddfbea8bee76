"""The scaled complement of erf, and the quantiles of the normal distribution: series in 64 bits."""

from __future__ import annotations

import math
from typing import Final

from coilwork_ir.scalar import Scalar, op
from coilwork_lowering.ops.elementwise import TO_FLOAT, pointwise_rule
from coilwork_lowering.ops.special_functions import chebyshev_tables as tables
from coilwork_lowering.ops.special_functions.chebyshev import (
    chebyshev,
    compute_in_64_bits,
    ratio,
    series_over,
)
from coilwork_lowering.rules import Rule
from coilwork_lowering.scalar_math import add, div, eq, gt, le, like, lt, mul, neg, select, sub

# Of the map of Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x", 1981.
_CENTRE: Final = 3.75
# From here on `exp(-x^2)` does not matter, and the function is the first term of its continued fraction.
_FAR: Final = 5e7
# Quantiles of probabilities closer to 1/2 than this are of the series in the middle.
_MIDDLE: Final = 0.36
_TAIL: Final = 8.0


def _erfcx(x: Scalar) -> Scalar:
    size, one = op("abs", x), like(1, x)
    u = div(sub(size, like(_CENTRE, x)), add(size, like(_CENTRE, x)))
    found = div(chebyshev(u, tables.ERFCX), add(one, add(size, size)))
    found = select(gt(size, like(_FAR, x)), ratio(1 / math.sqrt(math.pi), size), found)
    square = op("exp", mul(x, x))
    return select(lt(x, like(0, x)), sub(add(square, square), found), found)


def _quantile(p: Scalar) -> Scalar:
    """Cephes' `ndtri`: a series in the middle, and one of `sqrt(-2 log p)` in each tail."""
    zero, one, half = (like(value, p) for value in (0, 1, 0.5))
    y = sub(p, half)
    middle = mul(y, series_over(mul(y, y), 0, 0.14, tables.QUANTILE_CENTRE))
    above = gt(p, half)
    small = select(above, sub(one, p), p)
    x = op("sqrt", neg(mul(like(2, p), op("log", small))))
    near = series_over(x, 1.9, _TAIL, tables.QUANTILE_TAIL)
    far = series_over(ratio(1, x), 1 / 39, 1 / _TAIL, tables.QUANTILE_FAR)
    rest = div(select(le(x, like(_TAIL, p)), near, far), x)
    tail = sub(rest, sub(x, div(op("log", x), x)))
    tail = select(above, neg(tail), tail)
    found = select(le(op("abs", y), like(_MIDDLE, p)), middle, tail)
    found = select(eq(p, zero), like(-math.inf, p), found)
    found = select(eq(p, one), like(math.inf, p), found)
    outside = op("bitwise_or", lt(p, zero), gt(p, one))
    return select(outside, like(math.nan, p), found)


RULES: Final[tuple[Rule, ...]] = (
    pointwise_rule("special_erfcx", compute_in_64_bits(_erfcx), kind=TO_FLOAT),
    pointwise_rule("special_ndtri", compute_in_64_bits(_quantile), kind=TO_FLOAT),
)
