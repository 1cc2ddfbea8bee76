"""Scalar expressions: short names for rows of the op table, and formulas made of a few of them."""

from __future__ import annotations

from coilwork_ir.dtypes import DType
from coilwork_ir.dtypes import round_to_dtype as nearest
from coilwork_ir.index import Expr
from coilwork_ir.scalar import (
    Const,
    Literal_,
    Scalar,
    cast,
    cast_to_e4m3_or_nan,
    const,
    index_value,
    is_lossless,
    op,
    where,
)
from coilwork_lowering.torch_compat.operators import E4M3_SATURATES


def like(value: Literal_, other: Scalar) -> Scalar:
    """Return a literal of `other`'s type."""
    return const(value, other.dtype)


def add(a: Scalar, b: Scalar) -> Scalar:
    """`a + b`; on bool, "or"."""
    return op("bitwise_or" if a.dtype.is_bool else "add", a, b)


def sub(a: Scalar, b: Scalar) -> Scalar:
    """`a - b`."""
    return op("sub", a, b)


def mul(a: Scalar, b: Scalar) -> Scalar:
    """`a * b`; on bool, "and"."""
    return op("bitwise_and" if a.dtype.is_bool else "mul", a, b)


def div(a: Scalar, b: Scalar) -> Scalar:
    """`a / b` on floats."""
    return op("div", a, b)


def neg(a: Scalar) -> Scalar:
    """`-a`."""
    return op("neg", a)


def eq(a: Scalar, b: Scalar) -> Scalar:
    """`a == b`."""
    return op("eq", a, b)


def lt(a: Scalar, b: Scalar) -> Scalar:
    """`a < b`."""
    return op("lt", a, b)


def le(a: Scalar, b: Scalar) -> Scalar:
    """`a <= b`."""
    return op("le", a, b)


def gt(a: Scalar, b: Scalar) -> Scalar:
    """`a > b`."""
    return op("gt", a, b)


def ge(a: Scalar, b: Scalar) -> Scalar:
    """`a >= b`."""
    return op("ge", a, b)


def logical_and(a: Scalar, b: Scalar) -> Scalar:
    """Logical and."""
    return op("bitwise_and", a, b)


def logical_or(a: Scalar, b: Scalar) -> Scalar:
    """Logical or."""
    return op("bitwise_or", a, b)


def invert(a: Scalar) -> Scalar:
    """Logical or bitwise not."""
    return op("bitwise_not", a)


def truth(a: Scalar) -> Scalar:
    """Tell if `a` is not zero; NaN is true."""
    if a.dtype.is_bool:
        return a
    # of 8-bit floats some have no zero
    wide = a if a.dtype.itemsize > 1 else cast(a, a.dtype.compute)
    return op("ne", wide, like(0, wide))


def index(expr: Expr) -> Scalar:
    """Return the `i64` value of an index expression."""
    return const(expr.value, DType.I64) if expr.is_const else index_value(expr)


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """Return the larger, NaN if either is."""
    return op("maximum", a, b)


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """Return the smaller, NaN if either is."""
    return op("minimum", a, b)


def to_dtype(value: Scalar, dtype: DType) -> Scalar:
    """`value` converted as `Tensor.to` does: to bool by comparing with zero."""
    if dtype.is_bool:
        return truth(value)
    if dtype is DType.F8E4M3 and value.dtype is not dtype and not E4M3_SATURATES:
        return cast_to_e4m3_or_nan(value)
    return cast(value, dtype)


def select(condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    """`then` where `condition` holds."""
    return where(condition, then, otherwise)


def round_decimals(a: Scalar, digits: int) -> Scalar:
    """Return a float rounded to so many digits behind the point, or before it where `digits` is negative;
    halves to even.

    Scaled, rounded and scaled back, so that a tie of decimals which no binary number is may fall to another
    side than Python's `round` lets it fall.
    """
    if digits == 0:
        return op("round", a)
    power = like(10.0 ** abs(digits), a)
    return mul(op("round", div(a, power)), power) if digits < 0 else div(op("round", mul(a, power)), power)


def round_to(a: Scalar, narrow: DType) -> Scalar:
    """`a`, in its own type, rounded to `narrow` whatever the numerics: a mere cast to 16 bits and back `fast`
    leaves out.
    """
    if not narrow.is_low_precision or is_lossless(a.dtype, narrow):
        return a
    if isinstance(a, Const):
        return like(nearest(float(a.value), narrow), a)
    small = to_dtype(a, narrow)
    if narrow.itemsize == 2:
        small = op("bitcast", op("bitcast", small, dtype=DType.U16), dtype=narrow)
    return to_dtype(small, a.dtype)
