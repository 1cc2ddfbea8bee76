"""Recurrent layers on a GPU that is not here: one call in inference, and two of cuDNN in training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from coilwork_frontend.recurrences.calls import TRACED
from coilwork_frontend.torch_compat.recurrent_operators import (
    CUDNN,
    CUDNN_GRADIENT,
    CudnnShape,
    find_weight_order,
)
from coilwork_ir.loops import Extern
from coilwork_lowering import lower

STEPS, BATCH, WIDTH = 30, 3, 8


def infer(function: Any, x: Tensor, state: Any, weights: list[Tensor]) -> Any:
    with torch.no_grad():
        hidden, *_ = TRACED[function](x.sin(), state, weights, True, 2, 0.0, False, False, False)
    return hidden.relu()


def train(function: Any, x: Tensor, state: Any, weights: list[Tensor]) -> Any:
    """Both calls, without autograd, which has no threads for devices that are not here."""
    shape = CudnnShape(mode=1, weights=4, hidden_size=WIDTH, projected_size=0, layers=2, bidirectional=False)
    packed = torch.cat([weights[place].flatten() for place in find_weight_order(shape, x, weights)])
    given, numbers = x.sin(), shape.list_numbers(train=True)
    hidden, _, _, reserve, _ = CUDNN(given, weights, 4, packed, state, None, *numbers)
    operands = (given, weights, 4, packed, state, None, hidden, hidden.relu(), None, None)
    return CUDNN_GRADIENT(*operands, *numbers, reserve.clone(), [True, True, False, True])


@pytest.mark.parametrize(
    ("run", "function", "calls"),
    [
        (infer, torch.lstm, ["aten.lstm.input"]),
        (infer, torch.gru, ["aten.gru.input"]),
        (train, torch.rnn_tanh, ["aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default"]),
    ],
)
def test_layers_are_calls(run: Any, function: Any, calls: list[str]) -> None:
    gates = {torch.lstm: 4, torch.gru: 3}.get(function, 1) * WIDTH
    with FakeTensorMode(shape_env=ShapeEnv()):
        x, state = (torch.empty(size, BATCH, WIDTH, device="cuda") for size in (STEPS, 2))
        shapes = [(gates, WIDTH), (gates, WIDTH), (gates,), (gates,)] * 2
        weights = [torch.empty(shape, device="cuda") for shape in shapes]
    states = (state, state) if function is torch.lstm else state
    gm = make_fx(lambda x, states, weights: run(function, x, states, weights))(x, states, weights)
    graph = lower(gm, name="graph").graph
    found = [node.target for node in graph.nodes if isinstance(node, Extern)]
    assert [target for target in found if "rnn" in target or target.endswith(".input")] == calls
    assert len(found) == len(calls)
