"""Scatters in terms of simpler ones, and rows that tensors of positions, lengths or offsets choose.

- Scatters without dimensions, without the old elements, and by a list of rows: `scatter_reduce`,
  `index_reduce`, `index_fill`, `put`.
- Rows: `repeat_interleave`, `segment_reduce` and its gradient, `embedding_renorm`.

`guard_size_condition` checks what an operator asks of its operands' sizes, when tracing or at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR, has_trait
from coilwork_lowering.torch_compat.sizes import is_surely, require

# ---- Conditions on sizes ----


def guard_size_condition(condition: bool | torch.SymBool, message: Callable[[], str]) -> bool:
    """Tell if `condition` on sizes holds, and guard on the answer. If False, ATen is called, whose error is
    eager's.

    Where only run time knows, for sizes from data, `message()` is raised then.
    """
    # loaded on use: it brings sympy, and graphs of known sizes need neither
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    if not (condition if isinstance(condition, bool) else guard_or_true(condition)):
        return False
    require(condition, message)
    return True


# ---- Segments and rows ----


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
    """Return decompositions of operators on rows, by overload."""
    aten = torch.ops.aten
    return {
        aten.embedding_renorm.default: _renormalize_embedding,
        aten.repeat_interleave.Tensor: _repeat_interleave,
        aten.segment_reduce.default: _segment_reduce,
        aten._segment_reduce_backward.default: _segment_reduce_backward,
    }


def _renormalize_embedding(table: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Any:
    """Return the table, with rows that are looked up and longer than `max_norm` shortened to it.

    Rows looked up twice are written twice, the same each time. As in eager the factor is computed in
    `float64`.
    """
    if table.dim() != 2 or table.dtype not in _FLOATS or not is_surely(indices.numel() > 0):
        return NotImplemented
    rows = indices.reshape(-1).to(torch.int64)
    result = torch.ops.aten.index.Tensor(table, [rows])
    norms = torch.linalg.vector_norm(result, norm_type, 1, keepdim=True)
    factors = (max_norm / (norms.to(torch.float64) + _EPSILON)).to(table.dtype)
    kept = torch.where(norms > max_norm, result * factors, result)
    return torch.ops.aten.index_put.default(table, [rows], kept)


def _repeat_interleave(repeats: Tensor, *, output_size: Any = None) -> Any:
    """Each position as often as `repeats` says, where it is known how many that makes: the segment that an
    element lies in.

    A CPU is left to ATen, which writes run after run.
    """
    if output_size is None or repeats.dim() != 1 or has_trait(repeats.device.type, PROCESSOR):
        return NotImplemented
    if not is_surely(repeats.shape[0] > 0) or not is_surely(output_size > 0):
        return NotImplemented
    ends = repeats.cumsum(0)
    _assert((repeats >= 0).all(), "repeats can not be negative")
    _assert(ends.select(0, -1) == output_size, "allocated size does not match required size")
    return _number_segments(ends, output_size).to(repeats.dtype)


def _number_segments(ends: Tensor, count: Any) -> Tensor:
    """Return the segment of each of `count` elements: how many of the ascending `ends` are not behind it.

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
    """Return segments of rows along the last dimension of `lengths` or `offsets`, each reduced to one:
    `(batch, segments, inner)`.

    Elements are scattered to their segments, those of none to one more, which is cut off.
    """
    borders = _find_borders(data, lengths, offsets, axis)
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
    result = torch.ops.aten.scatter_reduce.two(begun, at, where, wide, kind).narrow(at, 0, ends.shape[at])
    if reduce == "mean":
        count = _append_dimensions(ends - starts, result)
        if initial is None:
            result = torch.where(count > 0, result / count, math.nan)
        else:
            result = torch.where(count > 0, result / count, result)
    return result.to(data.dtype).contiguous()


def _find_borders(
    data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int
) -> tuple[Tensor, Tensor] | None:
    """Return where segments start and end, or `None` where that is left to eager."""
    given = lengths if lengths is not None else offsets
    if given is None or data.dtype not in _FLOATS or given.dtype not in (torch.int32, torch.int64):
        return None
    at = given.dim() - 1
    if at < 0 or axis % max(data.dim(), 1) != at or data.dim() <= at or not data.is_contiguous():
        return None
    if not is_surely(data.numel() > 0) or not is_surely(given.shape[at] > (0 if lengths is not None else 1)):
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
    """Return the segment of each element of `data`, in its shape; the number of segments for those of
    none.
    """
    at = ends.dim() - 1
    segment = _number_segments(ends.contiguous(), data.shape[at])
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
    borders = _find_borders(data, lengths, offsets, axis)
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


