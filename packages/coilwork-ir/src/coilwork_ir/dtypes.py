"""Element types, and how they hold numbers.

`DType` is the compiler's own enumeration, so that the IRs need no torch. The names are the ones the text
forms print (`f32`, `bf16`, `i64`, `bool`); `torch_name` is the attribute of the `torch` module.
`round_to_dtype`, `get_float_bits` and `read_float_bits` round and take apart floats of any type, as torch
does.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

# ---- Element types ----


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    """The meaning of the bits of an 8-bit float, and the bits that an f32 becomes: all that conversions need.

    Attributes:
        exponent: bits of the exponent.
        fraction: bits behind the point.
        bias: what an exponent of 0 is less than that of 1.0.
        beyond: the code, without sign, of what is too large for the type: an infinity, the largest number, or
            NaN.
        nan: the code of NaN, with the sign bit where that alone makes it one.
        largest: the code of the largest number.
        infinite: whether `beyond` is an infinity, and NaN whatever is above.
        signed_zero: whether there is a -0.0; where there is not, its code is NaN's.
        signed: whether there are negative numbers, and 0: a type without holds powers of two alone.
    """

    exponent: int
    fraction: int
    bias: int
    beyond: int
    nan: int
    largest: int
    infinite: bool = False
    signed_zero: bool = True
    signed: bool = True

    @property
    def least_normal(self) -> int:
        """The bits of the least f32 with all digits of this type."""
        return 128 - self.bias << 23

    @property
    def aligner(self) -> int:
        """The bits of the f32 whose last place is worth as much as the least number of this type."""
        return 127 - self.bias + 24 - self.fraction << 23

    @property
    def limit(self) -> int:
        """The bits of an f32 from which on everything is `beyond`; rounding leads there from below, too."""
        if self.beyond == self.largest:
            return (self.largest << 23 - self.fraction) + (127 - self.bias << 23)
        return (self.largest >> self.fraction) + 1 + 127 - self.bias << 23


class DType(Enum):
    """An element type: text name, torch attribute, size in bytes, and class of values."""

    F64 = ("f64", "float64", 8, "float")
    F32 = ("f32", "float32", 4, "float")
    F16 = ("f16", "float16", 2, "float")
    BF16 = ("bf16", "bfloat16", 2, "float")
    F8E4M3 = ("f8e4m3", "float8_e4m3fn", 1, "float")
    F8E5M2 = ("f8e5m2", "float8_e5m2", 1, "float")
    I64 = ("i64", "int64", 8, "int")
    I32 = ("i32", "int32", 4, "int")
    I16 = ("i16", "int16", 2, "int")
    I8 = ("i8", "int8", 1, "int")
    U64 = ("u64", "uint64", 8, "uint")
    U32 = ("u32", "uint32", 4, "uint")
    U16 = ("u16", "uint16", 2, "uint")
    U8 = ("u8", "uint8", 1, "uint")
    BOOL = ("bool", "bool", 1, "bool")
    C32 = ("c32", "complex32", 4, "complex")
    C64 = ("c64", "complex64", 8, "complex")
    C128 = ("c128", "complex128", 16, "complex")
    F8E4M3FNUZ = ("f8e4m3fnuz", "float8_e4m3fnuz", 1, "float")
    F8E5M2FNUZ = ("f8e5m2fnuz", "float8_e5m2fnuz", 1, "float")
    F8E8M0 = ("f8e8m0", "float8_e8m0fnu", 1, "float")
    F4E2M1X2 = ("f4e2m1x2", "float4_e2m1fn_x2", 1, "other")
    QI8 = ("qi8", "qint8", 1, "quantized")
    QU8 = ("qu8", "quint8", 1, "quantized")
    QI32 = ("qi32", "qint32", 4, "quantized")
    QU4X2 = ("qu4x2", "quint4x2", 1, "quantized")
    QU2X4 = ("qu2x4", "quint2x4", 1, "quantized")
    BITS8 = ("bits8", "bits8", 1, "bits")
    BITS16 = ("bits16", "bits16", 2, "bits")
    BITS4X2 = ("bits4x2", "bits4x2", 1, "bits")
    BITS2X4 = ("bits2x4", "bits2x4", 1, "bits")
    BITS1X8 = ("bits1x8", "bits1x8", 1, "bits")

    def __init__(self, text: str, torch_name: str, itemsize: int, category: str) -> None:
        self.text = text
        self.torch_name = torch_name
        self.itemsize = itemsize
        self.category = category

    @property
    def is_float(self) -> bool:
        """True for real floating point types that generated code computes with."""
        return self.category == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers; False for `bool`."""
        return self.category in ("int", "uint")

    @property
    def is_signed_integer(self) -> bool:
        """True for the two's complement integers."""
        return self.category == "int"

    @property
    def is_bool(self) -> bool:
        """True for `bool` only."""
        return self.category == "bool"

    @property
    def is_complex(self) -> bool:
        """True for complex types."""
        return self.category == "complex"

    @property
    def is_opaque(self) -> bool:
        """True for types that generated code does not compute with, which only pass from call to call.

        These are complex and quantised numbers, rare floats, and bits.
        """
        return self.category in ("complex", "other", "quantized", "bits")

    @property
    def is_quantized(self) -> bool:
        """True for quantised types, whose tensors carry scales and zero points: only operators make, copy and
        lay out such tensors.
        """
        return self.category == "quantized"

    @property
    def is_low_precision(self) -> bool:
        """True for floats narrower than 32 bits: loaded and computed as `f32`."""
        return self.category == "float" and self.itemsize < 4

    @property
    def compute(self) -> DType:
        """The type that arithmetic on this type is carried out in (`numerics=fast`)."""
        return DType.F32 if self.is_low_precision else self

    @property
    def format(self) -> FloatFormat | None:
        """The meaning of the bits of an 8-bit float; None of other types."""
        return FORMATS.get(self)

    def __repr__(self) -> str:
        return f"DType.{self.name}"


