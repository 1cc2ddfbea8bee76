"""Find calls of recurrent layers in Dynamo's graphs, and make tracing treat each as one call or one loop.

Torch's decompositions write out all steps: thousands of nodes, for one number of steps, without the dropout
between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn.functional import dropout as drop

from coilwork_frontend.recurrences.library_calls import may_use_cudnn, run_on_library
from coilwork_frontend.recurrences.loops import Tensors, run_direction
from coilwork_frontend.torch_compat.tensors import is_functorch_tensor


def replace_recurrent_calls(gm: fx.GraphModule) -> None:
    """Replace calls of recurrent layers in Dynamo's graph `gm` and its nested graphs, in place."""
    for child in list(gm.children()):
        if isinstance(child, fx.GraphModule):
            replace_recurrent_calls(child)
    changed = False
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in TRACED:
            node.target = TRACED[node.target]
            changed = True
    if changed:
        gm.recompile()


def trace_lstm(*arguments: Any) -> Any:
    """`torch.lstm`, traced as whole layers."""
    return _trace("lstm", torch.lstm, arguments)


def trace_gru(*arguments: Any) -> Any:
    """`torch.gru`, traced as whole layers."""
    return _trace("gru", torch.gru, arguments)


def trace_rnn_tanh(*arguments: Any) -> Any:
    """`torch.rnn_tanh`, traced as whole layers."""
    return _trace("rnn_tanh", torch.rnn_tanh, arguments)


def trace_rnn_relu(*arguments: Any) -> Any:
    """`torch.rnn_relu`, traced as whole layers."""
    return _trace("rnn_relu", torch.rnn_relu, arguments)


TRACED: Final[Mapping[object, Callable[..., Any]]] = MappingProxyType(
    {
        torch.lstm: trace_lstm,
        torch.gru: trace_gru,
        torch.rnn_tanh: trace_rnn_tanh,
        torch.rnn_relu: trace_rnn_relu,
    }
)
"""What replaces the functions that `torch.nn`'s recurrent layers call."""


def _trace(kind: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call `function` with `arguments`, of which the second is `batch_sizes` where rows are packed."""
    if not isinstance(arguments[2], Sequence):
        return function(*arguments)
    x, states, weights, has_biases, layers, dropout, train, bidirectional, batch_first = arguments
    states = tuple(states) if kind == "lstm" else (states,)
    operands = (x, *states, *weights)
    if torch.is_autocast_enabled(x.device.type):
        if not may_use_cudnn(x):
            return function(*arguments)
        # as autocast does with the operands of cuDNN
        dtype = torch.get_autocast_dtype(x.device.type)
        operands = tuple(one if one.dtype is torch.float64 else one.to(dtype) for one in operands)
    if not _are_plain(operands):
        return function(*arguments)
    x, states, weights = operands[0], operands[1 : 1 + len(states)], operands[1 + len(states) :]
    x = x.transpose(0, 1) if batch_first else x
    result, last = run_layers(
        kind,
        x,
        states,
        weights,
        has_biases=has_biases,
        layers=layers,
        dropout=dropout if train else 0.0,
        bidirectional=bidirectional,
    )
    return (result.transpose(0, 1) if batch_first else result, *last)


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    """Tell if eager takes the operands as they are: one type on one device."""
    first = tensors[0]
    return all(
        one.dtype is first.dtype and one.device == first.device and not is_functorch_tensor(one)
        for one in tensors
    )


def run_layers(
    kind: str,
    x: Tensor,
    states: Tensors,
    weights: Sequence[Tensor],
    *,
    has_biases: bool,
    layers: int,
    dropout: float,
    bidirectional: bool,
) -> tuple[Tensor, Tensors]:
    """Return the hidden states `[T, B, D H]` of the last of the layers, and the states behind the last steps.

    Args:
        kind: a name in `loops.CELLS`.
        x: `[T, B, I]`.
        states: `[L D, B, H]` each, the hidden states first.
        weights: those of each layer and direction in turn, as `torch.nn.LSTM` has them.
        dropout: the probability that an element between two layers is dropped.
    """
    directions = 1 + bidirectional
    per_layer = len(weights) // layers
    run = run_on_library if _fits_library(x, states) else _run_loops
    together = 1 if dropout else layers
    lasts: list[Tensors] = []
    for first in range(0, layers, together):
        x, last = run(
            kind,
            x,
            tuple(one[first * directions : (first + together) * directions] for one in states),
            weights[first * per_layer : (first + together) * per_layer],
            has_biases=has_biases,
            layers=together,
            bidirectional=bidirectional,
        )
        lasts.append(last)
        if first + together < layers:
            x = drop(x, dropout)
    if len(lasts) == 1:
        return x, lasts[0]
    return x, tuple(torch.cat(part) for part in zip(*lasts, strict=True))


def _fits_library(x: Tensor, states: Tensors) -> bool:
    has_projection = len(states) == 2 and states[0].shape[2] != states[1].shape[2]
    return may_use_cudnn(x) and not has_projection


def _run_loops(
    kind: str,
    x: Tensor,
    states: Tensors,
    weights: Sequence[Tensor],
    *,
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensors]:
    """Return what `run_layers` does, without dropout, by a loop for each layer and direction."""
    directions = 1 + bidirectional
    size = len(weights) // (layers * directions)
    lasts: list[Tensors] = []
    for layer in range(layers):
        found = []
        for direction in range(directions):
            place = layer * directions + direction
            own = list(weights[place * size : (place + 1) * size])
            biases = own[2:4] if has_biases else []
            products = [*own[:2], *own[4 if has_biases else 2 :]]
            state = tuple(one[place] for one in states)
            hidden, last = run_direction(kind, x, state, products, biases, reverse=direction == 1)
            found.append(hidden)
            lasts.append(last)
        x = torch.cat(found, 2) if bidirectional else found[0]
    return x, tuple(torch.stack(part) for part in zip(*lasts, strict=True))
