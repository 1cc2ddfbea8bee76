"""The meaning of every reduction and scan, and of sorting, as torch functions along the last dimension.

A scan by a function applies it to what came before and the next point, one point after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.errors import InterpretError
from coilwork_ir.interpret_ops import apply_op, bits, literal, order_integers, restore_order, unbits
from coilwork_ir.ops import ReduceKind, ScanKind
from coilwork_ir.scalar import Combine, Combining, Const, Op, Parameter, Scalar, postorder

Reducer: TypeAlias = Callable[[Tensor, Tensor | None], tuple[Tensor, ...]]


def reduce_last(kind: ReduceKind, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
    """All results of combining `value` along its last dimension; elements where `mask` is false take no part.

    Raises:
        InterpretError: the smallest or largest of no elements.
    """
    if kind in ("min", "max", "argmin", "argmax") and value.shape[-1] == 0 and value.numel() == 0:
        if 0 in value.shape[:-1]:
            return (value.new_zeros(value.shape[:-1], dtype=torch.int64 if "arg" in kind else value.dtype),)
        raise InterpretError("empty-reduction", f"{kind} of no elements")
    return REDUCERS[kind](value, mask)


def _keep(value: Tensor, mask: Tensor | None, otherwise: bool | int | float) -> Tensor:
    return value if mask is None else torch.where(mask, value, torch.full_like(value, otherwise))


def _sum(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = _keep(bits(value), mask, 0)
    return (unbits(torch.sum(work, -1, dtype=work.dtype), value.dtype),)


def _prod(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = _keep(bits(value), mask, 1)
    return (unbits(torch.prod(work, -1, dtype=work.dtype), value.dtype),)


def _least(value: Tensor) -> bool | int | float:
    if value.dtype is torch.bool:
        return False
    return float("-inf") if value.dtype.is_floating_point else torch.iinfo(value.dtype).min


def _greatest(value: Tensor) -> bool | int | float:
    if value.dtype is torch.bool:
        return True
    return float("inf") if value.dtype.is_floating_point else torch.iinfo(value.dtype).max


def _min(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = order_integers(value)
    return (restore_order(torch.amin(_keep(work, mask, _greatest(work)), -1), value.dtype),)


def _max(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = order_integers(value)
    return (restore_order(torch.amax(_keep(work, mask, _least(work)), -1), value.dtype),)


def _first(best: Tensor, work: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    hit = work == best.unsqueeze(-1)
    if work.dtype.is_floating_point:
        hit = hit | torch.isnan(work)  # if there is a nan, nothing else equals the best
    if mask is not None:
        hit = hit & mask
    count = work.shape[-1]
    positions = torch.arange(count, device=work.device).expand(work.shape)
    return (torch.where(hit, positions, count).amin(-1) % count,)


def _argmin(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = order_integers(value)
    work = _keep(work, mask, _greatest(work))
    return _first(torch.amin(work, -1), work, mask)


def _argmax(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = order_integers(value)
    work = _keep(work, mask, _least(work))
    return _first(torch.amax(work, -1), work, mask)


def _any(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    return (torch.any(_keep(value, mask, False), -1),)


def _all(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    return (torch.all(_keep(value, mask, True), -1),)


def _xor_sum(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = _keep(bits(value), mask, 0)
    result = torch.zeros_like(work[..., :1]) if work.shape[-1] else work.new_zeros((*work.shape[:-1], 1))
    while work.shape[-1] > 1:
        half = work.shape[-1] // 2
        if work.shape[-1] % 2:
            result = torch.bitwise_xor(result, work[..., -1:])
        work = torch.bitwise_xor(work[..., :half], work[..., half : 2 * half])
    if work.shape[-1]:
        result = torch.bitwise_xor(result, work)
    return (unbits(result.squeeze(-1), value.dtype),)


def _welford(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    count: Tensor | int = value.shape[-1] if mask is None else mask.expand(value.shape).sum(-1)
    mean = torch.sum(_keep(value, mask, 0), -1) / count
    apart = _keep(value - mean.unsqueeze(-1), mask, 0)
    return (mean.to(value.dtype), torch.sum(apart * apart, -1))


def _online_softmax(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    if value.shape[-1] == 0:
        shape = value.shape[:-1]
        return (value.new_full(shape, float("-inf")), value.new_zeros(shape))
    top = torch.amax(_keep(value, mask, float("-inf")), -1)
    return (top, torch.sum(_keep(torch.exp(value - top.unsqueeze(-1)), mask, 0), -1))


REDUCERS: Final[Mapping[ReduceKind, Reducer]] = MappingProxyType(
    {
        "sum": _sum,
        "prod": _prod,
        "min": _min,
        "max": _max,
        "argmin": _argmin,
        "argmax": _argmax,
        "any": _any,
        "all": _all,
        "xor_sum": _xor_sum,
        "welford": _welford,
        "online_softmax": _online_softmax,
    }
)


def scan_last(kind: ScanKind, value: Tensor, *, reverse: bool) -> tuple[Tensor, ...]:
    """All results of the inclusive running `kind` along the last dimension, from the end if `reverse`."""
    count = value.shape[-1]
    results = SCANNERS[kind](value.flip(-1) if reverse else value)
    if not reverse:
        return results
    flipped = [result.flip(-1) for result in results]
    places = [_is_position(kind, k) for k in range(len(flipped))]
    return tuple(
        count - 1 - result if place else result for result, place in zip(flipped, places, strict=True)
    )


def _is_position(kind: ScanKind, output: int) -> bool:
    return output == 1 or kind in ("argmin", "argmax")


def _cumsum(value: Tensor) -> tuple[Tensor, ...]:
    work = bits(value)
    return (unbits(torch.cumsum(work, -1, dtype=work.dtype), value.dtype),)


def _cumprod(value: Tensor) -> tuple[Tensor, ...]:
    work = bits(value)
    return (unbits(torch.cumprod(work, -1, dtype=work.dtype), value.dtype),)


def _cummin(value: Tensor) -> tuple[Tensor, ...]:
    values, positions = torch.cummin(order_integers(value), -1)
    return (restore_order(values, value.dtype), positions)


def _cummax(value: Tensor) -> tuple[Tensor, ...]:
    values, positions = torch.cummax(order_integers(value), -1)
    return (restore_order(values, value.dtype), positions)


SCANNERS: Final[Mapping[ScanKind, Callable[[Tensor], tuple[Tensor, ...]]]] = MappingProxyType(
    {
        "sum": _cumsum,
        "prod": _cumprod,
        "min": _cummin,
        "max": _cummax,
        "argmin": lambda value: (_cummin(value)[1],),
        "argmax": lambda value: (_cummax(value)[1],),
        "logcumsumexp": lambda value: (torch.logcumsumexp(value, -1),),
    }
)


def sort_last(value: Tensor, *, descending: bool) -> tuple[Tensor, Tensor]:
    """The values along the last dimension in order, equal ones as they were, and where they were."""
    values, positions = torch.sort(order_integers(value), dim=-1, descending=descending, stable=True)
    return (restore_order(values, value.dtype), positions)


def scan_all(kind: Combining, values: Sequence[Tensor], *, reverse: bool) -> tuple[Tensor, ...]:
    """All results of the inclusive running `kind` of `values` along the last dimension, from the end if
    `reverse`.
    """
    if not isinstance(kind, Combine):
        (value,) = values
        return scan_last(kind, value, reverse=reverse)
    wide = torch.broadcast_tensors(*values)
    count = wide[0].shape[-1]
    points = range(count - 1, -1, -1) if reverse else range(count)
    results = tuple(torch.empty(value.shape, dtype=value.dtype) for value in wide)
    running: list[Tensor] = []
    for point in points:
        element = [value[..., point] for value in wide]
        running = combine(kind, [*running, *element]) if running else element
        for result, value in zip(results, running, strict=True):
            result[..., point] = value
    return results


def combine(function: Combine, given: Sequence[Tensor]) -> list[Tensor]:
    """The results of `function` for two tuples of values, one behind the other."""
    done: dict[Scalar, Tensor] = {}
    for node in postorder(function.results):
        match node:
            case Const():
                done[node] = literal(node.value, node.dtype)
            case Parameter():
                done[node] = given[node.position]
            case Op():
                done[node] = apply_op(node.op, [done[operand] for operand in node.operands], node.dtype)
            case _:
                raise TypeError(f"not a scalar of a function: {node!r}")
    return [done[result] for result in function.results]
