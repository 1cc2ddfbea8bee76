"""Decompositions whose results have the strides of eager's kernels, where torch's own differ.

Layouts are inherited by later operators, so they have to be right within a graph, too.

Elementwise kernels lay a result out in the order in which they walk through memory, as ATen's TensorIterator
documents it. Operands of one dense layout give a result of that layout. Otherwise dimensions are sorted by
the first operand's strides, and by the next operand's where the first is broadcast. Torch's meta functions
sort likewise, but give an operand of fewer dimensions strides along the missing ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dimension_order import make_dense_strides
from coilwork_ir.operators import list_operators
from coilwork_lowering.decompositions.segments_and_scatters import guard_size_condition
from coilwork_lowering.torch_compat.operators import suggest_format
from coilwork_lowering.torch_compat.sizes import is_surely, is_true_when_traced

# ---- Iteration order ----


def predict_elementwise_strides(shape: Sequence[Any], *operands: torch.Tensor) -> list[Any] | None:
    """Return the strides of a result of `shape` that one elementwise kernel makes of `operands`, in the
    kernel's order of operands.

    None where open sizes decide.
    """
    order = _find_dense_order(shape, operands)
    if order is not None:
        return list(make_dense_strides(shape, order[::-1]))
    if _are_alike(shape, operands):
        return list(operands[0].stride())
    order = _sort_dimensions(shape, [_broadcast_strides(item, shape) for item in operands])
    return None if order is None else list(make_dense_strides(shape, order[::-1]))


def _find_dense_order(shape: Sequence[Any], operands: Sequence[torch.Tensor]) -> list[int] | None:
    """Return row-major or channels-last order, if all operands have the whole shape and lie in it."""
    # of volumes it is not asked whether they are channels-last
    formats = [list(range(len(shape)))[::-1], *([[1, 3, 2, 0]] if len(shape) == 4 else [])]
    for order in formats:
        if all(_has_shape(item, shape) and _is_dense_in_order(item, order) for item in operands):
            return order
    return None


def _are_alike(shape: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    """Tell if all operands have the whole shape, and the same strides without gaps."""
    if not all(_has_shape(item, shape) for item in operands):
        return False
    strides = operands[0].stride()
    order = sorted(
        range(len(shape)), key=lambda k: [is_surely(strides[k] > step) for step in strides].count(True)
    )
    return _is_dense_in_order(operands[0], order) and all(
        is_surely(a == b) for item in operands for a, b in zip(item.stride(), strides, strict=True)
    )


def _has_shape(value: torch.Tensor, shape: Sequence[Any]) -> bool:
    return value.dim() == len(shape) and all(
        is_surely(a == b) for a, b in zip(value.shape, shape, strict=True)
    )


def _is_dense_in_order(value: torch.Tensor, order: Sequence[int]) -> bool:
    """Tell if the elements follow each other, dimensions in `order`. Strides of dimensions of one element do
    not matter.
    """
    step: Any = 1
    for dim in order:
        if is_surely(value.shape[dim] == 1):
            continue
        if not is_surely(value.stride()[dim] == step):
            return False
        step = step * value.shape[dim]
    return True


def _broadcast_strides(value: torch.Tensor, shape: Sequence[Any]) -> list[Any]:
    missing = len(shape) - value.dim()
    kept = zip(value.shape, value.stride(), shape[missing:], strict=True)
    # a size that may be 1 decides whether it is broadcast; where it is, fake tensors say so
    return [0] * missing + [
        0 if is_surely(size == 1) and not is_surely(whole == 1) else step for size, step, whole in kept
    ]


def _sort_dimensions(shape: Sequence[Any], strides: Sequence[Sequence[Any]]) -> list[int] | None:
    """Return the dimensions, the fastest first: an insertion sort that goes on past what cannot be compared,
    as ATen's does.
    """
    order = list(range(len(shape)))[::-1]
    for first in range(1, len(order)):
        here = first
        for before in range(first - 1, -1, -1):
            result = _compare(shape, strides, order[before], order[here])
            if result is None:
                return None
            if result < 0:
                break
            if result > 0:
                order[before], order[here] = order[here], order[before]
                here = before
    return order


def _compare(shape: Sequence[Any], strides: Sequence[Sequence[Any]], a: int, b: int) -> int | None:
    """Return -1 if dimension `a` is walked faster than `b`, 1 if slower, 0 if nothing tells; None where open
    sizes decide.
    """
    for steps in strides:
        if is_surely(steps[a] == 0) or is_surely(steps[b] == 0):
            continue
        if is_surely(steps[a] < steps[b]):
            return -1
        if is_surely(steps[a] > steps[b]):
            return 1
        if not is_surely(steps[a] == steps[b]):
            return None
        if is_surely(shape[a] > shape[b]):
            return 1
        if not is_surely(shape[a] <= shape[b]):
            return None
    return 0


# ---- Decompositions ----


aten: Final = torch.ops.aten
_ROUNDING: Final = (aten.floor_divide.default, aten.div.Tensor_mode)
_BY_THE_SECOND: Final = (
    *(aten.copysign.Tensor, aten.heaviside.default, aten.hardsigmoid_backward.default, *_ROUNDING),
    *(aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default),
)
_ROUNDED_BY_STEPS: Final = frozenset({torch.float16, torch.bfloat16})
# Their kernels are given these arguments, in this order.
_ITERATED: Final[Mapping[Any, tuple[int, ...]]] = MappingProxyType(
    {
        aten.threshold_backward.default: (1, 0),
        aten.leaky_relu_backward.default: (1, 0),
        aten._prelu_kernel_backward.default: (1, 2, 0),
    }
)
# Their kernels fill a new tensor that is like this argument.
_LIKE_ONE: Final[Mapping[Any, int]] = MappingProxyType(
    {
        aten.binary_cross_entropy.default: 0,
        aten.binary_cross_entropy_backward.default: 1,
        aten.huber_loss.default: 0,
        aten.log_sigmoid_backward.default: 0,
    }
)
_LAID_OUT_AS_A_SUM: Final = (
    *(aten.logaddexp.default, aten.logaddexp2.default, aten.xlogy.Tensor, aten.special_xlog1py.default),
    *(aten.elu_backward.default, aten.softplus_backward.default),
    *(aten.hardtanh_backward.default, aten.hardswish_backward.default, aten.logit_backward.default),
)
_CONTIGUOUS: Final = (
    *(aten.huber_loss_backward.default, aten.glu_backward.default, aten._log_softmax_backward_data.default),
    *(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default),
    *(aten.upsample_nearest1d.default, aten.upsample_nearest1d.vec),
    *(aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact1d.vec),
)
# A place that stays negative, whatever is added to it to get to a plane.
_NOWHERE: Final = -(1 << 62)


def stride_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return what replaces entries of `table`, torch's own."""
    results: dict[Any, Callable[..., Any]] = {
        aten.max_unpool2d.default: _like_input(_put_within_planes(table[aten.max_unpool2d.default]), 0),
        aten.max_unpool3d.default: _put_within_planes(table[aten.max_unpool3d.default]),
        aten.native_dropout_backward.default: _dropout_backward(table[aten.native_dropout_backward.default]),
        aten.channel_shuffle.default: _channel_shuffle,
        aten.native_channel_shuffle.default: _channel_shuffle,
        aten.roll.default: _roll,
        **{op: _require_one_layout(op) for op in _BY_THE_SECOND},
        aten.pow.Scalar: _power_of_number,
        aten._foreach_pow.ScalarAndTensor: _powers_of_number,
        aten.ldexp.Tensor: _ldexp,
        **{op: _like_one(table[op], position) for op, position in _LIKE_ONE.items()},
        **{op: _make_contiguous(table[op]) for op in _CONTIGUOUS},
        aten.mse_loss_backward.default: _loss_gradient(table[aten.mse_loss_backward.default]),
        aten.smooth_l1_loss_backward.default: _loss_gradient(table[aten.smooth_l1_loss_backward.default]),
        aten.soft_margin_loss.default: _compute_in_first_type(table[aten.soft_margin_loss.default]),
    }
    for op in _LAID_OUT_AS_A_SUM:
        results[op] = partial(_lay_out_as_sum, table[op])
    for op, order in _ITERATED.items():
        results[op] = partial(_lay_out_as_iterated, table[op], order)
    norms = list_operators(lambda info: info.norm == "batch")
    gradients = list_operators(lambda info: info.norm == "batch gradient")
    for position, names in ((0, norms), (1, gradients)):
        packets = [getattr(aten, name) for name in names]
        for op in [getattr(packet, overload) for packet in packets for overload in packet.overloads()]:
            if op in table:
                results[op] = _like_input(table[op], position)
    return results


