"""Element types in C++: names, literals, and conversions between them as torch's `Tensor.to` makes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from coilwork_ir.dtypes import DType, round_to_dtype
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels.rewrite import wrap_integer
from coilwork_ir.syntax.cpp import ZERO, Binary, Call, Code, DeclareArray, Literal, Unary

_CACHE_LINE: Final = 64
# Low precision floats and bools travel in memory as bit patterns.
_MEMORY: Final[Mapping[DType, str]] = {
    DType.F64: "double",
    DType.F32: "float",
    DType.F16: "u16",
    DType.BF16: "u16",
    DType.F8E4M3: "u8",
    DType.F8E5M2: "u8",
    DType.BOOL: "u8",
    **{dtype: dtype.text for dtype in DType if dtype.is_integer},
}

# Those that the prelude has conversions of; others arrive as bits.
SMALL_FLOATS: Final = (DType.F8E4M3, DType.F8E5M2)


def declare_array(kind: str, name: str, size: int) -> DeclareArray:
    """Return an array of the stack that begins on a cache line."""
    return DeclareArray(kind, name, size, alignment=_CACHE_LINE)


def get_memory_type(dtype: DType) -> str:
    """Return the C++ type of one element in memory.

    Raises:
        EmitError: complex types.
    """
    if dtype not in _MEMORY:
        raise EmitError("element-type", f"no C++ code for elements of type {dtype.text}")
    return _MEMORY[dtype]


def get_value_type(dtype: DType) -> str:
    """Return the C++ type of a value in a register: as in memory, but for `bool`."""
    return "bool" if dtype.is_bool else get_memory_type(dtype)


def compute_type(dtype: DType) -> str:
    """Return the C++ type that arithmetic on `dtype` is carried out in."""
    return get_value_type(dtype.compute)


def get_word_type(dtype: DType) -> str:
    """Return the unsigned integer of `dtype`'s size."""
    return f"u{8 * dtype.itemsize}"


def make_literal(value: bool | int | float, dtype: DType) -> Code:
    """Return a constant of `dtype`, of type `get_value_type(dtype)`."""
    if dtype.is_bool:
        return Literal("true" if value else "false")
    if dtype.is_integer:
        return _integer_literal(int(value), dtype)
    if dtype.is_low_precision:
        return convert(make_literal(value, DType.F32), DType.F32, dtype)
    return _float_literal(float(value), dtype)


def _integer_literal(value: int, dtype: DType) -> Code:
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    if dtype.is_signed_integer and value >> (bits - 1):
        value -= 1 << bits
    if value == -(1 << 63):
        return Binary("-", Literal("-9223372036854775807ll"), Literal("1"))
    if -(1 << 31) < value < (1 << 31):
        return Literal(str(value))
    return Literal(f"{value}{'ull' if dtype is DType.U64 else 'll'}")


def _float_literal(value: float, dtype: DType) -> Code:
    suffix = "f" if dtype is DType.F32 else ""
    if math.isnan(value):
        nan = Literal(f'__builtin_nan{suffix}("")')
        return nan if math.copysign(1.0, value) > 0 else Unary("-", nan)
    if dtype is DType.F32 and not math.isinf(value):
        value = round_to_dtype(value, dtype)
    if math.isinf(value):
        infinity = Literal(f"__builtin_inf{suffix}()")
        return infinity if value > 0 else Unary("-", infinity)
    if dtype is DType.F32:
        text = next(
            t
            for t in (f"{value:.{digits}g}" for digits in range(1, 10))
            if round_to_dtype(float(t), dtype) == value
        )
    else:
        text = repr(value)
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return Literal(text + suffix)


def convert(value: Code, source: DType, to: DType) -> Code:
    """`value` of type `source` as a value of type `to`.

    Floats become integers by truncation; out of range and NaN give what x86's conversion to a signed integer
    gives, cut to the width. f64 reaches the low precision types through f32, as in torch.
    """
    if source is to:
        return value
    if source.is_low_precision:
        return convert(Call(f"{source.text}_to_f32", (value,)), DType.F32, to)
    if to.is_low_precision:
        return Call(f"f32_to_{to.text}", (convert(value, source, DType.F32),))
    if to.is_bool:
        return Binary("!=", value, make_literal(0, source) if source.is_float else ZERO)
    if source.is_float and to.is_integer:
        return _float_to_integer(value, to)
    return Call(get_value_type(to), (value,))


def _float_to_integer(value: Code, to: DType) -> Code:
    if to is DType.U64:
        return Call("float_to_u64", (value,))
    if to in (DType.I64, DType.I32):
        return Call(f"to_{to.text}", (value,))
    # C++ leaves a conversion of a negative value to unsigned undefined
    return Call(to.text, (Call(_choose_wide_integer(to).text, (value,)),))


def _choose_wide_integer(to: DType) -> DType:
    """Return the signed integer by way of which a float becomes a `to`."""
    return DType.I64 if to in (DType.I64, DType.U32) else DType.I32


def convert_constant(value: float, source: DType, to: DType) -> int:
    """Return `value` as an integer `to`, not `U64`, as x86 converts it; see `convert`. `source` is unused."""
    wide = _choose_wide_integer(to)
    least = -(1 << (8 * wide.itemsize - 1))
    whole = math.trunc(value) if math.isfinite(value) else least
    return wrap_integer(whole if least <= whole < -least else least, to)
