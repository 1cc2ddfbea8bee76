"""Functions that are formulas over the op table: the inverse of erf, and the next number that a type has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Scalar, const, op
from coilwork_lowering.ops.elementwise import TO_FLOAT, pointwise_rule
from coilwork_lowering.rules import NotLowered, Rule
from coilwork_lowering.scalar_math import add, div, eq, gt, like, lt, mul, select, sub

# Rational approximations of ATen's `calc_erfinv`, lowest power first.
_CENTRE: Final = (0.886226899, -1.645349621, 0.914624893, -0.140543331)
_CENTRE_BELOW: Final = (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801)
_TAIL: Final = (-1.970840454, -1.624906493, 3.429567803, 1.641345311)
_TAIL_BELOW: Final = (1.0, 3.543889200, 1.637067800)
_TAIL_FROM: Final = 0.7


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    result = like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = add(mul(result, x), like(coefficient, x))
    return result


def _erfinv(y: Scalar) -> Scalar:
    """An approximation, and two steps of Newton's method, as ATen."""
    one, size = like(1, y), op("abs", y)
    square = mul(y, y)
    centre = div(mul(y, _polynomial(square, _CENTRE)), _polynomial(square, _CENTRE_BELOW))
    far = op("sqrt", op("neg", op("log", div(sub(one, size), like(2, y)))))
    tail = div(op("copysign", _polynomial(far, _TAIL), y), _polynomial(far, _TAIL_BELOW))
    x = select(gt(size, like(_TAIL_FROM, y)), tail, centre)
    for _ in range(2):
        slope = mul(like(2 / math.sqrt(math.pi), y), op("exp", op("neg", mul(x, x))))
        x = sub(x, div(sub(op("erf", x), y), slope))
    inside = lt(size, one)
    edge = select(eq(size, one), op("copysign", like(math.inf, y), y), like(math.nan, y))
    return select(inside, x, edge)


def _nextafter(a: Scalar, b: Scalar) -> Scalar:
    """The neighbour of `a` towards `b`: floats of one sign are in the order of their bits."""
    kind = {DType.F32: DType.I32, DType.F64: DType.I64}.get(a.dtype)
    if kind is None:
        raise NotLowered(f"neighbours in {a.dtype.text}")
    zero = like(0, a)
    bits = op("bitcast", a, dtype=kind)
    one = const(1, kind)
    outwards = eq(lt(a, b), gt(a, zero))
    moved = op("bitcast", select(outwards, add(bits, one), sub(bits, one)), dtype=a.dtype)
    least = op("copysign", op("bitcast", one, dtype=a.dtype), b)
    ordered = select(eq(a, b), b, select(eq(a, zero), least, moved))
    return select(op("isnan", a), a, select(op("isnan", b), b, ordered))


RULES: Final[tuple[Rule, ...]] = (
    pointwise_rule("erfinv special_erfinv", _erfinv, kind=TO_FLOAT),
    pointwise_rule("nextafter", _nextafter),
)
