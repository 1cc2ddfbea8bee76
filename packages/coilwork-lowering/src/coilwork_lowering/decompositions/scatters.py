"""Writes at positions that come from tensors, as simpler ones: without dimensions, without the old elements,
by a list of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_lowering.decompositions.requirements import meets
from coilwork_lowering.torch_compat.sizes import surely

# Types that elements are added and compared in as they are.
_EXACT: Final = (torch.float32, torch.float64, torch.int32, torch.int64)


def scatter_decompositions() -> dict[Any, Callable[..., Any]]:
    """By overload."""
    aten = torch.ops.aten
    of_a_number = (
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter.reduce,
        aten.scatter.value_reduce,
        aten.scatter_add.default,
    )
    return {
        **{operator: _scatter_one_number(operator) for operator in of_a_number},
        aten.scatter_reduce.two: _scatter_reduce,
        aten.index_reduce.default: _index_reduce,
        aten.index_fill.int_Scalar: _index_fill,
        aten.index_fill.int_Tensor: _index_fill,
        aten.put.default: _put,
        aten.masked_scatter_backward.default: _masked_scatter_backward,
    }


def _scatter_one_number(operator: Callable[..., Any]) -> Callable[..., Any]:
    def scatter(value: torch.Tensor, dim: int, index: torch.Tensor, source: Any, **keywords: Any) -> Any:
        """A tensor without dimensions is one of a single element."""
        operands = [one for one in (value, index, source) if isinstance(one, torch.Tensor)]
        if all(one.dim() > 0 for one in operands):
            return NotImplemented
        given = _row(source) if isinstance(source, torch.Tensor) else source
        return operator(_row(value), dim, _row(index), given, **keywords).view(value.shape)

    return scatter


def _row(value: torch.Tensor) -> torch.Tensor:
    return value.view(1) if value.dim() == 0 else value


def _scatter_reduce(
    value: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Without the old elements, those that are written to first become what the reduction leaves alone.

    A mean is a sum, divided by how many were added. Accelerators that sort positions do both by themselves.
    """
    scatter_reduce = torch.ops.aten.scatter_reduce.two
    if value.dim() == 0 or index.dim() == 0 or source.dim() == 0:
        row = scatter_reduce(_row(value), dim, _row(index), _row(source), reduce, include_self=include_self)
        return row.view(value.shape)
    if (include_self and reduce != "mean") or value.dtype not in _EXACT or not surely(index.numel() > 0):
        return NotImplemented
    if not has_trait(value.device.type, PROCESSOR):
        return NotImplemented
    if not include_self:
        value = torch.ops.aten.scatter.value(value, dim, index, _neutral(reduce, value.dtype))
    if reduce != "mean":
        return scatter_reduce(value, dim, index, source, reduce)
    added = torch.ops.aten.scatter_add.default(value, dim, index, source)
    counts = torch.full_like(value, 1 if include_self else 0)
    counts = torch.ops.aten.scatter_add.default(counts, dim, index, torch.ones_like(source))
    rounding = None if value.dtype.is_floating_point else "floor"
    return torch.div(added, counts.clamp(min=1), rounding_mode=rounding)


def _neutral(reduce: str, dtype: torch.dtype) -> int | float:
    if reduce == "prod":
        return 1
    if reduce in ("sum", "mean"):
        return 0
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    limits = torch.iinfo(dtype)
    return int(limits.min if reduce == "amax" else limits.max)


def _describe_refused() -> str:
    return (
        "index_reduce: the source must have the shape of what it is reduced into, but for the dimension of "
        "the index"
    )


def _index_reduce(
    value: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Every element of a row goes where the row goes."""
    if value.dim() == 0 or index.dim() != 1 or source.dim() != value.dim() or value.dtype not in _EXACT:
        return NotImplemented
    if not has_trait(value.device.type, PROCESSOR) or not surely(source.numel() > 0):
        return NotImplemented
    if not -value.dim() <= dim < value.dim():
        return NotImplemented
    at = dim % value.dim()
    for k, (size, wanted) in enumerate(zip(source.shape, value.shape, strict=True)):
        if not meets(size == (index.shape[0] if k == at else wanted), _describe_refused):
            return NotImplemented
    shape = [-1 if k == at else 1 for k in range(value.dim())]
    positions = index.to(torch.int64).view(shape).expand(source.shape)
    return torch.ops.aten.scatter_reduce.two(value, at, positions, source, reduce, include_self=include_self)


def _convert_element(number: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An element of `dtype`. Eager converts such a number on the host, and refuses what does not fit, as
    `masked_fill` does.
    """
    place = torch.zeros((), dtype=dtype, device=number.device)
    return place.masked_fill(torch.ones_like(place, dtype=torch.bool), number)


def _index_fill(value: torch.Tensor, dim: int, index: torch.Tensor, filling: Any) -> Any:
    """Rows of copies of one number, in the layout of `value`. Torch 2.11's own writes into a tensor that it
    makes.
    """
    if index.dim() > 1 or index.dtype is not torch.int64:
        return NotImplemented
    if not -max(value.dim(), 1) <= dim < max(value.dim(), 1):
        return NotImplemented
    if isinstance(filling, torch.Tensor):
        if filling.dim() != 0:
            return NotImplemented
        number = filling if filling.dtype is value.dtype else _convert_element(filling, value.dtype)
    else:
        number = torch.full((), filling, dtype=value.dtype, device=value.device)
    rows = value.unsqueeze(0) if value.dim() == 0 else value
    at = dim % rows.dim()
    shape = [index.numel() if k == at else size for k, size in enumerate(rows.shape)]
    filled = torch.ops.aten.index_copy.default(rows, at, index, number.expand(shape))
    result: torch.Tensor = filled.view(value.shape)
    wanted = torch.ops.aten.clone.default(value).stride()
    if all(surely(a == b) for a, b in zip(result.stride(), wanted, strict=True)):
        return result
    laid_out: torch.Tensor = torch.ops.prims.copy_strided.default(result, wanted)
    return laid_out


def _put(value: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> Any:
    """Into the flattened tensor."""
    if not value.is_contiguous() or index.dtype is not torch.int64 or value.dtype is not source.dtype:
        return NotImplemented
    if not surely(index.numel() == source.numel()) or not surely(value.numel() > 0):
        return NotImplemented
    flat = torch.ops.aten.index_put.default(
        value.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate
    )
    return flat.view(value.shape)


def _masked_scatter_backward(gradient: torch.Tensor, mask: torch.Tensor, sizes: Sequence[Any]) -> Any:
    """Return what the mask chooses is put side by side, behind it zeros. What it does not goes to one place
    more, which is left out.
    """
    count = math.prod(sizes)
    if not surely(gradient.numel() > 0) or not surely(gradient.numel() <= count):
        return NotImplemented
    chosen = torch.broadcast_to(mask, gradient.shape).reshape(-1)
    places = torch.where(chosen, chosen.cumsum(0) - 1, count)
    # of those that go to the same place all are zeros
    given = torch.where(chosen, gradient.reshape(-1), 0)
    made = gradient.new_zeros(count + 1)
    placed = torch.ops.aten.index_put.default(made, [places], given)
    return placed[:count].view(sizes).clone()
