"""Numbers as floats of a type hold them."""

from __future__ import annotations

import math
import struct

from coilwork_ir.dtypes import DType


def rounded(value: float, dtype: DType) -> float:
    """The float of `dtype` nearest to `value`, an infinity beyond its range (IEEE 754, ties to even).

    Those of 16 bits are rounded to 32 before, as torch's are. Of types narrower than these, and of `f64`, `value` itself.
    """
    if dtype not in (DType.F32, DType.BF16, DType.F16):
        return value
    wide = _packed(value, "<f")
    if dtype is DType.F16:
        return _packed(wide, "<e")
    if dtype is DType.BF16 and math.isfinite(wide):
        (bits,) = struct.unpack("<I", struct.pack("<f", wide))
        (wide,) = struct.unpack("<f", struct.pack("<I", bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000))
    return float(wide)


def _packed(value: float, form: str) -> float:
    try:
        (found,) = struct.unpack(form, struct.pack(form, value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(found)