def _put_within_planes(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return an unpooling that refuses places outside of the plane. Theirs counts planes on, and puts what is
    not in one into the next.
    """

    @functools.wraps(theirs)
    def unpool(value: torch.Tensor, places: torch.Tensor, size: Sequence[Any], *rest: Any) -> Any:
        within = (places >= 0) & (places < math.prod(size))
        return theirs(value, torch.where(within, places, _NOWHERE), size, *rest)

    return unpool


def lay_out(value: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """`value` with dense `strides`; as it is where their order is not known."""
    kept = [k for k in range(value.dim()) if not is_surely(value.shape[k] == 1)]
    order = sorted(
        kept, key=lambda k: [not is_surely(strides[k] >= strides[other]) for other in kept].count(True)
    )
    known = all(is_surely(strides[a] >= strides[b]) for a, b in pairwise(order))
    if not known or all(is_surely(value.stride()[k] == strides[k]) for k in kept):
        return value
    order += [k for k in range(value.dim()) if k not in kept]
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).contiguous().permute(back)


def _like_input(theirs: Callable[..., Any], position: int) -> Callable[..., Any]:
    """`theirs`, on CPUs with a first result in the format of the argument at `position`: channels-last or
    contiguous.
    """

    def decompose(*args: Any, **kwargs: Any) -> Any:
        results = theirs(*args, **kwargs)
        value: torch.Tensor = args[position]
        first = results[0] if isinstance(results, tuple) else results
        if not has_trait(value.device.type, ATEN_CPU) or not isinstance(first, torch.Tensor):
            return results
        first = _lay_out_in_format(first, suggest_format(value))
        return (first, *results[1:]) if isinstance(results, tuple) else first

    return decompose


def _dropout_backward(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def native_dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
        """Return the gradient; on CPUs as two products, which keep layouts."""
        if not has_trait(gradient.device.type, ATEN_CPU):
            return theirs(gradient, mask, scale)
        return gradient * mask * scale

    return native_dropout_backward


def _channel_shuffle(value: torch.Tensor, groups: int) -> Any:
    """Return the shuffled channels; on CPUs channels-last where the input is."""
    if any(is_surely(size == 0) for size in value.shape):
        # of how many elements are parts without elements?
        return value.clone()
    batch, channels = value.shape[:2]
    if not guard_size_condition(
        channels % groups == 0, lambda: "Number of channels must be divisible by groups."
    ):
        return NotImplemented
    parts = value.reshape(batch, groups, channels // groups, -1)
    shuffled = parts.permute(0, 2, 1, 3).reshape(value.shape)
    wanted = suggest_format(value) if has_trait(value.device.type, ATEN_CPU) else torch.contiguous_format
    # a shuffle of one group, or of groups of one, would be the input itself
    return shuffled.clone(memory_format=wanted)


def _roll(value: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
    """Return `value` rolled, channels-last where eager's kernel for CPUs keeps that: it joins two parts, and
    an empty part has no such layout.
    """
    if not has_trait(value.device.type, ATEN_CPU) or not dims or len(dims) != len(shifts):
        return NotImplemented
    if suggest_format(value) is torch.contiguous_format:
        return NotImplemented
    if not all(
        is_true_when_traced(shift % value.shape[dim] != 0) for shift, dim in zip(shifts, dims, strict=True)
    ):
        return NotImplemented
    rank = value.dim()
    order = [0, *range(2, rank), 1]
    back = sorted(range(rank), key=order.__getitem__)
    rolled: torch.Tensor = aten.roll.default(value.permute(order), shifts, [back[dim] for dim in dims])
    return rolled.permute(back)


def _make_contiguous(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return `theirs` with a contiguous first result, as eager's kernel fills a contiguous tensor."""

    def decompose(*args: Any) -> Any:
        results = theirs(*args)
        if not isinstance(results, tuple):
            return _lay_out_in_format(results, torch.contiguous_format)
        return (_lay_out_in_format(results[0], torch.contiguous_format), *results[1:])

    return decompose


def _like_one(theirs: Callable[..., Any], position: int) -> Callable[..., Any]:
    """`theirs`, with a result of the type of the argument at `position`, and in its layout, if it has its
    shape; whatever the others' are.
    """

    def decompose(*args: Any, **kwargs: Any) -> Any:
        like: torch.Tensor = args[position]
        result: torch.Tensor = theirs(*args, **kwargs).to(like.dtype)
        if result.dim() != like.dim():
            return result
        return lay_out(result, aten.empty_like.default(like).stride())

    return decompose


def _compute_in_first_type(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`theirs`, computed into a tensor of the first argument's type."""

    def decompose(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return theirs(value, *args, **kwargs).to(value.dtype)

    return decompose


def _loss_gradient(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`theirs`, contiguous and in the type of what it is the gradient of. Torch's own has the
    promoted type.
    """

    def decompose(gradient: torch.Tensor, value: torch.Tensor, *args: Any) -> Any:
        return theirs(gradient, value, *args).to(value.dtype)

    return _make_contiguous(decompose)


def _power_of_number(base: Any, exponent: torch.Tensor) -> Any:
    """Return powers of a number, contiguous whatever the exponents are."""
    dense = _lay_out_in_format(exponent, torch.contiguous_format)
    return NotImplemented if dense is exponent else aten.pow.Scalar(base, dense)


def _lay_out_in_format(value: torch.Tensor, wanted: torch.memory_format) -> torch.Tensor:
    """`value` in the format `wanted`. Where it surely is contiguous, torch is not asked: that might add a
    guard.
    """
    if wanted is torch.contiguous_format and _has_strides(value, _contiguous(value.shape)):
        return value
    return value.contiguous(memory_format=wanted)


def _contiguous(shape: Sequence[Any]) -> list[Any]:
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * size
    return strides


def _powers_of_number(base: Any, exponents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return powers of a number, one by one as eager."""
    return [aten.pow.Scalar(base, exponent) for exponent in exponents]


def _ldexp(value: torch.Tensor, exponent: torch.Tensor) -> Any:
    """Return `value` times a power of two, as eager composes it. Floats by whole exponents have a kernel in
    eager, and a lowering.
    """
    whole = not exponent.is_floating_point() and exponent.dtype is not torch.bool
    if whole and value.is_floating_point():
        return NotImplemented
    return aten.mul.Tensor(value, aten.pow.Scalar(2.0, _lay_out_in_format(exponent, torch.contiguous_format)))


def _lay_out_as_sum(theirs: Callable[..., Any], *args: Any) -> Any:
    """Return the result laid out as one operator lays out a result of two tensors; several kernels select
    among operands and own results.
    """
    result: torch.Tensor = theirs(*args)
    a, b = (item for item in args if isinstance(item, torch.Tensor))
    return lay_out(result, predict_elementwise_strides(result.shape, a, b) or result.stride())


def _lay_out_as_iterated(theirs: Callable[..., Any], order: Sequence[int], *args: Any, **kwargs: Any) -> Any:
    """Return results laid out as by the kernel that takes the arguments in `order`; each has the shape of
    them all.
    """
    result = theirs(*args, **kwargs)
    results: tuple[torch.Tensor, ...] = result if isinstance(result, tuple) else (result,)
    operands = [args[position] for position in order]
    shape = torch.broadcast_tensors(*operands)[0].shape
    wanted = predict_elementwise_strides(shape, *operands)
    if wanted is None or any(item.dim() != len(shape) for item in results):
        return result
    placed = tuple(lay_out(item, wanted) for item in results)
    return placed if isinstance(result, tuple) else placed[0]


def _require_one_layout(op: Any) -> Callable[..., Any]:
    """`op` of operands that are laid out as its result, and of its shape: then torch's meta function goes by
    it, too.
    """

    def decompose(a: Any, b: Any, **kwargs: Any) -> Any:
        # broadcast numbers would take part in promotion
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or (
            op in _ROUNDING and _ROUNDED_BY_STEPS & {a.dtype, b.dtype}
        ):
            return NotImplemented
        if a.dtype is not b.dtype:
            # the meta function takes the operand that is converted for one without a layout
            return op(*_promote_both(a, b), **kwargs) if a.dim() > 0 and b.dim() > 0 else NotImplemented
        total = aten.add.Tensor(a, b)
        wanted = predict_elementwise_strides(total.shape, a, b)
        if wanted is None or not any(_has_other_strides(item, total.shape, wanted) for item in (a, b)):
            return NotImplemented
        copies = [lay_out(item.expand(total.shape).contiguous(), wanted) for item in (a, b)]
        if any(_has_other_strides(item, total.shape, wanted) for item in copies):
            return NotImplemented
        # of one dimension's stride, too, that is never taken: it would be compared with others
        strides = copies[0].stride()
        dense = [
            item
            if _has_strides(item, strides) and not _has_other_strides(item, total.shape, strides)
            else copy
            for item, copy in zip((a, b), copies, strict=True)
        ]
        return op(*dense, **kwargs)

    return decompose


def _promote_both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    common = torch.promote_types(a.dtype, b.dtype)
    return a.to(common), b.to(common)


def _has_other_strides(value: torch.Tensor, shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Tell whether a tensor has another shape, or other strides along dimensions of more than one element."""
    return value.dim() != len(shape) or not all(
        is_surely(size == whole) and (is_surely(size == 1) or is_surely(step == wanted))
        for size, whole, step, wanted in zip(value.shape, shape, value.stride(), strides, strict=True)
    )


def _has_strides(value: torch.Tensor, strides: Sequence[Any]) -> bool:
    return value.dim() == len(strides) and all(
        is_surely(a == b) for a, b in zip(value.stride(), strides, strict=True)
    )
