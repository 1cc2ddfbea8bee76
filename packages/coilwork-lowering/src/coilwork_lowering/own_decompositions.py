"""Decompositions of our own, where those that torch ships differ from eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_LINSPACE = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


def own_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """What replaces entries of `table`, torch's own."""
    aten = torch.ops.aten
    linspace = _linspace(table[aten.linspace.default])
    return {
        aten.max_unpool2d.default: _max_unpool2d(table[aten.max_unpool2d.default]),
        aten.take.default: _take,
        aten.unique_dim.default: _along_the_first(aten.unique_dim.default),
        aten.unique_dim_consecutive.default: _along_the_first(aten.unique_dim_consecutive.default),
        **{getattr(aten.linspace, overload): linspace for overload in _LINSPACE},
    }


def _max_unpool2d(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def max_unpool2d(value: torch.Tensor, indices: torch.Tensor, output_size: Any) -> torch.Tensor:
        """In channels-last where the input is, as eager's kernel for CPUs."""
        result: torch.Tensor = theirs(value, indices, output_size)
        if value.device.type != "cpu":
            return result
        channels_last = not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)
        return result.contiguous(memory_format=torch.channels_last) if channels_last else result

    return max_unpool2d


def _take(value: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Indexing of the flattened tensor. Torch's own reads the value of a 0-dimensional `index` on the host."""
    found: torch.Tensor = torch.ops.aten.index.Tensor(value.reshape(-1), [index])
    return found


def _linspace(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def linspace(
        start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, device: Any = None, **rest: Any
    ) -> Any:
        """In integers, the ends are truncated first, and steps are `float64` on a CPU, `float32` elsewhere."""
        # theirs asks what type the device is of
        where = torch.get_default_device() if device is None else torch.device(device)
        if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
            return theirs(start, end, steps, dtype=dtype, device=where, **rest)
        wide = torch.float64 if where.type == "cpu" else torch.float32
        ends = [_truncated(one, dtype) for one in (start, end)]
        return theirs(*ends, steps, dtype=wide, device=where, **rest).to(dtype)

    return linspace


def _along_the_first(operator: Callable[..., Any]) -> Callable[..., Any]:
    def unique(value: torch.Tensor, dim: int, *rest: Any, **keywords: Any) -> Any:
        """Along another dimension, a view of what is found along the first: so are eager's strides, unlike the meta function's."""
        if value.dim() == 0 or dim % value.dim() == 0:
            return NotImplemented
        found, *others = operator(value.movedim(dim, 0), 0, *rest, **keywords)
        return found.movedim(0, dim), *others

    return unique


def _truncated(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.sym_int(value)
