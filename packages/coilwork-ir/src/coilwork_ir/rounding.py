"""Numbers as floats of a type hold them, and the bits that they are."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType, FloatFormat

_FORMS: Final[Mapping[DType, tuple[str, str]]] = MappingProxyType(
    {DType.F64: ("<d", "<Q"), DType.F32: ("<f", "<I"), DType.F16: ("<e", "<H")}
)


def rounded(value: float, dtype: DType) -> float:
    """The float of `dtype` nearest to `value`, as torch rounds; ties to even.

    Those of fewer than 32 bits are rounded to 32 before, as torch's are. Of `f64`, and of no floats, `value`
    itself.
    """
    if not dtype.is_float or dtype is DType.F64:
        return value
    return bits_value(float_bits(value, dtype), dtype)


def float_bits(value: float, dtype: DType) -> int:
    """The bits of `value`, rounded to the float type `dtype`; a NaN keeps its sign where the type has one."""
    if dtype is DType.F64:
        return _pattern(value, dtype)
    wide = _round_by_packing(value, "<f")
    if dtype is DType.BF16:
        bits = _pattern(wide, DType.F32)
        return (bits >> 16 & 0x8000) | 0x7FC0 if wide != wide else bits + 0x7FFF + (bits >> 16 & 1) >> 16
    if dtype.format is not None:
        return _small_bits(wide, dtype.format)
    return _pattern(_round_by_packing(wide, _FORMS[dtype][0]), dtype)


def bits_value(bits: int, dtype: DType) -> float:
    """The number that `bits` are as a float of type `dtype`."""
    if dtype is DType.BF16:
        bits, dtype = bits << 16, DType.F32
    if dtype.format is not None:
        return _small_value(bits, dtype.format)
    form, words = _FORMS[dtype]
    (found,) = struct.unpack(form, struct.pack(words, bits))
    return float(found)


def _small_bits(wide: float, form: FloatFormat) -> int:
    """The bits of an f32, rounded to a float of 8 bits."""
    bits = _pattern(wide, DType.F32)
    sign, magnitude = bits >> 31, bits & 0x7FFFFFFF
    if not form.signed:
        return _exponent_of(magnitude)
    sign_bit = sign << 7
    if magnitude > 0x7F800000:
        return form.nan | sign_bit if form.signed_zero else form.nan
    if magnitude >= form.limit:
        found = form.beyond
    elif magnitude < form.least_normal:
        # adding the number whose last place is the type's least lets the addition round
        aligned = bits_value(magnitude, DType.F32) + bits_value(form.aligner, DType.F32)
        found = _pattern(_round_by_packing(aligned, "<f"), DType.F32) - form.aligner
    else:
        shift = 23 - form.fraction
        half = (1 << shift - 1) - 1 + (magnitude >> shift & 1)
        found = magnitude + half - (127 - form.bias << 23) >> shift
    return found | sign_bit if form.signed_zero or 0 < found < 0x80 else found


def _exponent_of(magnitude: int) -> int:
    """The exponent of an f32, which is all that `f8e8m0` keeps.

    From a half on it is the next, as in torch, and NaN is the last.
    """
    exponent, fraction = magnitude >> 23, magnitude & 0x7FFFFF
    if exponent == 0xFF:
        return exponent
    return exponent + (fraction >= 0x400000 if exponent else fraction > 0x400000)


def _small_value(bits: int, form: FloatFormat) -> float:
    if not form.signed:
        return math.nan if bits == form.nan else math.ldexp(1.0, bits - form.bias)
    magnitude, sign = bits & 0x7F, -1.0 if bits & 0x80 else 1.0
    if (
        bits == form.nan
        or (form.signed_zero and magnitude >= form.nan)
        or (form.infinite and magnitude > form.beyond)
    ):
        return math.copysign(math.nan, sign if form.signed_zero else 1.0)
    if form.infinite and magnitude == form.beyond:
        return sign * math.inf
    exponent, fraction = magnitude >> form.fraction, magnitude & (1 << form.fraction) - 1
    whole = fraction + (1 << form.fraction if exponent else 0)
    return sign * math.ldexp(whole, max(exponent, 1) - form.bias - form.fraction)


def _pattern(value: float, dtype: DType) -> int:
    form, words = _FORMS[dtype]
    (found,) = struct.unpack(words, struct.pack(form, value))
    return int(found)


def _round_by_packing(value: float, form: str) -> float:
    try:
        (found,) = struct.unpack(form, struct.pack(form, value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(found)
