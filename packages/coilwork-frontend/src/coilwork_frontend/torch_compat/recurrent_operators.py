"""Operators that name whole recurrent layers in graphs: those of ATen, with facts that tracing asks for.

Torch takes `aten.lstm` apart into its steps wherever it is traced, and does not know that `_cudnn_rnn`
returns memory for its gradient of a size that cuDNN chooses, or what that gradient returns. The operators
`coilwork::NAME` have the schemas of `aten::NAME` and call it. Lowering calls ATen's in their stead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

_LIBRARY: Final = torch.library.Library("coilwork", "FRAGMENT")


def _define(native: Any, fake: Callable[..., Any]) -> None:
    schema = str(native._schema).replace("aten::", "", 1)
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, native, "CompositeExplicitAutograd")
    torch.library.register_fake(f"coilwork::{name}", fake, lib=_LIBRARY)


def _describe_layers(
    x: Tensor, states: Sequence[Tensor], bidirectional: bool, batch_first: bool
) -> tuple[Tensor, ...]:
    """The results of layers whose states `[L D, B, H]` are `states`; eager makes them time first."""
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    hidden = x.new_empty((steps, batch, states[0].shape[2] * (1 + bidirectional)))
    last = tuple(one.new_empty(one.shape) for one in states)
    return (hidden.transpose(0, 1) if batch_first else hidden, *last)


def _fake_lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    return _describe_layers(input, hx, bidirectional, batch_first)


def _fake_others(
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    return _describe_layers(input, (hx,), bidirectional, batch_first)


def _fake_cudnn(
    input: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:
    (hidden, last) = _describe_layers(input, (hx,), bidirectional, batch_first)
    cell = input.new_empty(0) if cx is None else cx.new_empty(cx.shape)
    # cuDNN tells how large these are at run time
    reserve = input.new_empty((torch.library.get_ctx().new_dynamic_size(),), dtype=torch.uint8)
    packed = input.new_empty((torch.library.get_ctx().new_dynamic_size(),))
    return hidden, last, cell, reserve, packed


def _fake_cudnn_gradient(
    input: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    *others: object,
) -> tuple[Any, ...]:
    like = partial(torch.empty_like, memory_format=torch.contiguous_format)
    cell = input.new_empty(0) if cx is None else like(cx)
    return like(input), like(hx), cell, [like(one) for one in weight]


_define(torch.ops.aten.lstm.input, _fake_lstm)
_define(torch.ops.aten.gru.input, _fake_others)
_define(torch.ops.aten.rnn_tanh.input, _fake_others)
_define(torch.ops.aten.rnn_relu.input, _fake_others)
_define(torch.ops.aten._cudnn_rnn.default, _fake_cudnn)
_define(torch.ops.aten._cudnn_rnn_backward.default, _fake_cudnn_gradient)

CUDNN: Final[Callable[..., tuple[Tensor, ...]]] = torch.ops.coilwork._cudnn_rnn.default
CUDNN_GRADIENT: Final[Callable[..., tuple[Any, ...]]] = torch.ops.coilwork._cudnn_rnn_backward.default


def get_whole_operator(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    """Return the operator of whole layers of `kind`: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`."""
    operator: Callable[..., tuple[Tensor, ...]] = getattr(torch.ops.coilwork, kind).input
    return operator
