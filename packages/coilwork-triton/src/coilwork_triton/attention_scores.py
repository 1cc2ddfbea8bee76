"""Shorten the bodies of an attention before they are written: a program computes them once per score.

Every rewrite needs `fast` numerics, in which intermediate values may be wider or rounded once less:

- 16-bit arithmetic is done in f32. An integer becomes f32 without being rounded to 16 bits on the way.
- Differences of positions that f32 holds exactly are subtracted as floats. Converting each difference takes
  an instruction of a quarter of the rate, and positions are else kept in 64 bits.
- Divisions by constants are products, and constant factors of one value are one factor.
- `tanh` of a score is `1 - 2 / (exp(2 x) + 1)`. Its error is absolute, 2e-7, which is what matters in an
  exponent; beside products of 16-bit factors it is nothing. Small arguments get no polynomial of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import copysign, inf, isfinite, log
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import find_bounds
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore
from coilwork_ir.scalar import Const, IndexValue, Op, Scalar, cast, const, op, rewrite

# Operations that round nothing.
_EXACT: Final = frozenset({"cast", "bitcast", "where"})
# Integers up to this are floats of f32.
_MOST_EXACT: Final = 1 << 24
_WIDE: Final = DType.F32
# What masked scores are filled with is the least float, mostly. A program multiplies scores by log2(e).
_MOST: Final = 2e38


def shorten_bodies(kernel: Kernel, core: AttentionCore | AttentionGradientCore, *, is_exact: bool) -> Kernel:
    """Return `kernel` with shorter bodies of its `core`. Those of `is_exact` factors keep the last places of
    their functions.
    """
    bodies = _compute_in_f32(core.bodies)
    if kernel.numerics == "fast":

        def visit(value: Scalar) -> Scalar:
            return _shorten(value, is_exact=is_exact)

        bodies = rewrite(bodies, visit)
    return replace(kernel, core=core.replace_bodies(bodies))


def _compute_in_f32(bodies: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Return `bodies` that compute with 16-bit floats in f32, and round the results."""

    def compute(value: Scalar) -> Scalar:
        if not isinstance(value, Op) or not value.dtype.is_low_precision or value.op in _EXACT:
            return value
        wide = [cast(v, _WIDE) if v.dtype.is_low_precision else v for v in value.operands]
        return cast(op(value.op, *wide), value.dtype)

    return rewrite(bodies, compute)


def _shorten(value: Scalar, *, is_exact: bool) -> Scalar:
    """Return `value`, whose operands are short, in a shorter form."""
    if isinstance(value, Const) and value.dtype is _WIDE and _MOST < abs(float(value.value)) < inf:
        return const(copysign(_MOST, float(value.value)), _WIDE)
    if not isinstance(value, Op) or value.dtype is not _WIDE:
        return value
    match value:
        case Op(op="cast", operands=(source,)):
            while isinstance(source, Op) and source.op == "cast" and _is_within_range(source):
                (source,) = source.operands
            if source.dtype.is_integer:
                found = _read_exact_float(source)
                return cast(source, _WIDE) if found is None else found.value
        case Op(op="div", operands=(above, Const() as below)) if _is_factor(1 / float(below.value or 1)):
            return value if not below.value else _multiply(above, 1 / float(below.value))
        case Op(op="mul", operands=(left, Const() as factor)):
            return _multiply(left, float(factor.value))
        case Op(op="mul", operands=(Const() as factor, right)):
            return _multiply(right, float(factor.value))
        case Op(op="tanh", operands=(argument,)) if not is_exact:
            power = op("exp2", _multiply(argument, 2 / log(2)))
            above, one = const(2.0, _WIDE), const(1.0, _WIDE)
            return op("sub", one, op("div", above, op("add", power, one)))
    return value


def _is_within_range(value: Op) -> bool:
    """Tell if `value` casts an integer to a float that is only rounded less where it is wider."""
    return value.dtype.is_low_precision and value.operands[0].dtype.is_integer


def _is_factor(number: float) -> bool:
    return isfinite(number) and abs(number) > 1e-30


def _multiply(value: Scalar, factor: float) -> Scalar:
    """Return `value` times `factor`, as one product if `value` is a product with a constant."""
    if isinstance(value, Op) and value.op == "mul" and isinstance(value.operands[1], Const):
        both = float(value.operands[1].value) * factor
        if _is_factor(both):
            value, factor = value.operands[0], both
    return value if factor == 1 else op("mul", value, const(factor, _WIDE))


@dataclass(frozen=True, slots=True)
class _ExactFloat:
    """A float that is an integer from `low` to `high`."""

    value: Scalar
    low: int
    high: int


def _read_exact_float(value: Scalar) -> _ExactFloat | None:
    """Return the integer `value` of positions as f32, if that holds it and all it is made of."""
    found: _ExactFloat | None = None
    match value:
        case IndexValue() if not value.operands:
            low, high = find_bounds(value.expr).lo, find_bounds(value.expr).hi
            if low is not None and high is not None:
                found = _ExactFloat(cast(value, _WIDE), low, high)
        case Const():
            number = int(value.value)
            found = _ExactFloat(const(float(number), _WIDE), number, number)
        case Op(op="cast", operands=(source,)) if value.dtype.itemsize >= 4 and source.dtype.is_integer:
            found = _read_exact_float(source)
        case Op(op="neg", operands=(source,)):
            inner = _read_exact_float(source)
            if inner is not None:
                found = _ExactFloat(op("neg", inner.value), -inner.high, -inner.low)
        case Op(op="abs", operands=(source,)):
            inner = _read_exact_float(source)
            if inner is not None:
                most = max(abs(inner.low), abs(inner.high))
                found = _ExactFloat(op("abs", inner.value), 0, most)
        case Op(op="add" | "sub", operands=(first, second)):
            left, right = _read_exact_float(first), _read_exact_float(second)
            if left is not None and right is not None:
                both = op(value.op, left.value, right.value)
                if value.op == "add":
                    found = _ExactFloat(both, left.low + right.low, left.high + right.high)
                else:
                    found = _ExactFloat(both, left.low - right.high, left.high - right.low)
    if found is None or max(abs(found.low), abs(found.high)) > _MOST_EXACT:
        return None
    return found
