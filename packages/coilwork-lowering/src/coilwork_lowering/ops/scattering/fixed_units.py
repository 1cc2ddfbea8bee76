"""Elements of sums in fixed point: the bits of an `f32`, units that are powers of two, and what stands for
sums that are no number.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.scalar_math import add, both, lt, maximum, mul, select, sub

# Of `f32` and `f64`: bits behind the exponent, and what is added to it.
MANTISSA: Final = 23
BIAS: Final = 127
_WIDE_MANTISSA, _WIDE_BIAS = 52, 1023
# The exponent of infinities and NaN. How many there are of either sign, a NaN for both, is counted in halves
# of the sum.
NO_NUMBER: Final = 255
_HALF: Final = 32
# Of an `f32`, all bits but the sign. Those of the largest NaN are as many as there are.
_UNSIGNED: Final = (1 << 31) - 1


def magnitude(number: Scalar) -> Scalar:
    """The bits of an `f32` without its sign, an `i32`: ordered as magnitudes are, infinity behind all
    numbers, NaN behind it.
    """
    return op("bitwise_and", op("bitcast", number, dtype=DType.I32), const(_UNSIGNED, DType.I32))


def last_if_zero(bits: Scalar) -> Scalar:
    """A `magnitude`; that of zero is greater than those of all numbers."""
    return select(lt(const(0, DType.I32), bits), bits, const(_UNSIGNED, DType.I32))


def exponent_of(bits: Scalar) -> Scalar:
    """The biased exponent of a `magnitude`, an `i32`: 1 for the numbers around zero, whose bits are multiples
    of the same unit.
    """
    return maximum(op("rshift", bits, const(MANTISSA, DType.I32)), const(1, DType.I32))


def power_of_two(exponent: Scalar) -> Scalar:
    """2 to the `exponent`, an `f64`."""
    biased = cast(add(exponent, const(_WIDE_BIAS, DType.I32)), DType.I64)
    return op("bitcast", op("lshift", biased, const(_WIDE_MANTISSA, DType.I64)), dtype=DType.F64)


def whole_units(number: Scalar, exponent: Scalar) -> Scalar:
    """How many units of 2 to minus the `exponent` a number is, an `i64`; what is behind the point is left
    out.
    """
    return cast(mul(cast(number, DType.F64), power_of_two(exponent)), DType.I64)


def scale_units(units: Scalar, exponent: Scalar) -> Scalar:
    """So many units of 2 to the `exponent`, an `f64`."""
    return mul(cast(units, DType.F64), power_of_two(exponent))


def kind(number: Scalar) -> Scalar:
    """Return what infinity, its negative, NaN and a number add to a sum that is none."""
    positive, negative = const(1, DType.I64), const(1 << _HALF, DType.I64)
    zero = const(0, DType.I64)
    finite = lt(exponent_of(magnitude(number)), const(NO_NUMBER, DType.I32))
    infinite = select(lt(number, const(0.0, DType.F32)), negative, positive)
    found = select(op("isnan", number), add(positive, negative), infinite)
    return select(finite, zero, found)


def sum_not_numbers(total: Scalar) -> Scalar:
    """The sum of what is no number, and of numbers, by how many of either sign were added."""
    infinity = float("inf")
    negative = op("rshift", total, const(_HALF, DType.I64))
    positive = sub(total, op("lshift", negative, const(_HALF, DType.I64)))
    some, others = (lt(const(0, DType.I64), count) for count in (positive, negative))
    one_sign = select(some, const(infinity, DType.F32), const(-infinity, DType.F32))
    return select(both(some, others), const(float("nan"), DType.F32), one_sign)