# As torch converts, on CPUs and GPUs, from 2.13 on: before, what is beyond `f8e4m3` became NaN.
FORMATS: Final[Mapping[DType, FloatFormat]] = MappingProxyType(
    {
        DType.F8E4M3: FloatFormat(exponent=4, fraction=3, bias=7, beyond=0x7E, nan=0x7F, largest=0x7E),
        DType.F8E5M2: FloatFormat(
            exponent=5, fraction=2, bias=15, beyond=0x7C, nan=0x7F, largest=0x7B, infinite=True
        ),
        DType.F8E4M3FNUZ: FloatFormat(
            exponent=4, fraction=3, bias=8, beyond=0x80, nan=0x80, largest=0x7F, signed_zero=False
        ),
        DType.F8E5M2FNUZ: FloatFormat(
            exponent=5, fraction=2, bias=16, beyond=0x80, nan=0x80, largest=0x7F, signed_zero=False
        ),
        DType.F8E8M0: FloatFormat(
            exponent=8,
            fraction=0,
            bias=127,
            beyond=0xFF,
            nan=0xFF,
            largest=0xFE,
            signed_zero=False,
            signed=False,
        ),
    }
)


def parse_dtype(text: str) -> DType:
    """Return the type whose text name is `text`.

    Raises:
        ValueError: no type has that name.
    """
    for dtype in DType:
        if dtype.text == text:
            return dtype
    raise ValueError(f"unknown element type {text!r}; known: {', '.join(d.text for d in DType)}")


TORCH_NAMES: Final = frozenset(f"torch.{dtype.torch_name}" for dtype in DType)
"""The element types of torch that Coilwork represents, as torch prints them."""


def parse_torch_dtype(name: str) -> DType:
    """Return the type for a torch attribute name such as `"float32"` or `"torch.float32"`.

    Raises:
        ValueError: Coilwork has no such element type (integers of fewer than 8 bits).
    """
    bare = name.removeprefix("torch.")
    for dtype in DType:
        if dtype.torch_name == bare:
            return dtype
    raise ValueError(f"torch element type {name!r} is not one Coilwork represents")


# ---- Rounding ----


_FORMS: Final[Mapping[DType, tuple[str, str]]] = MappingProxyType(
    {DType.F64: ("<d", "<Q"), DType.F32: ("<f", "<I"), DType.F16: ("<e", "<H")}
)


def round_to_dtype(value: float, dtype: DType) -> float:
    """Return the float of `dtype` nearest to `value`, as torch rounds; ties to even.

    Those of fewer than 32 bits are rounded to 32 before, as torch's are. Of `f64`, and of no floats, `value`
    itself.
    """
    if not dtype.is_float or dtype is DType.F64:
        return value
    return read_float_bits(get_float_bits(value, dtype), dtype)


def get_float_bits(value: float, dtype: DType) -> int:
    """Return the bits of `value`, rounded to the float type `dtype`; a NaN keeps its sign where the type has
    one.
    """
    if dtype is DType.F64:
        return _pattern(value, dtype)
    wide = _round_by_packing(value, "<f")
    if dtype is DType.BF16:
        bits = _pattern(wide, DType.F32)
        return (bits >> 16 & 0x8000) | 0x7FC0 if wide != wide else bits + 0x7FFF + (bits >> 16 & 1) >> 16
    if dtype.format is not None:
        return _encode_small(wide, dtype.format)
    return _pattern(_round_by_packing(wide, _FORMS[dtype][0]), dtype)


def read_float_bits(bits: int, dtype: DType) -> float:
    """Return the number that `bits` are as a float of type `dtype`."""
    if dtype is DType.BF16:
        bits, dtype = bits << 16, DType.F32
    if dtype.format is not None:
        return _decode_small(bits, dtype.format)
    form, words = _FORMS[dtype]
    (number,) = struct.unpack(form, struct.pack(words, bits))
    return float(number)


def _encode_small(wide: float, form: FloatFormat) -> int:
    """Return the bits of an f32, rounded to a float of 8 bits."""
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
        aligned = read_float_bits(magnitude, DType.F32) + read_float_bits(form.aligner, DType.F32)
        found = _pattern(_round_by_packing(aligned, "<f"), DType.F32) - form.aligner
    else:
        shift = 23 - form.fraction
        half = (1 << shift - 1) - 1 + (magnitude >> shift & 1)
        found = magnitude + half - (127 - form.bias << 23) >> shift
    return found | sign_bit if form.signed_zero or 0 < found < 0x80 else found


def _exponent_of(magnitude: int) -> int:
    """Return the exponent of an f32, which is all that `f8e8m0` keeps.

    From a half on it is the next, as in torch, and NaN is the last.
    """
    exponent, fraction = magnitude >> 23, magnitude & 0x7FFFFF
    if exponent == 0xFF:
        return exponent
    return exponent + (fraction >= 0x400000 if exponent else fraction > 0x400000)


def _decode_small(bits: int, form: FloatFormat) -> float:
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
    (bits,) = struct.unpack(words, struct.pack(form, value))
    return int(bits)


def _round_by_packing(value: float, form: str) -> float:
    try:
        (number,) = struct.unpack(form, struct.pack(form, value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(number)
