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
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch type for an element type's text name, e.g. `"f32"`."""
    return _TORCH[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Inverse of `torch_dtype`.

    Raises:
        ValueError: kernels have no such type.
    """
    for name, known in _TORCH.items():
        if known == dtype:
            return name
    raise ValueError(f"kernels have no element type {dtype}")
