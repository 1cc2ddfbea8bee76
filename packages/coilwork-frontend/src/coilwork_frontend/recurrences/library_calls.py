"""Recurrent layers as calls of a library: ATen's own in inference, and those of cuDNN and oneDNN that train.

cuDNN keeps what its gradient reads in a block of memory, which the gradient overwrites: it gets a copy, so
that a caller may run the gradient again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from coilwork_frontend.torch_compat.recurrent_operators import (
    CUDNN,
    CUDNN_GRADIENT,
    ONEDNN,
    ONEDNN_GRADIENT,
    get_whole_operator,
    has_layers_of,
)
from coilwork_ir.device_traits import CPU_LIBRARIES, has_trait
from coilwork_ir.device_traits import CUDNN as HAS_CUDNN

States = tuple[Tensor, ...]

# ---- Which library ----


def may_use_cudnn(x: Tensor, states: Sequence[Tensor]) -> bool:
    """Tell if layers of `x: [T, B, I]` and `states: [L D, B, H]` can be one call of cuDNN."""
    if not has_trait(x.device.type, HAS_CUDNN) or not torch.backends.cudnn.enabled:
        return False
    return x.dtype in _CUDNN_TYPES and 0 not in x.shape and not _has_projections(states)


def may_use_onednn(kind: str, x: Tensor, states: Sequence[Tensor]) -> bool:
    """Tell if eager runs layers of `x: [T, B, I]` and `states: [L D, B, H]` by oneDNN."""
    if kind != "lstm" or not has_trait(x.device.type, CPU_LIBRARIES) or not has_layers_of(x.dtype):
        return False
    return 0 not in x.shape and not _has_projections(states)


def _has_projections(states: Sequence[Tensor]) -> bool:
    return any(one.shape[2] != states[0].shape[2] for one in states)


def _trains(operands: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in operands)


def _run_whole(
    kind: str,
    x: Tensor,
    states: States,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, States]:
    """Run all layers by ATen's operator, which has no gradient."""
    whole, given = get_whole_operator(kind), list(states) if kind == "lstm" else states[0]
    hidden, *last = whole(x, given, list(weights), has_biases, layers, 0.0, False, bidirectional, False)
    return hidden, tuple(last)


# ---- cuDNN ----


# `cudnnRNNMode_t`.
_MODES: Final[Mapping[str, int]] = MappingProxyType({"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3})
_CUDNN_TYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def run_on_cudnn(
    kind: str,
    x: Tensor,
    states: States,
    weights: Sequence[Tensor],
    *,
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, States]:
    """Return what `calls.run_layers` does, without dropout, in one call."""
    operands = (x, *states, *weights)
    shape = _Shape(kind, has_biases, layers, bidirectional)
    if _trains(operands):
        run: Callable[..., tuple[Tensor, ...]] = _TrainedOnCudnn.apply
        hidden, *last = run(shape, len(states), *operands)
    elif x.dtype is torch.bfloat16:
        # ATen's operator takes the steps one by one
        cx = states[1] if len(states) == 2 else None
        hidden, *last = CUDNN(
            x, list(weights), shape.stride, None, states[0], cx, *shape.list_numbers(states[0], train=False)
        )
    else:
        return _run_whole(kind, x, states, weights, has_biases, layers, bidirectional)
    return hidden, tuple(last[: len(states)])


class _Shape:
    """What cuDNN is told about layers beside tensors."""

    def __init__(self, kind: str, has_biases: bool, layers: int, bidirectional: bool) -> None:
        self.mode = _MODES[kind]
        self.stride = 4 if has_biases else 2
        self.layers = layers
        self.bidirectional = bidirectional

    def list_numbers(self, hx: Tensor, *, train: bool = True) -> tuple[Any, ...]:
        """The arguments from the mode to the state of dropout."""
        hidden_size = hx.shape[2]
        return (
            *(self.mode, hidden_size, 0, self.layers, False, 0.0, train, self.bidirectional),
            *([], None),
        )


class _TrainedOnCudnn(Function):
    """Layers that train, as a call of cuDNN forwards and one backwards."""

    @staticmethod
    def forward(ctx: Any, shape: _Shape, count: int, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        hx, cx = others[0], others[1] if count == 2 else None
        weights = list(others[count:])
        hidden, last, cell, reserve, packed = CUDNN(
            x, weights, shape.stride, None, hx, cx, *shape.list_numbers(hx)
        )
        ctx.shape, ctx.count = shape, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, reserve, packed, x, *others)
        return (hidden, last) if cx is None else (hidden, last, cell)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        hidden, reserve, packed, x, *others = ctx.saved_tensors
        shape, count = ctx.shape, ctx.count
        hx, cx = others[0], others[1] if count == 2 else None
        of_x, of_hx, of_cx, of_weights = CUDNN_GRADIENT(
            *(x, others[count:], shape.stride, packed, hx, cx, hidden),
            *(grads if count == 2 else (*grads, None)),
            *shape.list_numbers(hx),
            reserve.clone(),
            [True] * 4,
        )
        of_states = (of_hx,) if cx is None else (of_hx, of_cx)
        return (None, None, of_x, *of_states, *of_weights)


# ---- oneDNN ----


# `ideep::rnn_kind::LSTM`.
_LSTM: Final = 2


def run_on_onednn(
    kind: str,
    x: Tensor,
    states: States,
    weights: Sequence[Tensor],
    *,
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, States]:
    """Return what `calls.run_layers` does, without dropout: a call for each layer and direction that train."""
    if not _trains((x, *states, *weights)):
        return _run_whole(kind, x, states, weights, has_biases, layers, bidirectional)
    run: Callable[..., tuple[Tensor, ...]] = _TrainedOnOnednn.apply
    size, directions = 4 if has_biases else 2, 1 + bidirectional
    x, lasts = x.contiguous(), []
    for layer in range(layers):
        found = []
        for direction in range(directions):
            place = layer * directions + direction
            own = list(weights[place * size : (place + 1) * size])
            if not has_biases:
                own += [own[0].new_zeros(own[0].shape[0])] * 2
            state = (one[place : place + 1].contiguous() for one in states)
            hidden, *last = run(direction == 1, has_biases, x, *own, *state)
            found.append(hidden)
            lasts.append(last)
        x = torch.cat(found, 2) if bidirectional else found[0]
    return x, tuple(torch.cat(part) for part in zip(*lasts, strict=True))


class _TrainedOnOnednn(Function):
    """One direction of a layer that trains: results `[T, B, H]` and the states `[1, B, H]` behind the last
    step.
    """

    @staticmethod
    def forward(ctx: Any, reverse: bool, has_biases: bool, *operands: Tensor) -> tuple[Tensor, ...]:
        hidden_size = operands[5].shape[2]
        numbers = (_LSTM, hidden_size, 1, has_biases)
        *results, workspace = ONEDNN(*operands, reverse, [], *numbers, False, False, True)
        ctx.reverse, ctx.numbers = reverse, numbers
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands, *results, workspace)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        *saved, workspace = ctx.saved_tensors
        given = [None if one is None else one.contiguous() for one in grads]
        found = ONEDNN_GRADIENT(*saved, *given, ctx.reverse, *ctx.numbers, True, False, [], False, workspace)
        # those of 16-bit operands are `float32`
        return (None, None, *(grad.to(one.dtype) for grad, one in zip(found, saved, strict=False)))
