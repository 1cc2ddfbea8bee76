"""Padding that only cuts off, padding by elements and its derivatives where torch's meta functions do not
know the layout.

What the copies of an outermost element get is added to the element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_lowering.torch_compat.operators import suggest_format
from coilwork_lowering.torch_compat.sizes import surely


def pad_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """By overload; `table` holds torch's own."""
    aten = torch.ops.aten
    found: dict[Any, Callable[..., Any]] = {aten.constant_pad_nd.default: _cut}
    for k in (1, 2, 3):
        for kind in ("reflection", "replication"):
            padded = getattr(aten, f"{kind}_pad{k}d").default
            found[padded] = _pad_by_elements(padded, table[padded], k)
        reflected = getattr(aten, f"reflection_pad{k}d_backward").default
        replicated = getattr(aten, f"replication_pad{k}d_backward").default
        found[reflected] = _backward(reflected, k, lambda *_: NotImplemented)
        found[replicated] = _backward(replicated, k, _replicated_backward)
    return found


def _cut(value: torch.Tensor, padding: Sequence[Any], fill: Any = 0) -> Any:
    """A copy of what is left where nothing is added, as ATen; torch's meta function lays it out by rows if
    sizes are not known.
    """
    if not all(surely(amount <= 0) for amount in padding):
        return NotImplemented
    left = value
    for k, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        dim = value.dim() - 1 - k
        left = left.narrow(dim, -before, left.shape[dim] + before + after)
    return left.clone()


def _pad_by_elements(padded: Callable[..., Any], theirs: Callable[..., Any], dims: int) -> Callable[..., Any]:
    def decompose(value: torch.Tensor, *rest: Any) -> Any:
        """Lowered as it is where eager's result is contiguous, which is all that meta functions of torch 2.11
        know; and where it is not, as a copy of such a one.

        Booleans, too: eager refuses them, in words of its own.
        """
        if value.dtype == torch.bool or (_is_surely_contiguous(value) and not value.is_complex()):
            return NotImplemented
        rows = value.clone(memory_format=torch.contiguous_format)
        if (
            value.is_complex()
            or not has_trait(value.device.type, ATEN_CPU)
            or not _is_surely_contiguous(rows)
        ):
            return theirs(value, *rest)
        return _take_format_of(padded(rows, *rest), value, dims)

    return decompose


def _backward(backward: Callable[..., Any], dims: int, by_parts: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(gradient: torch.Tensor, value: torch.Tensor, padding: Sequence[int]) -> Any:
        """`by_parts`, or a call, for a contiguous value; what that gives in the format of another. Of a value
        the shape counts.
        """
        if _is_surely_contiguous(value) or not has_trait(value.device.type, ATEN_CPU):
            return by_parts(gradient, value, padding)
        rows = value.new_empty(value.shape)
        if not _is_surely_contiguous(rows):
            return NotImplemented
        found = by_parts(gradient, rows, padding)
        if found is NotImplemented:
            found = backward(gradient, rows, padding)
        return _take_format_of(found.clone(memory_format=torch.contiguous_format), value, dims)

    return decompose


def _take_format_of(result: torch.Tensor, value: torch.Tensor, dims: int) -> torch.Tensor:
    """`result` in channels-last if `value` lies so: as eager's kernels for CPUs make it, of one volume as of
    a batch of images.
    """
    wanted = suggest_format(value) if dims > 1 else torch.contiguous_format
    return result if wanted is torch.contiguous_format else result.clone(memory_format=wanted)


def _is_surely_contiguous(value: torch.Tensor) -> bool:
    """Tell if rows follow each other whatever the sizes are; `is_contiguous` would add guards on them.

    Dimensions of one element count: by their strides torch tells a format from another.
    """
    step: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not surely(stride == step):
            return False
        step = step * size
    return True


def _replicated_backward(gradient: torch.Tensor, value: torch.Tensor, padding: Sequence[int]) -> Any:
    """`padding` holds how much is added before and after, from the last dimension on; what is negative was
    cut off.
    """
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
    total = (
        inner
        if before >= 0 and after >= 0
        else _surround_with_zeros(inner, dim, -min(before, 0), -min(after, 0))
    )
    size = total.shape[dim]
    if before > 0:
        outer = gradient.narrow(dim, 0, before).sum(dim, keepdim=True)
        total = total + _surround_with_zeros(outer, dim, 0, size - 1)
    if after > 0:
        outer = gradient.narrow(dim, end, after).sum(dim, keepdim=True)
        total = total + _surround_with_zeros(outer, dim, size - 1, 0)
    return total


def _surround_with_zeros(value: torch.Tensor, dim: int, before: Any, after: Any) -> torch.Tensor:
    """With zeros before and after."""
    pads = [0, 0] * (value.dim() - 1 - dim) + [before, after]
    found: torch.Tensor = torch.ops.aten.constant_pad_nd.default(value, pads)
    return found
