"""Chebyshev series, and functions that are computed in 64 bits whatever their operands are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Scalar, cast, const
from coilwork_lowering.scalar_math import add, div, like, mul, sub


def chebyshev(u: Scalar, coefficients: Sequence[float]) -> Scalar:
    """The sum of `coefficients[k] * T(k, u)`, for `u` in [-1, 1], by Clenshaw's recurrence."""
    twice = add(u, u)
    ahead, behind = like(0.0, u), like(0.0, u)
    for coefficient in reversed(coefficients[1:]):
        ahead, behind = add(sub(mul(twice, ahead), behind), like(coefficient, u)), ahead
    return add(sub(mul(u, ahead), behind), like(coefficients[0], u))


def series_over(x: Scalar, low: float, high: float, coefficients: Sequence[float]) -> Scalar:
    """A series over the interval from `low` to `high`, at `x`. Elsewhere its value makes no sense."""
    scaled = mul(sub(x, like(low, x)), like(2 / (high - low), x))
    return chebyshev(sub(scaled, like(1, x)), coefficients)


def series_behind(part: Scalar, coefficients: Sequence[float]) -> Scalar:
    """A series over [0, 1], of which the interval from a number to infinity is mapped to 1 to 0."""
    return chebyshev(sub(add(part, part), like(1, part)), coefficients)


def ratio(start: float, x: Scalar) -> Scalar:
    """`start / x`."""
    return div(like(start, x), x)


def compute_in_64_bits(function: Callable[..., Scalar]) -> Callable[..., Scalar]:
    """`function`, computed in `f64`: as eager's kernels in `f32`, or better."""

    def wide(*operands: Scalar) -> Scalar:
        found = function(*(cast(operand, DType.F64) for operand in operands))
        return cast(found, operands[0].dtype)

    return wide


def number(value: float) -> Scalar:
    """A constant in `f64`."""
    return const(value, DType.F64)
