"""Powers: `pow`, `xlogy` and `ldexp`.

Small whole exponents become products. `ldexp` multiplies by a power of two and rounds once, however far the
power is out of range.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Const, Scalar, cast, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.ops.elementwise import (
    DEFAULT,
    TO_FLOAT,
    compute_type,
    elementwise,
    overloads,
    promote_operands,
)
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    like,
    lt,
    maximum,
    minimum,
    mul,
    round_to,
    select,
    sub,
    to_dtype,
)

# ---- pow and xlogy ----


# the longest product that is no slower and no less accurate than the library's power
_LARGEST_EXPONENT: Final = 4


def integer_power(base: Scalar, exponent: int) -> Scalar:
    """`base ** exponent` by squaring."""
    if exponent == 0:
        return like(1, base)
    result: Scalar | None = None
    square = base
    while exponent:
        if exponent & 1:
            result = square if result is None else mul(result, square)
        exponent >>= 1
        if exponent:
            square = mul(square, square)
    assert result is not None
    return result


def float_power(base: Scalar, exponent: float) -> Scalar:
    """`base ** exponent` with torch's special cases for floats."""
    if exponent == 0.5:
        return op("sqrt", base)
    if exponent == -0.5:
        return op("rsqrt", base)
    if float(exponent).is_integer() and abs(exponent) <= _LARGEST_EXPONENT:
        power = integer_power(base, abs(int(exponent)))
        return power if exponent >= 0 else op("div", like(1, base), power)
    return op("pow", base, like(exponent, base))


def _pow_scalar(builder: Builder, call: Call) -> Value:
    exponent = call["exponent"]
    if not isinstance(exponent, int | float) or isinstance(exponent, bool):
        return _pow(builder, call)
    compute = compute_type(DEFAULT, [call.fakes["self"], exponent])

    as_pow = abs(exponent) == 0.5 and _has_no_roots(call.fakes["self"])

    def power(base: Scalar) -> Scalar:
        if base.dtype.is_float:
            narrow = round_to(like(exponent, base), call.dtype)
            assert isinstance(narrow, Const)
            if narrow.value in (3, -2) and not _has_no_roots(call.fakes["self"]):
                return _multiply_in_steps(base, int(narrow.value), call.dtype)
            return op("pow", base, narrow) if as_pow else float_power(base, float(narrow.value))
        return integer_power(base, int(exponent))

    if compute.is_bool or (compute.is_integer and exponent < 0):
        raise NotLowered("a negative power of an integer")
    return elementwise(builder, call, power, operands=[call["self"]], compute=[compute])


def _multiply_in_steps(base: Scalar, exponent: int, dtype: DType) -> Scalar:
    """Return the powers 3 and -2 as eager's kernels have them, each product rounded to `dtype`."""
    square = to_dtype(to_dtype(mul(base, base), dtype), base.dtype)
    return mul(square, base) if exponent == 3 else op("div", like(1, base), square)


def _has_no_roots(base: torch.Tensor) -> bool:
    """Tell if eager takes no root for the power 0.5, which is another number of -0 and of -inf: so of `f16`
    on CPUs.
    """
    return base.dtype is torch.float16 and has_trait(base.device.type, ATEN_CPU)


def _pow(builder: Builder, call: Call) -> Value:
    fakes = [call.fakes["self"], call.fakes["exponent"]]
    operands = [call["self"], call["exponent"]]
    compute = compute_type(DEFAULT, fakes)
    if not compute.is_float:
        raise NotLowered("a power of integers with an unknown exponent")
    return elementwise(
        builder,
        call,
        promote_operands(lambda a, b: op("pow", a, b), operands, call.dtype),
        operands=operands,
        compute=[compute] * 2,
    )


def _xlogy(builder: Builder, call: Call) -> Value:
    compute = compute_type(TO_FLOAT, [call.fakes["self"], call.fakes["other"]])

    def xlogy(a: Scalar, b: Scalar) -> Scalar:
        zero = like(0, a)
        product = op("where", op("eq", a, zero), zero, mul(a, op("log", b)))
        return op("where", op("isnan", b), b, product)

    operands = [call["self"], call["other"]]
    function = promote_operands(xlogy, operands, call.dtype)
    return elementwise(builder, call, function, operands=operands, compute=[compute] * 2)


# ---- ldexp ----


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


def _power_of_two(exponent: Scalar, dtype: DType) -> Scalar:
    """Return 2 to an exponent that a normal number of `dtype` has."""
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
        x, left = mul(x, _power_of_two(step, x.dtype)), sub(left, step)
    return mul(x, _power_of_two(left, x.dtype))


def _ldexp(builder: Builder, call: Call) -> Value:
    """Lower `ldexp` of a float. Wider exponents are cut to 32 bits, as ATen's kernel does."""
    if not call.tensor("other").dtype.is_integer or not call.tensor("self").dtype.is_float:
        raise NotLowered("a power of two that is not whole, or times another number than a float")
    operands = [call["self"], call["other"]]
    return elementwise(
        builder, call, _scale_by_exponent, operands=operands, compute=[call.dtype.compute, DType.I32]
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("pow.Tensor_Scalar"), _pow_scalar),
    Rule(overloads("pow.Tensor_Tensor pow.Scalar"), _pow),
    Rule(overloads("xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other"), _xlogy),
    Rule(overloads("ldexp.Tensor"), _ldexp),
)
