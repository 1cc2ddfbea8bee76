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
    CudnnShape,
    find_weight_order,
    get_whole_operator,
    has_layers_of,
)
from coilwork_ir.device_traits import CPU_LIBRARIES, has_trait
from coilwork_ir.device_traits import CUDNN as HAS_CUDNN

States = tuple[Tensor, ...]

# ---- Which library ----


def may_use_cudnn(x: Tensor) -> bool:
    """Tell if layers of `x: [T, B, I]` can be one call of cuDNN."""
    if not has_trait(x.device.type, HAS_CUDNN) or not torch.backends.cudnn.enabled:
        return False
    return x.dtype in _CUDNN_TYPES and 0 not in x.shape


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
    are_cast: bool,
) -> tuple[Tensor, States]:
    """Return what `calls.run_layers` does, without dropout, in one call.

    ATen's operator finds the weights of a module in one row, but not those that `are_cast` and those of
    `bfloat16`, which modules do not lay out so: of these it warns in each call.
    """
    operands = (x, *states, *weights)
    if not are_cast and x.dtype is not torch.bfloat16 and not _trains(operands):
        return _run_whole(kind, x, states, weights, has_biases, layers, bidirectional)
    projects = _has_projections(states)
    shape = CudnnShape(
        mode=_MODES[kind],
        weights=(4 if has_biases else 2) + projects,
        hidden_size=states[-1].shape[2],
        projected_size=states[0].shape[2] if projects else 0,
        layers=layers,
        bidirectional=bidirectional,
    )
    if _trains(operands):
        run: Callable[..., tuple[Tensor, ...]] = _TrainedOnCudnn.apply
        hidden, *last = run(shape, len(states), *operands)
    else:
        packed = _pack_weights(shape, x, weights)
        hidden, *last = _call_cudnn(shape, x, states, weights, packed, train=False)
    return hidden, tuple(last[: len(states)])


def _pack_weights(shape: CudnnShape, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return all weights in one row, in cuDNN's order."""
    order = find_weight_order(shape, x, weights)
    return torch.cat([weights[place].flatten() for place in order])


def _call_cudnn(
    shape: CudnnShape,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    packed: Tensor,
    *,
    train: bool,
) -> tuple[Tensor, ...]:
    hx, cx = states if len(states) == 2 else (states[0], None)
    return CUDNN(x, list(weights), shape.weights, packed, hx, cx, *shape.list_numbers(train=train))


class _TrainedOnCudnn(Function):
    """Layers that train, as a call of cuDNN forwards and one backwards."""

    @staticmethod
    def forward(ctx: Any, shape: CudnnShape, count: int, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        states, weights = others[:count], others[count:]
        packed = _pack_weights(shape, x, weights)
        # the last result is `packed` itself
        hidden, last, cell, reserve, _ = _call_cudnn(shape, x, states, weights, packed, train=True)
        ctx.shape, ctx.count = shape, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, reserve, packed, x, *others)
        return (hidden, last, cell)[: 1 + count]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        hidden, reserve, packed, x, *others = ctx.saved_tensors
        shape, count = ctx.shape, ctx.count
        hx, cx = others[0], others[1] if count == 2 else None
        of_x, of_hx, of_cx, of_weights = CUDNN_GRADIENT(
            *(x, others[count:], shape.weights, packed, hx, cx, hidden),
            *(grads if count == 2 else (*grads, None)),
            *shape.list_numbers(train=True),
            reserve.clone(),
            [True, True, cx is not None, True],
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
    """Return what `calls.run_layers` does, without dropout: a call for each layer and direction that train,
    else one.
    """
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
