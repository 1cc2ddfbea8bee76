"""`ldexp` by whole exponents: a float times a power of two, rounded once however far the power is out of
range.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.ops.elementwise import elementwise, overloads
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, lt, maximum, minimum, mul, select, sub


class _Format(NamedTuple):
    """A float's integer of the same size, the bits of its mantissa, and its largest exponent, which is its
    bias, too.
    """

    integer: DType
    mantissa: int
    bias: int


_FORMATS: Final = MappingProxyType(
    {DType.F32: _Format(DType.I32, 23, 127), DType.F64: _Format(DType.I64, 52, 1023)}
)
_STEPS: Final = 3


def _power(exponent: Scalar, dtype: DType) -> Scalar:
    """2 to an exponent that a normal number of `dtype` has."""
    integer, mantissa, bias = _FORMATS[dtype]
    bits = op("lshift", add(cast(exponent, integer), const(bias, integer)), const(mantissa, integer))
    return op("bitcast", bits, dtype=dtype)


def _scale_by_exponent(x: Scalar, exponent: Scalar) -> Scalar:
    """`x` times 2 to an `i32` exponent, as `scalbn` of C libraries: by up to three powers that are normal
    numbers.

    A step downwards stops a mantissa short of the smallest power. If its product is subnormal, and so was
    rounded, those behind it leave nothing of it: nothing is rounded twice.
    """
    _, mantissa, bias = _FORMATS[x.dtype]
    highest, lowest = const(bias, DType.I32), const(1 - bias, DType.I32)
    downwards = const(1 - bias + mantissa + 1, DType.I32)
    # from the smallest subnormal number beyond the largest, and back to zero
    farthest = 2 * (bias + mantissa)
    left = maximum(minimum(exponent, const(farthest, DType.I32)), const(-farthest, DType.I32))
    for _ in range(_STEPS - 1):
        step = select(lt(left, lowest), downwards, minimum(left, highest))
        x, left = mul(x, _power(step, x.dtype)), sub(left, step)
    return mul(x, _power(left, x.dtype))


def _ldexp(builder: Builder, call: Call) -> Value:
    """Wider exponents are cut to 32 bits, as ATen's kernel does."""
    if not call.tensor("other").dtype.is_integer or not call.tensor("self").dtype.is_float:
        raise NotLowered("a power of two that is not whole, or times another number than a float")
    operands = [call["self"], call["other"]]
    return elementwise(
        builder, call, _scale_by_exponent, operands=operands, compute=[call.dtype.compute, DType.I32]
    )


RULES: Final[tuple[Rule, ...]] = (Rule(overloads("ldexp.Tensor"), _ldexp),)
