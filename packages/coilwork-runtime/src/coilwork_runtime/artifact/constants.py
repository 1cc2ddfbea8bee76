"""Tensors as raw bytes and back: what a generated module's constants are saved as."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from coilwork_runtime.dtypes import dtype_name, torch_dtype


def describe_constant(value: torch.Tensor) -> dict[str, Any]:
    """Element type, layout and device, as JSON."""
    return {
        "dtype": dtype_name(value.dtype),
        "size": list(value.shape),
        "stride": list(value.stride()),
        "device": str(value.device),
    }


def constant_bytes(value: torch.Tensor) -> bytes:
    """The memory from the first to the last element."""
    plain = value.detach().resolve_conj().resolve_neg()
    flat = torch.as_strided(plain, (span_of(plain.shape, plain.stride()),), (1,)).cpu()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def constant_from_bytes(description: Mapping[str, Any], data: bytes) -> torch.Tensor:
    """The tensor, on the device it was on.

    Raises:
        ValueError: the bytes are too few or too many for the description.
    """
    dtype = torch_dtype(description["dtype"])
    size, stride = tuple(description["size"]), tuple(description["stride"])
    span = span_of(size, stride)
    if span * dtype.itemsize != len(data):
        raise ValueError(f"a constant of {span} elements of {dtype} has {len(data)} bytes")
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return torch.as_strided(flat.to(description["device"]), size, stride)


def span_of(size: torch.Size | tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last, both included."""
    if 0 in size:
        return 0
    return sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) + 1
