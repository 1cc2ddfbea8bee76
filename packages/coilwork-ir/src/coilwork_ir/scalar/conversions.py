"""Conversions of conversions: those that say nothing go, so that no number is rounded again to a type that it
has been of.

That saves instructions, and a rounding that is not there cannot be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import FORMATS, DType
from coilwork_ir.scalar.build import cast, const, op, where
from coilwork_ir.scalar.nodes import Op, Scalar

_FRACTION: Final[Mapping[DType, int]] = MappingProxyType(
    {DType.F64: 52, DType.F32: 23, DType.F16: 10, DType.BF16: 7}
    | {dtype: form.fraction for dtype, form in FORMATS.items()}
)
_EXPONENT: Final[Mapping[DType, int]] = MappingProxyType(
    {DType.F64: 11, DType.F32: 8, DType.F16: 5, DType.BF16: 8}
    | {dtype: form.exponent for dtype, form in FORMATS.items()}
)
# Half way from the largest `f8e4m3` to the number that would come next.
_E4M3_LIMIT: Final = 464.0


def is_lossless(source: DType, target: DType) -> bool:
    """True if every value of `source` survives a conversion to `target` and back."""
    if source is target:
        return True
    if source.is_bool:
        return not target.is_opaque and target.format is None
    if source.is_integer and target.is_integer:
        if source.is_signed_integer and not target.is_signed_integer:
            return False
        if source.is_signed_integer == target.is_signed_integer:
            return target.itemsize >= source.itemsize
        return target.itemsize > source.itemsize
    # 8-bit floats of one kind lack zeros, infinities or exponents of another
    if not target.is_float or target.format is not None:
        return False
    if source.is_integer:
        bits = 8 * source.itemsize - source.is_signed_integer
        return bits <= _FRACTION[target] + 1 and bits < 2 ** (_EXPONENT[target] - 1)
    return (
        source.is_float and _FRACTION[target] >= _FRACTION[source] and _EXPONENT[target] >= _EXPONENT[source]
    )


def join_conversions(node: Op) -> Scalar:
    """`node`, a cast or bitcast, without what its operand converts in vain. NaN stays NaN, maybe of other
    bits.

    A 16-bit float that is seen as bits and back stays so: `fast` numerics keep that rounding, as the
    program asks.
    """
    (source,) = node.operands
    if node.op == "bitcast":
        return _joined_bits(node, source)
    before = _value_before(source, node.dtype)
    if before is not None:
        return before
    if isinstance(source, Op) and source.op == "cast":
        inner = source.operands[0]
        if is_lossless(inner.dtype, source.dtype) and not (node.dtype.is_bool and inner.dtype.is_float):
            return cast(inner, node.dtype)
    return node


def joined_small(node: Scalar) -> Scalar:
    """Return `node`, joined if it makes an 8-bit float of what another one was made into, or bits of bits."""
    match node:
        case Op(op="cast") if node.dtype.format is not None:
            return join_conversions(node)
        case Op(op="bitcast", operands=(source,)) if {node.dtype.format, source.dtype.format} != {None}:
            return join_conversions(node)
        case _:
            return node


def cast_to_e4m3_or_nan(value: Scalar) -> Scalar:
    """`value` as an `f8e4m3`; what is too large for that becomes NaN, with its sign. A mere cast gives the
    largest number.
    """
    wide = cast(value, DType.F32)
    return op("bitcast", _code_or_nan(cast(wide, DType.F8E4M3), wide), dtype=DType.F8E4M3)


def _code_or_nan(small: Scalar, wide: Scalar) -> Scalar:
    """The bits of `small`, or of NaN where `wide`, the f32 that it is made of, is too large.

    As bits, since targets differ in the signs of NaN that they convert.
    """
    kept = op("le", op("abs", wide), const(_E4M3_LIMIT, DType.F32))
    return where(kept, _bits(small), _nan_code(wide))


def _bits(small: Scalar) -> Scalar:
    bits = op("bitcast", small, dtype=DType.U8)
    assert isinstance(bits, Op)
    return join_conversions(bits)


def _nan_code(wide: Scalar) -> Scalar:
    """The bits of the `f8e4m3` that is NaN and has the sign of `wide`, an f32."""
    bits = op("bitcast", wide, dtype=DType.I32)
    sign = op("bitwise_and", op("rshift", bits, const(24, DType.I32)), const(0x80, DType.I32))
    return op("bitwise_or", cast(sign, DType.U8), const(0x7F, DType.U8))


def _value_before(value: Scalar, dtype: DType) -> Scalar | None:
    """The 8-bit float of type `dtype` that `value` was before casts to types that hold all numbers of
    `dtype`.
    """
    if dtype.format is None:
        return None
    while value.dtype is not dtype:
        if not (isinstance(value, Op) and value.op == "cast" and is_lossless(dtype, value.dtype)):
            return None
        value = value.operands[0]
    return value


def _joined_bits(node: Op, source: Scalar) -> Scalar:
    if not isinstance(source, Op):
        return node
    if source.op == "bitcast":
        inner = source.operands[0]
        keeps_rounding = inner.dtype.is_low_precision and inner.dtype.format is None
        return inner if inner.dtype is node.dtype and not keeps_rounding else node
    # every number of the type is within its limit, and NaN gets its own sign
    small = _find_limited(source) if source.op == "where" and node.dtype is DType.F8E4M3 else None
    return node if small is None else small


def _find_limited(code: Op) -> Scalar | None:
    """The `f8e4m3` that `code` is made of, if it is what `_code_or_nan` makes of one."""
    match code.operands[0]:
        case Op(op="le", operands=(Op(op="abs", operands=(Op(op="cast", operands=(small,)) as wide,)), _)):
            return small if small.dtype is DType.F8E4M3 and code is _code_or_nan(small, wide) else None
        case _:
            return None