# ---- Scatters ----


# Types that elements are added and compared in as they are.
_EXACT: Final = (torch.float32, torch.float64, torch.int32, torch.int64)


def scatter_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of scatters, by overload."""
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
        aten.masked_scatter_backward.default: _gradient_of_masked_scatter,
    }


def _scatter_one_number(operator: Callable[..., Any]) -> Callable[..., Any]:
    def scatter(value: torch.Tensor, dim: int, index: torch.Tensor, source: Any, **keywords: Any) -> Any:
        """A tensor without dimensions is one of a single element."""
        operands = [item for item in (value, index, source) if isinstance(item, torch.Tensor)]
        if all(item.dim() > 0 for item in operands):
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
    """Reduce into `value`. Without the old elements, written ones first become the reduction's neutral
    element.

    A mean is a sum, divided by how many were added. Accelerators that sort positions do both by themselves.
    """
    scatter_reduce = torch.ops.aten.scatter_reduce.two
    if value.dim() == 0 or index.dim() == 0 or source.dim() == 0:
        row = scatter_reduce(_row(value), dim, _row(index), _row(source), reduce, include_self=include_self)
        return row.view(value.shape)
    if (include_self and reduce != "mean") or value.dtype not in _EXACT or not is_surely(index.numel() > 0):
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
    if not has_trait(value.device.type, PROCESSOR) or not is_surely(source.numel() > 0):
        return NotImplemented
    if not -value.dim() <= dim < value.dim():
        return NotImplemented
    at = dim % value.dim()
    for k, (size, wanted) in enumerate(zip(source.shape, value.shape, strict=True)):
        if not guard_size_condition(size == (index.shape[0] if k == at else wanted), _describe_refused):
            return NotImplemented
    shape = [-1 if k == at else 1 for k in range(value.dim())]
    positions = index.to(torch.int64).view(shape).expand(source.shape)
    return torch.ops.aten.scatter_reduce.two(value, at, positions, source, reduce, include_self=include_self)


def _convert_element(number: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `number` as an element of `dtype`. Eager converts it on the host and refuses what does not fit,
    as `masked_fill` does.
    """
    place = torch.zeros((), dtype=dtype, device=number.device)
    return place.masked_fill(torch.ones_like(place, dtype=torch.bool), number)


def _index_fill(value: torch.Tensor, dim: int, index: torch.Tensor, filling: Any) -> Any:
    """Return `value` with rows of one number, in its layout. Torch 2.11's own writes into a tensor that it
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
    if all(is_surely(a == b) for a, b in zip(result.stride(), wanted, strict=True)):
        return result
    laid_out: torch.Tensor = torch.ops.prims.copy_strided.default(result, wanted)
    return laid_out


def _put(value: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> Any:
    """Return `value` with `source` put into its flattened elements."""
    if not value.is_contiguous() or index.dtype is not torch.int64 or value.dtype is not source.dtype:
        return NotImplemented
    if not is_surely(index.numel() == source.numel()) or not is_surely(value.numel() > 0):
        return NotImplemented
    flat = torch.ops.aten.index_put.default(
        value.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate
    )
    return flat.view(value.shape)


def _gradient_of_masked_scatter(gradient: torch.Tensor, mask: torch.Tensor, sizes: Sequence[Any]) -> Any:
    """Return what the mask chooses is put side by side, behind it zeros. What it does not goes to one place
    more, which is left out.
    """
    count = math.prod(sizes)
    if not is_surely(gradient.numel() > 0) or not is_surely(gradient.numel() <= count):
        return NotImplemented
    chosen = torch.broadcast_to(mask, gradient.shape).reshape(-1)
    places = torch.where(chosen, chosen.cumsum(0) - 1, count)
    # of those that go to the same place all are zeros
    given = torch.where(chosen, gradient.reshape(-1), 0)
    result = gradient.new_zeros(count + 1)
    placed = torch.ops.aten.index_put.default(result, [places], given)
    return placed[:count].view(sizes).clone()
