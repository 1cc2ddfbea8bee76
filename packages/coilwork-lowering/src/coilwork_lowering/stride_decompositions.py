"""Decompositions whose results lie in memory as eager's kernels lay them. Torch's own, and its meta functions, keep to others.

What is computed from such a result inherits its layout, so it has to be right within a graph, too, not only where it is
returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch

from coilwork_lowering.torch_compat import suggested_format, surely

aten: Final = torch.ops.aten
_NORMS: Final = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_batch_norm_no_update",
)
_ROUNDING: Final = (aten.floor_divide.default, aten.div.Tensor_mode)
_BY_THE_SECOND: Final = (aten.copysign.Tensor, *_ROUNDING)
_ROUNDED_BY_STEPS: Final = frozenset({torch.float16, torch.bfloat16})
_LAID_OUT_AS_A_SUM: Final = (
    *(aten.logaddexp.default, aten.logaddexp2.default, aten.xlogy.Tensor, aten.special_xlog1py.default),
    *(aten.elu_backward.default, aten.softplus_backward.default),
    *(aten.hardtanh_backward.default, aten.hardswish_backward.default, aten.logit_backward.default),
)
_CONTIGUOUS: Final = (
    *(aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default),
    *(aten.huber_loss_backward.default, aten._log_softmax_backward_data.default),
)
_NORMS_BACKWARD: Final = ("native_batch_norm_backward", "batch_norm_backward")


def stride_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """What replaces entries of `table`, torch's own."""
    found: dict[Any, Callable[..., Any]] = {
        aten.max_unpool2d.default: _like_input(table[aten.max_unpool2d.default], 0),
        aten.native_dropout_backward.default: _dropout_backward(table[aten.native_dropout_backward.default]),
        aten.channel_shuffle.default: _channel_shuffle,
        aten.native_channel_shuffle.default: _channel_shuffle,
        **{op: _of_one_layout(op) for op in _BY_THE_SECOND},
        aten.pow.Scalar: _power_of_number,
        aten.ldexp.Tensor: _ldexp,
        aten.binary_cross_entropy_backward.default: _binary_cross_entropy_backward(
            table[aten.binary_cross_entropy_backward.default]
        ),
        **{op: _made_contiguous(table[op]) for op in _CONTIGUOUS},
    }
    for op in _LAID_OUT_AS_A_SUM:
        found[op] = partial(_laid_out_as_a_sum, table[op])
    for position, names in ((0, _NORMS), (1, _NORMS_BACKWARD)):
        packets = [getattr(aten, name) for name in names]
        for op in [getattr(packet, overload) for packet in packets for overload in packet.overloads()]:
            if op in table:
                found[op] = _like_input(table[op], position)
    return found


def laid_out(value: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """`value` with dense `strides`; as it is where their order is not known."""
    kept = [k for k in range(value.dim()) if not surely(value.shape[k] == 1)]
    order = sorted(
        kept, key=lambda k: [not surely(strides[k] >= strides[other]) for other in kept].count(True)
    )
    known = all(surely(strides[a] >= strides[b]) for a, b in pairwise(order))
    if not known or all(surely(value.stride()[k] == strides[k]) for k in kept):
        return value
    order += [k for k in range(value.dim()) if k not in kept]
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).contiguous().permute(back)


def _like_input(theirs: Callable[..., Any], position: int) -> Callable[..., Any]:
    """`theirs`, on CPUs with a first result in the format of the argument at `position`: channels-last or contiguous."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        results = theirs(*args, **kwargs)
        value: torch.Tensor = args[position]
        first = results[0] if isinstance(results, tuple) else results
        if value.device.type != "cpu" or not isinstance(first, torch.Tensor):
            return results
        first = _in_format(first, suggested_format(value))
        return (first, *results[1:]) if isinstance(results, tuple) else first

    return decomposed


def _dropout_backward(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def native_dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
        """On CPUs two products, which keep layouts."""
        if gradient.device.type != "cpu":
            return theirs(gradient, mask, scale)
        return gradient * mask * scale

    return native_dropout_backward


def _channel_shuffle(value: torch.Tensor, groups: int) -> Any:
    """In channels-last where the input is, on CPUs."""
    batch, channels = value.shape[:2]
    parts = value.reshape(batch, groups, channels // groups, -1)
    shuffled = parts.permute(0, 2, 1, 3).reshape(value.shape)
    wanted = suggested_format(value) if value.device.type == "cpu" else torch.contiguous_format
    # a shuffle of one group, or of groups of one, would be the input itself
    return shuffled.clone(memory_format=wanted)


def _made_contiguous(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`theirs`, with a contiguous result: eager's kernel fills such a tensor."""

    def decomposed(*args: Any) -> Any:
        return _in_format(theirs(*args), torch.contiguous_format)

    return decomposed


