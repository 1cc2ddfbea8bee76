"""Element types and literals as Triton writes them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.scalar import Literal_
from coilwork_triton.text.tree import (
    Attribute,
    Binary,
    Expression,
    List,
    Name,
    Number,
    method,
    number,
    tl,
    tl_name,
)

TRITON_TYPES: Final[Mapping[DType, str]] = MappingProxyType(
    {
        DType.F64: "float64",
        DType.F32: "float32",
        DType.F16: "float16",
        DType.BF16: "bfloat16",
        DType.F8E4M3: "float8e4nv",
        DType.F8E5M2: "float8e5",
        DType.I64: "int64",
        DType.I32: "int32",
        DType.I16: "int16",
        DType.I8: "int8",
        DType.U64: "uint64",
        DType.U32: "uint32",
        DType.U16: "uint16",
        DType.U8: "uint8",
        DType.BOOL: "int1",
    }
)

_LEAST_NORMAL: Final = 2.0**-126

# As an argument of tl.minimum and tl.maximum: a NaN operand gives NaN.
ALL_NANS: Final = Attribute(tl_name("PropagateNan"), "ALL")


def triton_type(dtype: DType) -> Expression:
    """`tl.float32` and the like. Raises EmitError for complex types."""
    name = TRITON_TYPES.get(dtype)
    if name is None:
        raise EmitError("element-type", f"Triton has no element type for {dtype.text}")
    return tl_name(name)


def typed_constant(value: Literal_, dtype: DType) -> Expression:
    """A scalar of exactly `dtype`."""
    return filled((), value, dtype)


def plain_constant(value: Literal_, dtype: DType) -> Expression:
    """A bare literal, for operators whose other operand is of `dtype`: Triton converts it to that type."""
    return _literal(value, dtype)


def free_constant(value: Literal_, dtype: DType) -> Expression:
    """A constant for any place: bare where Triton gives a bare literal the type `dtype` by itself."""
    if dtype in (DType.F32, DType.I32):
        return _literal(value, dtype)
    return typed_constant(value, dtype)


def zeros_of(shape: tuple[str, ...], value: Literal_, dtype: DType, *, chunk: int = 1) -> Expression:
    """A block of `shape` (names of constexpr sizes, or "1") filled with `value`; one per `chunk` along the last axis."""
    extents: list[Expression] = [Number(1) if s == "1" else Name(s) for s in shape]
    if chunk > 1:
        extents[-1] = Binary("//", extents[-1], Number(chunk))
    return filled(extents, value, dtype)


def filled(extents: Iterable[Expression], value: Literal_, dtype: DType) -> Expression:
    """A block of `extents`, all of it `value`."""
    if dtype is DType.BF16:
        # Triton's interpreter makes no bf16 constants; compiled, both forms are one
        return method(filled(extents, value, DType.F32), "to", triton_type(dtype))
    return tl("full", List(tuple(extents)), _literal(value, dtype), triton_type(dtype))


def smallest(dtype: DType) -> Literal_:
    """The identity of `max`."""
    if dtype.is_float:
        return -math.inf
    if dtype.is_bool:
        return False
    return -(1 << (8 * dtype.itemsize - 1)) if dtype.is_signed_integer else 0


def largest(dtype: DType) -> Literal_:
    """The identity of `min`."""
    if dtype.is_float:
        return math.inf
    if dtype.is_bool:
        return True
    return (1 << (8 * dtype.itemsize - (1 if dtype.is_signed_integer else 0))) - 1


def reciprocal_of(value: float) -> float | None:
    """1 / `value` if both are normal f32 numbers. A product with it is a quotient within 1.5 units in the last place."""
    if not _LEAST_NORMAL <= abs(value) <= 1 / _LEAST_NORMAL:
        return None
    return 1 / value


def _literal(value: Literal_, dtype: DType) -> Expression:
    if dtype.is_float:
        return number(_rounded(float(value)) if dtype is not DType.F64 else float(value))
    if dtype.is_bool:
        return Number(bool(value))
    return number(int(value))


def _rounded(value: float) -> float:
    """`value`, or an infinity where f32 overflows: Triton would make the literal an f64 instead."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return math.copysign(math.inf, value)
    return value
