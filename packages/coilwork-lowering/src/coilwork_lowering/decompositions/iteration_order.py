"""In what order eager's elementwise kernels walk through memory, which is how they lay out what they make.

As ATen's TensorIterator documents it: results of operands of one dense layout have that layout. Otherwise
dimensions are sorted by the operands' strides, the first operand's first, and where one does not tell because
it is broadcast, the next one decides. Torch's meta functions sort likewise, but take an operand of fewer
dimensions for one that has strides along the missing ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coilwork_lowering.torch_compat.sizes import surely


def iterated_strides(shape: Sequence[Any], *operands: torch.Tensor) -> list[Any] | None:
    """Strides of what one elementwise kernel makes, of `shape`, of `operands`, in the order in which the
    kernel is given them.

    None where open sizes decide.
    """
    order = _dense_order(shape, operands)
    if order is not None:
        return dense_strides(shape, order)
    if _are_alike(shape, operands):
        return list(operands[0].stride())
    order = _sort_dimensions(shape, [_broadcast_strides(one, shape) for one in operands])
    return None if order is None else dense_strides(shape, order)


def dense_strides(shape: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Strides without gaps, of dimensions in `order`, the fastest first."""
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for dim in order:
        strides[dim] = step
        step = step * shape[dim]
    return strides


def _dense_order(shape: Sequence[Any], operands: Sequence[torch.Tensor]) -> list[int] | None:
    """Row-major or channels-last, if all operands have the whole shape and lie so."""
    # of volumes it is not asked whether they are channels-last
    formats = [list(range(len(shape)))[::-1], *([[1, 3, 2, 0]] if len(shape) == 4 else [])]
    for order in formats:
        if all(_has_shape(one, shape) and _is_dense(one, order) for one in operands):
            return order
    return None


def _are_alike(shape: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    """Tell if all operands have the whole shape, and the same strides without gaps."""
    if not all(_has_shape(one, shape) for one in operands):
        return False
    strides = operands[0].stride()
    order = sorted(
        range(len(shape)), key=lambda k: [surely(strides[k] > step) for step in strides].count(True)
    )
    return _is_dense(operands[0], order) and all(
        surely(a == b) for one in operands for a, b in zip(one.stride(), strides, strict=True)
    )


def _has_shape(value: torch.Tensor, shape: Sequence[Any]) -> bool:
    return value.dim() == len(shape) and all(surely(a == b) for a, b in zip(value.shape, shape, strict=True))


def _is_dense(value: torch.Tensor, order: Sequence[int]) -> bool:
    """Tell if the elements follow each other, dimensions in `order`. Strides of dimensions of one element do
    not matter.
    """
    step: Any = 1
    for dim in order:
        if surely(value.shape[dim] == 1):
            continue
        if not surely(value.stride()[dim] == step):
            return False
        step = step * value.shape[dim]
    return True


def _broadcast_strides(value: torch.Tensor, shape: Sequence[Any]) -> list[Any]:
    missing = len(shape) - value.dim()
    kept = zip(value.shape, value.stride(), shape[missing:], strict=True)
    # a size that may be 1 decides whether it is broadcast; where it is, fake tensors say so
    return [0] * missing + [
        0 if surely(size == 1) and not surely(whole == 1) else step for size, step, whole in kept
    ]


def _sort_dimensions(shape: Sequence[Any], strides: Sequence[Sequence[Any]]) -> list[int] | None:
    """Dimensions, the fastest first: an insertion sort that goes on past what cannot be compared, as ATen's
    does.
    """
    order = list(range(len(shape)))[::-1]
    for first in range(1, len(order)):
        here = first
        for before in range(first - 1, -1, -1):
            found = _compare(shape, strides, order[before], order[here])
            if found is None:
                return None
            if found < 0:
                break
            if found > 0:
                order[before], order[here] = order[here], order[before]
                here = before
    return order


def _compare(shape: Sequence[Any], strides: Sequence[Sequence[Any]], a: int, b: int) -> int | None:
    """-1 if dimension `a` is walked faster than `b`, 1 if slower, 0 if nothing tells; None where open sizes
    decide.
    """
    for steps in strides:
        if surely(steps[a] == 0) or surely(steps[b] == 0):
            continue
        if surely(steps[a] < steps[b]):
            return -1
        if surely(steps[a] > steps[b]):
            return 1
        if not surely(steps[a] == steps[b]):
            return None
        if surely(shape[a] > shape[b]):
            return 1
        if not surely(shape[a] <= shape[b]):
            return None
    return 0
