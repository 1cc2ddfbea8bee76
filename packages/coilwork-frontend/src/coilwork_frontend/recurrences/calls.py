"""Find calls of recurrent layers in Dynamo's graphs, and make tracing treat each as one call or one loop.

Torch's decompositions write out all steps: thousands of nodes, for one number of steps, without the dropout
between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn.functional import dropout as drop

from coilwork_frontend.recurrences.cell_chains import join_cells
from coilwork_frontend.recurrences.library_calls import (
    may_use_cudnn,
    may_use_onednn,
    run_on_cudnn,
    run_on_onednn,
)
from coilwork_frontend.recurrences.loops import Tensors, run_direction
from coilwork_frontend.torch_compat.tensors import is_functorch_tensor


def replace_recurrent_calls(gm: fx.GraphModule) -> None:
    """Replace calls of recurrent layers and chains of cells in Dynamo's graph `gm` and its nested graphs, in
    place.
    """
    for child in list(gm.children()):
        if isinstance(child, fx.GraphModule):
            replace_recurrent_calls(child)
    join_cells(gm)
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
    """Trace `function(*arguments)`, one of `torch.lstm` and its like."""
    if not isinstance(arguments[3], bool):
        return _trace_packed(kind, function, arguments)
    x, states, weights, has_biases, layers, dropout, train, bidirectional, batch_first = arguments
    states = tuple(states) if kind == "lstm" else (states,)
    run, operands = _choose(kind, function, (x, *states, *weights), len(states))
    x = operands[0].transpose(0, 1) if batch_first else operands[0]
    result, last = run_layers(
        partial(run, has_biases=has_biases, bidirectional=bidirectional),
        x,
        operands[1 : 1 + len(states)],
        operands[1 + len(states) :],
        layers=layers,
        dropout=dropout if train else 0.0,
    )
    return (result.transpose(0, 1) if batch_first else result, *last)


def _trace_packed(kind: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Trace a call whose second argument tells how many rows each step has."""
    rows, batch_sizes, states, weights, has_biases, layers, dropout, train, bidirectional = arguments

    def run(x: Tensor, states: Tensors, weights: Sequence[Tensor], layers: int) -> tuple[Tensor, Tensors]:
        given = states if kind == "lstm" else states[0]
        result, *last = function(
            x, batch_sizes, given, weights, has_biases, layers, 0.0, train, bidirectional
        )
        return result, tuple(last)

    states = tuple(states) if kind == "lstm" else (states,)
    result, last = run_layers(run, rows, states, weights, layers=layers, dropout=dropout if train else 0.0)
    return (result, *last)


def _choose(
    kind: str, function: Callable[..., Any], operands: Tensors, count: int
) -> tuple[Callable[..., tuple[Tensor, Tensors]], Tensors]:
    """Return what runs layers of the operands, which begin with the input and `count` states, and the
    operands that it takes.
    """
    x, *states = operands[: 1 + count]
    on_cudnn = may_use_cudnn(x)
    casts = torch.is_autocast_enabled(x.device.type)
    if casts and on_cudnn:
        # autocast gives cuDNN this type whatever its own is
        operands = tuple(one if one.dtype is torch.float64 else one.to(torch.float16) for one in operands)
    are_plain = all(
        one.dtype is operands[0].dtype and one.device == x.device and not is_functorch_tensor(one)
        for one in operands
    )
    if not are_plain or (casts and not on_cudnn):
        return partial(_call_torch, function, train=torch.is_grad_enabled()), operands
    if on_cudnn:
        return partial(run_on_cudnn, kind, are_cast=casts), operands
    on_onednn = may_use_onednn(kind, x, states)
    return partial(run_on_onednn if on_onednn else _run_loops, kind), operands


# ---- Layers ----


def run_layers(
    run: Callable[..., tuple[Tensor, Tensors]],
    x: Tensor,
    states: Tensors,
    weights: Sequence[Tensor],
    *,
    layers: int,
    dropout: float,
) -> tuple[Tensor, Tensors]:
    """Return the hidden states `[T, B, D H]` of the last of the layers, and the states behind the last steps.

    Args:
        run: runs layers without dropout, of the operands and the number of layers.
        x: `[T, B, I]`.
        states: `[L D, B, H]` each, the hidden states first.
        weights: those of each layer and direction in turn, as `torch.nn.LSTM` has them.
        dropout: the probability that an element between two layers is dropped.
    """
    per_layer, directions = len(weights) // layers, states[0].shape[0] // layers
    together = 1 if dropout else layers
    lasts: list[Tensors] = []
    for first in range(0, layers, together):
        given = tuple(one.narrow(0, first * directions, together * directions) for one in states)
        own = weights[first * per_layer : (first + together) * per_layer]
        x, last = run(x, given, own, layers=together)
        lasts.append(last)
        if first + together < layers:
            x = drop(x, dropout)
    if len(lasts) == 1:
        return x, lasts[0]
    return x, tuple(torch.cat(part) for part in zip(*lasts, strict=True))


def _call_torch(
    function: Callable[..., Any],
    x: Tensor,
    states: Tensors,
    weights: Sequence[Tensor],
    *,
    train: bool,
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensors]:
    """Run layers by torch's own function, which tracing takes apart into all steps."""
    given = states if function is torch.lstm else states[0]
    result, *last = function(x, given, list(weights), has_biases, layers, 0.0, train, bidirectional, False)
    return result, tuple(last)


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
