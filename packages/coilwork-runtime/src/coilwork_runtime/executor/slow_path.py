"""The slow path of the native executor: refusals in the words of the Python path, retries, questions.

Native code calls these functions by name (native/call/python_side.hpp).
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.layout_checks import (
    Sizes,
    check_aligned_layout,
    check_layout,
    check_memory,
    check_rank,
    empty_strided,
    ensure_aligned_layout,
    ensure_layout,
    reinterpret_dtype,
)
from coilwork_runtime.streams import CallStreams

__all__ = [
    "allocate_empty",
    "allocate_scratch",
    "check",
    "check_rank",
    "count_allocated_bytes",
    "make_streams",
    "raise_failed_check",
    "reinterpret_again",
    "settle",
]


def count_allocated_bytes(device: int) -> int:
    """Return the bytes of the process's tensors on a GPU; 0 for a device that torch does not know (-1)."""
    if device < 0:
        return 0
    current: int = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["current"]
    return current


def check(
    value: torch.Tensor, name: str, dtype: str, device: str, size: Sizes, stride: Sizes, aligned: int
) -> torch.Tensor:
    """Do as `check_layout`, or `check_aligned_layout` if `aligned`.

    Raises:
        LayoutError: the input is not as declared, or its memory is not there any more.
    """
    check_layout(value, name, _dtype(dtype), device, size, stride)
    check_memory(value, name)
    return check_aligned_layout(value, name, _dtype(dtype), device, size, stride) if aligned else value


def allocate_empty(size: Sizes, stride: Sizes, dtype: str, device: str) -> torch.Tensor:
    """Allocate memory that torch's C interface did not give; torch raises the reason of a failure."""
    return empty_strided(size, stride, _dtype(dtype), device)


def allocate_scratch(size_bytes: int, device: int) -> torch.Tensor:
    """Allocate scratch memory of a kernel, on a GPU or (-1) the CPU."""
    return torch.empty(size_bytes, dtype=torch.uint8, device="cpu" if device < 0 else f"cuda:{device}")


def make_streams() -> CallStreams:
    """Return a table for the streams and events of one call."""
    return CallStreams()


def settle(value: torch.Tensor, size: Sizes, stride: Sizes, dtype: str, aligned: int) -> torch.Tensor:
    """Do as `ensure_layout`, or `ensure_aligned_layout` if `aligned`.

    Raises:
        LayoutError: an operator returned another shape or element type.
    """
    ensure = ensure_aligned_layout if aligned else ensure_layout
    return ensure(value, size, stride, _dtype(dtype))


def reinterpret_again(
    value: torch.Tensor, size: Sizes, stride: Sizes, dtype: str, offset: int
) -> torch.Tensor:
    """Do as `reinterpret_dtype`.

    Raises:
        LayoutError: the memory starts between two elements.
    """
    return reinterpret_dtype(value, size, stride, _dtype(dtype), offset)


def raise_failed_check(launcher: Any, number: int) -> NoReturn:
    """Raise the error of check `number`, counted from 1, of a kernel.

    Raises:
        IndexError, RuntimeError, ZeroDivisionError: that error.
    """
    if isinstance(launcher, Launcher) and launcher.report is not None:
        launcher.report(number)
    raise RuntimeError(f"check {number} of a kernel failed")


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
