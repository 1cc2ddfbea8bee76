"""Rows that tensors of positions, lengths or offsets choose: repeated, reduced by segments, kept below a
norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR, has_trait
from coilwork_lowering.torch_compat.sizes import surely

# Keeps eager's factor finite for norms of 0.
_EPSILON: Final = 1e-7
_FLOATS: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# A reduction of segments: the reduction that scatters have, and what it starts from.
_SEGMENTS: Final[Mapping[str, tuple[str, float]]] = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "prod": ("prod", 1.0),
    "max": ("amax", -math.inf),
    "min": ("amin", math.inf),
}


def row_decompositions() -> dict[Any, Callable[..., Any]]:
    """By overload."""
    aten = torch.ops.aten
    return {
        aten.embedding_renorm.default: _embedding_renorm,
        aten.repeat_interleave.Tensor: _repeat_interleave,
        aten.segment_reduce.default: _segment_reduce,
        aten._segment_reduce_backward.default: _segment_reduce_backward,
    }


def _embedding_renorm(table: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Any:
    """Rows that are looked up and longer than `max_norm`, shortened to it.

    Rows looked up twice are written twice, the same each time. As in eager the factor is computed in
    `float64`.
    """
    if table.dim() != 2 or table.dtype not in _FLOATS or not surely(indices.numel() > 0):
        return NotImplemented
    rows = indices.reshape(-1).to(torch.int64)
    found = torch.ops.aten.index.Tensor(table, [rows])
    norms = torch.linalg.vector_norm(found, norm_type, 1, keepdim=True)
    factors = (max_norm / (norms.to(torch.float64) + _EPSILON)).to(table.dtype)
    kept = torch.where(norms > max_norm, found * factors, found)
    return torch.ops.aten.index_put.default(table, [rows], kept)


def _repeat_interleave(repeats: Tensor, *, output_size: Any = None) -> Any:
    """Each position as often as `repeats` says, where it is known how many that makes: the segment that an
    element lies in.

    A CPU is left to ATen, which writes run after run.
    """
    if output_size is None or repeats.dim() != 1 or has_trait(repeats.device.type, PROCESSOR):
        return NotImplemented
    if not surely(repeats.shape[0] > 0) or not surely(output_size > 0):
        return NotImplemented
    ends = repeats.cumsum(0)
    _assert((repeats >= 0).all(), "repeats can not be negative")
    _assert(ends.select(0, -1) == output_size, "allocated size does not match required size")
    return _segments_of(ends, output_size).to(repeats.dtype)


def _segments_of(ends: Tensor, count: Any) -> Tensor:
    """For `count` elements, the segment that each lies in: how many of the ascending `ends` are not behind
    it.

    Behind all ends that is the number of segments. A CPU counts on from element to element, where others
    search.
    """
    if has_trait(ends.device.type, PROCESSOR):
        marks = torch.zeros(*ends.shape[:-1], count + 1, dtype=torch.int64)
        ended = torch.scatter_add(marks, -1, ends.clamp(max=count), torch.ones_like(ends))
        return ended.narrow(-1, 0, count).cumsum(-1)
    places = torch.arange(count, device=ends.device)
    if ends.dim() > 1:
        places = places.expand(*ends.shape[:-1], count)
    return torch.searchsorted(ends, places, right=True)


def _assert(condition: Tensor, message: str) -> None:
    torch.ops.aten._assert_async.msg(condition, message)


def _segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Any:
    """Segments of rows along the last dimension of `lengths` or `offsets`, each reduced to one: `(batch,
    segments, inner)`.

    Elements are scattered to their segments, those of none to one more, which is cut off.
    """
    borders = _borders(data, lengths, offsets, axis)
    if borders is None or indices is not None or reduce not in _SEGMENTS:
        return NotImplemented
    starts, ends = borders
    at = ends.dim() - 1
    if lengths is not None and not unsafe:
        _assert((lengths >= 0).all(), "lengths contains negative value!")
        _assert((ends.select(at, -1) == data.shape[at]).all(), "lengths do not add up to the size of data")
    elif has_trait(data.device.type, ATEN_CPU):
        _assert((ends >= starts).all(), "Expected segment_length >= 0 to be true, but got false.")
    kind, neutral = _SEGMENTS[reduce]
    wide = data if data.dtype is torch.float64 else data.to(torch.float32)
    shape = [size + 1 if k == at else size for k, size in enumerate(_shape(data, ends))]
    begun = torch.full(shape, neutral if initial is None else initial, dtype=wide.dtype, device=data.device)
    where = _positions(data, starts, ends)
    found = torch.ops.aten.scatter_reduce.two(begun, at, where, wide, kind).narrow(at, 0, ends.shape[at])
    if reduce == "mean":
        count = _append_dimensions(ends - starts, found)
        if initial is None:
            found = torch.where(count > 0, found / count, math.nan)
        else:
            found = torch.where(count > 0, found / count, found)
    return found.to(data.dtype).contiguous()


def _borders(
    data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int
) -> tuple[Tensor, Tensor] | None:
    """Return where segments start and end, or `None` where that is left to eager."""
    given = lengths if lengths is not None else offsets
    if given is None or data.dtype not in _FLOATS or given.dtype not in (torch.int32, torch.int64):
        return None
    at = given.dim() - 1
    if at < 0 or axis % max(data.dim(), 1) != at or data.dim() <= at or not data.is_contiguous():
        return None
    if not surely(data.numel() > 0) or not surely(given.shape[at] > (0 if lengths is not None else 1)):
        return None
    if lengths is not None:
        ends = lengths.cumsum(at)
        return ends - lengths, ends
    wide = given.to(torch.int64)
    count = given.shape[at] - 1
    return wide.narrow(at, 0, count), wide.narrow(at, 1, count)


def _shape(data: Tensor, ends: Tensor) -> list[Any]:
    return [*ends.shape, *data.shape[ends.dim() :]]


def _append_dimensions(value: Tensor, like: Tensor) -> Tensor:
    """`value` with dimensions of one element behind, as many as `like` has."""
    return value.view(*value.shape, *([1] * (like.dim() - value.dim())))


def _positions(data: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """The segment of each element of `data`, in its shape; the number of segments for those of none."""
    at = ends.dim() - 1
    segment = _segments_of(ends.contiguous(), data.shape[at])
    # in front of the first segment there is none either
    inside = torch.arange(data.shape[at], device=data.device) >= starts.narrow(at, 0, 1)
    segment = torch.where(inside, segment, ends.shape[at])
    return _append_dimensions(segment, data).expand(data.shape)


def _segment_reduce_backward(
    gradient: Tensor,
    result: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Any:
    """Return what each element gets of its segment's gradient. Of a product that takes the product of the
    others: left to eager.
    """
    borders = _borders(data, lengths, offsets, axis)
    if borders is None or reduce not in _SEGMENTS or reduce == "prod":
        return NotImplemented
    starts, ends = borders
    at = ends.dim() - 1
    where = _positions(data, starts, ends)
    count = ends.shape[at]
    place = where.clamp(max=count - 1)
    share = gradient.gather(at, place)
    if reduce == "mean":
        share = share / _append_dimensions(ends - starts, data).expand(_shape(data, ends)).gather(at, place)
    elif reduce in ("max", "min"):
        chosen = torch.isnan(data) | (data == result.gather(at, place))
        share = torch.where(chosen, share, 0)
        alike = torch.zeros_like(result).scatter_add(at, place, (chosen & (where < count)).to(data.dtype))
        # as in eager, those that share an extreme share what is positive alone
        several = alike.gather(at, place)
        share = torch.where((share > 0) & (several > 1), share / several, share)
    return torch.where(where < count, share, 0).contiguous()
