"""Element types by the names that kernel specifications use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

_TORCH: Final[Mapping[str, torch.dtype]] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u64": torch.uint64,
    "u32": torch.uint32,
    "u16": torch.uint16,
    "u8": torch.uint8,
    "bool": torch.bool,
    "c32": torch.complex32,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "f8e4m3fnuz": torch.float8_e4m3fnuz,
    "f8e5m2fnuz": torch.float8_e5m2fnuz,
    "f8e8m0": torch.float8_e8m0fnu,
    "f4e2m1x2": torch.float4_e2m1fn_x2,
    "qi8": torch.qint8,
    "qu8": torch.quint8,
    "qi32": torch.qint32,
    "qu4x2": torch.quint4x2,
    "qu2x4": torch.quint2x4,
    "bits8": torch.bits8,
    "bits16": torch.bits16,
    "bits4x2": torch.bits4x2,
    "bits2x4": torch.bits2x4,
    "bits1x8": torch.bits1x8,
}


def get_torch_dtype(name: str) -> torch.dtype:
    """Return the torch type for an element type's text name, e.g. `"f32"`."""
    return _TORCH[name]


def get_dtype_name(dtype: torch.dtype) -> str:
    """Inverse of `get_torch_dtype`.

    Raises:
        ValueError: kernels have no such type.
    """
    for name, known in _TORCH.items():
        if known == dtype:
            return name
    raise ValueError(f"kernels have no element type {dtype}")
