"""Whole recurrent layers as one call of a library: ATen's own in inference, and cuDNN's that can train.

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

from coilwork_frontend.torch_compat.recurrent_operators import CUDNN, CUDNN_GRADIENT, get_whole_operator
from coilwork_ir.device_traits import CUDNN as HAS_CUDNN
from coilwork_ir.device_traits import has_trait

# `cudnnRNNMode_t`.
_MODES: Final[Mapping[str, int]] = MappingProxyType({"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3})
_TYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def may_use_cudnn(x: Tensor) -> bool:
    """Tell if layers of `x: [T, B, I]` can be one call of cuDNN."""
    if not has_trait(x.device.type, HAS_CUDNN) or not torch.backends.cudnn.enabled:
        return False
    return x.dtype in _TYPES and 0 not in x.shape


def run_on_library(
    kind: str,
    x: Tensor,
    states: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    *,
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return what `layers.run_layers` does, without dropout, in one call."""
    operands = (x, *states, *weights)
    shape = _Shape(kind, has_biases, layers, bidirectional)
    if torch.is_grad_enabled() and any(one.requires_grad for one in operands):
        run: Callable[..., tuple[Tensor, ...]] = _Trained.apply
        hidden, *last = run(shape, len(states), *operands)
    elif x.dtype is torch.bfloat16:
        # ATen's operator takes the steps one by one
        cx = states[1] if len(states) == 2 else None
        hidden, *last = CUDNN(
            x, list(weights), shape.stride, None, states[0], cx, *shape.list_numbers(states[0], train=False)
        )
    else:
        given = list(states) if kind == "lstm" else states[0]
        whole = get_whole_operator(kind)
        hidden, *last = whole(x, given, list(weights), has_biases, layers, 0.0, False, bidirectional, False)
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


class _Trained(Function):
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
