"""The functions that nodes of an emitted graph call, besides torch's own operators and the kernels' launchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

Sizes = Sequence[int]

ALIGNMENT_BYTES: Final = 16


def check_layout(value: torch.Tensor, name: str, dtype: torch.dtype, size: Sizes, stride: Sizes) -> None:
    """Refuse an input of another element type, shape or (where it matters) stride than declared.

    Raises:
        ValueError: names the input and what differs.
    """
    if value.dtype != dtype:
        raise ValueError(f"input {name}: element type {value.dtype}, expected {dtype}")
    if tuple(value.shape) != tuple(size):
        raise ValueError(f"input {name}: shape {tuple(value.shape)}, expected {tuple(size)}")
    pairs = zip(value.shape, value.stride(), stride, strict=True)
    if 0 not in value.shape and any(extent != 1 and a != b for extent, a, b in pairs):
        raise ValueError(f"input {name}: strides {value.stride()}, expected {tuple(stride)}")


def check_aligned_layout(
    value: torch.Tensor, name: str, dtype: torch.dtype, size: Sizes, stride: Sizes
) -> torch.Tensor:
    """As `check_layout`; an input whose address is no multiple of 16 bytes is replaced by an aligned copy."""
    check_layout(value, name, dtype, size, stride)
    if value.data_ptr() % ALIGNMENT_BYTES == 0:
        return value
    return torch.empty_strided(size, stride, dtype=dtype, device=value.device).copy_(value)


def reinterpret(value: torch.Tensor, size: Sizes, stride: Sizes, offset: int) -> torch.Tensor:
    """The memory of `value` under another layout, `offset` elements after its first."""
    return torch.as_strided(value, size, stride, value.storage_offset() + offset)


def reinterpret_dtype(
    value: torch.Tensor, size: Sizes, stride: Sizes, offset: int, dtype: torch.dtype
) -> torch.Tensor:
    """As `reinterpret`, with the bits read as `dtype`; `offset` counts elements of `dtype`."""
    start = int(value.storage_offset()) * value.element_size() // dtype.itemsize
    empty = torch.empty(0, dtype=dtype, device=value.device)
    return empty.set_(value.untyped_storage(), start + offset, tuple(size), tuple(stride))


def ensure_layout(value: torch.Tensor, size: Sizes, stride: Sizes) -> torch.Tensor:
    """`value` in the declared layout, copied if an operator chose another one."""
    if tuple(value.stride()) == tuple(stride):
        return value
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device).copy_(value)


def pool_view(
    pool: torch.Tensor, offset_bytes: int, size: Sizes, stride: Sizes, dtype: torch.dtype
) -> torch.Tensor:
    """A tensor that lives in `pool` (bytes), `offset_bytes` after its start."""
    return reinterpret_dtype(pool, size, stride, offset_bytes // dtype.itemsize, dtype)


def check_size(lhs: int, relation: str, rhs: int, message: str) -> None:
    """Raise RuntimeError(message) unless `lhs relation rhs` holds."""
    holds = {"eq": lhs == rhs, "ne": lhs != rhs, "lt": lhs < rhs, "le": lhs <= rhs}[relation]
    if not holds:
        raise RuntimeError(message)


def run_branch(
    predicate: torch.Tensor,
    then: Callable[..., Sequence[Any]],
    otherwise: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
) -> Sequence[Any]:
    """Results of one of two graphs."""
    return then(*operands) if predicate.item() else otherwise(*operands)


def run_loop(
    condition: Callable[..., Sequence[Any]],
    body: Callable[..., Sequence[Any]],
    carried: Sequence[Any],
    extra: Sequence[Any],
) -> Sequence[Any]:
    """The carried values after the last iteration."""
    values = tuple(carried)
    while condition(*values, *extra)[0].item():
        values = tuple(body(*values, *extra))
    return values
