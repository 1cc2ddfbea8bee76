"""Padding that only cuts off, padding by elements where torch's meta functions do not know the layout, and the derivative of padding by the outermost elements: what the copies get is added to their element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from coilwork_lowering.torch_compat import surely


def pad_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """By overload; `table` holds torch's own."""
    aten = torch.ops.aten
    by_elements = [
        getattr(aten, f"{kind}_pad{k}d").default for kind in ("reflection", "replication") for k in (1, 2, 3)
    ]
    return {
        **{one: _by_elements(table[one]) for one in by_elements},
        aten.constant_pad_nd.default: _cut,
        aten.replication_pad1d_backward.default: _replicated_backward,
        aten.replication_pad2d_backward.default: _replicated_backward,
        aten.replication_pad3d_backward.default: _replicated_backward,
    }


def _cut(value: torch.Tensor, padding: Sequence[Any], fill: Any = 0) -> Any:
    """A copy of what is left where nothing is added, as ATen; torch's meta function lays it out by rows if sizes are not known."""
    if not all(surely(amount <= 0) for amount in padding):
        return NotImplemented
    left = value
    for k, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        dim = value.dim() - 1 - k
        left = left.narrow(dim, -before, left.shape[dim] + before + after)
    return left.clone()


def _by_elements(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(value: torch.Tensor, *rest: Any) -> Any:
        """Lowered as it is where eager's result is contiguous, which is all that meta functions of torch 2.11 know.

        Truth values, too: eager refuses them, in words of its own.
        """
        plain = _is_surely_contiguous(value) and not value.is_complex()
        return NotImplemented if plain or value.dtype == torch.bool else theirs(value, *rest)

    return decomposed


def _is_surely_contiguous(value: torch.Tensor) -> bool:
    """Whether rows follow each other whatever the sizes are; `is_contiguous` would add guards on them."""
    step: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not surely(size == 1) and not surely(stride == step):
            return False
        step = step * size
    return True


def _replicated_backward(gradient: torch.Tensor, value: torch.Tensor, padding: Sequence[int]) -> Any:
    """`padding` holds how much is added before and after, from the last dimension on; what is negative was cut off."""
    if value.dtype not in (torch.float32, torch.float64) or not _is_surely_contiguous(value):
        return NotImplemented
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    for k, (before, after) in enumerate(pairs):
        size = value.shape[-1 - k]
        if not surely(before + size > 0) or not surely(after + size > 0):
            return NotImplemented
    for k, (before, after) in enumerate(pairs):
        gradient = _along(gradient, value.dim() - 1 - k, before, after)
    return gradient


def _along(gradient: torch.Tensor, dim: int, before: int, after: int) -> torch.Tensor:
    """The gradient of what was padded along one dimension."""
    first, end = max(before, 0), gradient.shape[dim] - max(after, 0)
    inner = gradient.narrow(dim, first, end - first)
    total = inner if before >= 0 and after >= 0 else _placed(inner, dim, -min(before, 0), -min(after, 0))
    size = total.shape[dim]
    if before > 0:
        outer = gradient.narrow(dim, 0, before).sum(dim, keepdim=True)
        total = total + _placed(outer, dim, 0, size - 1)
    if after > 0:
        outer = gradient.narrow(dim, end, after).sum(dim, keepdim=True)
        total = total + _placed(outer, dim, size - 1, 0)
    return total


def _placed(value: torch.Tensor, dim: int, before: Any, after: Any) -> torch.Tensor:
    """With zeros before and after."""
    pads = [0, 0] * (value.dim() - 1 - dim) + [before, after]
    found: torch.Tensor = torch.ops.aten.constant_pad_nd.default(value, pads)
    return found
