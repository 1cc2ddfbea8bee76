"""Fourier transforms of real numbers on CPUs, along dimensions in the order that the kernel takes them in.

It lays results out in that order, with the dimensions that are transformed innermost. Torch 2.11's meta
function says that they are contiguous, which is so where the dimensions are in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_ir.device_traits import CPU_LIBRARIES, has_trait
from coilwork_lowering.torch_compat.sizes import surely


def fourier_decompositions() -> dict[Any, Callable[..., Any]]:
    """By overload."""
    return {torch.ops.aten._fft_r2c.default: _transform}


def _transform(value: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    # other libraries than MKL fill a contiguous tensor
    if not has_trait(value.device.type, CPU_LIBRARIES) or not torch.backends.mkl.is_available():
        return NotImplemented
    wrapped = [k % value.dim() for k in dims]
    batch = _sort_descending(value, [k for k in range(value.dim()) if k not in wrapped])
    outer = _sort_descending(value, wrapped[:-1])
    if batch is None or outer is None:
        return NotImplemented
    order = [*batch, *outer, wrapped[-1]]
    if order == list(range(value.dim())):
        return NotImplemented
    inner = list(range(len(batch), value.dim()))
    found = torch.ops.aten._fft_r2c.default(value.permute(order), inner, normalization, onesided)
    return found.permute([order.index(k) for k in range(value.dim())])


def _sort_descending(value: torch.Tensor, dims: Sequence[int]) -> list[int] | None:
    """`dims` by their strides, the largest first, those of one stride as they are; None where these are not
    known well enough.
    """
    strides = value.stride()
    ordered: list[int] = []
    for dim in dims:
        larger = [surely(strides[other] >= strides[dim]) for other in ordered]
        smaller = [surely(strides[other] < strides[dim]) for other in ordered]
        if not all(a or b for a, b in zip(larger, smaller, strict=True)):
            return None
        ordered.insert(larger.count(True), dim)
    return ordered