def _binary_cross_entropy_backward(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def binary_cross_entropy_backward(gradient: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
        """In the layout of `value`, whatever that of the gradient is."""
        return laid_out(theirs(gradient, value, *rest), aten.empty_like.default(value).stride())

    return binary_cross_entropy_backward


def _power_of_number(base: Any, exponent: torch.Tensor) -> Any:
    """Contiguous, whatever the exponents are."""
    dense = _in_format(exponent, torch.contiguous_format)
    return NotImplemented if dense is exponent else aten.pow.Scalar(base, dense)


def _in_format(value: torch.Tensor, wanted: torch.memory_format) -> torch.Tensor:
    """`value` in the format `wanted`. Where it surely is contiguous, torch is not asked: that might add a guard."""
    if wanted is torch.contiguous_format and _lies(value, _contiguous(value.shape)):
        return value
    return value.contiguous(memory_format=wanted)


def _contiguous(shape: Sequence[Any]) -> list[Any]:
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * size
    return strides


def _ldexp(value: torch.Tensor, exponent: torch.Tensor) -> Any:
    """As eager composes it; floats by whole exponents have a kernel in eager, and a lowering."""
    whole = not exponent.is_floating_point() and exponent.dtype is not torch.bool
    if whole and value.is_floating_point():
        return NotImplemented
    return aten.mul.Tensor(value, aten.pow.Scalar(2.0, _in_format(exponent, torch.contiguous_format)))


def _laid_out_as_a_sum(theirs: Callable[..., Any], *args: Any) -> Any:
    """As one operator lays out what it makes of two tensors; several select among operands and results of their own."""
    result: torch.Tensor = theirs(*args)
    a, b = (one for one in args if isinstance(one, torch.Tensor))
    return laid_out(result, aten.add.Tensor(a, b).stride())


def _of_one_layout(op: Any) -> Callable[..., Any]:
    """`op` of operands that are laid out as their sum, and of its shape: then torch's meta function goes by it, too."""

    def decomposed(a: Any, b: Any, **kwargs: Any) -> Any:
        # broadcast numbers would take part in promotion
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or (
            op in _ROUNDING and _ROUNDED_BY_STEPS & {a.dtype, b.dtype}
        ):
            return NotImplemented
        if a.dtype is not b.dtype:
            # the meta function takes the operand that is converted for one without a layout
            return op(*_of_one_type(a, b), **kwargs) if a.dim() > 0 and b.dim() > 0 else NotImplemented
        total = aten.add.Tensor(a, b)
        wanted = total.stride()
        if _lies(total, _contiguous(total.shape)) and not any(_lies_otherwise(one, total) for one in (a, b)):
            return NotImplemented
        dense = [
            one
            if one.dim() == total.dim() and _lies(one, wanted)
            else laid_out(one.expand(total.shape).contiguous(), wanted)
            for one in (a, b)
        ]
        if (dense[0] is a and dense[1] is b) or not all(_lies(one, wanted) for one in dense):
            return NotImplemented
        return op(*dense, **kwargs)

    return decomposed


def _of_one_type(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    common = torch.promote_types(a.dtype, b.dtype)
    return a.to(common), b.to(common)


def _lies_otherwise(value: torch.Tensor, total: torch.Tensor) -> bool:
    """Whether a tensor of the shape of `total` has other strides."""
    if value.dim() != total.dim() or not all(
        surely(m == n) for m, n in zip(value.shape, total.shape, strict=True)
    ):
        return False
    return not _lies(value, total.stride())


def _lies(value: torch.Tensor, strides: Sequence[Any]) -> bool:
    return all(surely(a == b) for a, b in zip(value.stride(), strides, strict=True))
