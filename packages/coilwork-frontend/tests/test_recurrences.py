"""Recurrent layers as loops and as calls of libraries, and cells that become layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from coilwork_frontend.captured_key import make_captured_key
from coilwork_frontend.recurrences import calls
from coilwork_frontend.recurrences.calls import TRACED, replace_recurrent_calls, run_layers

LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(4, 6, 2, bidirectional=True),
    "lstm, projected": lambda: nn.LSTM(4, 6, bias=False, proj_size=3),
    "gru": lambda: nn.GRU(4, 6, 2, bidirectional=True),
    "gru without biases": lambda: nn.GRU(4, 6, bias=False),
    "rnn_tanh": lambda: nn.RNN(4, 6, bidirectional=True),
    "rnn_relu": lambda: nn.RNN(4, 6, nonlinearity="relu"),
}


def weights_of(layer: nn.RNNBase) -> list[Tensor]:
    """Return the weights in the order in which torch's functions take them."""
    return [weight for weight in layer._flat_weights if isinstance(weight, Tensor)]


def compare(function: Callable[..., Any], other: Callable[..., Any], operands: Sequence[Tensor]) -> None:
    """Both functions of the operands give the same results, gradients and strides."""
    found: list[Tensor] = []
    wanted: list[Tensor] = []
    weigh: list[Tensor] = []
    for one, values in ((other, wanted), (function, found)):
        given = [operand.detach().clone().requires_grad_() for operand in operands]
        results = tree_leaves(one(*given))
        weigh = weigh or [torch.randn_like(result) for result in results]
        values.extend((*results, *torch.autograd.grad(results, given, weigh)))
    for value, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5, check_stride=True)


def call_layer(run: Callable[..., Any] | None, layer: nn.RNNBase, x: Tensor, *weights: Tensor) -> Any:
    """What `layer` makes of `x: [T, B, I]` with other weights, by `run` or by torch."""
    function: Any = {"LSTM": torch.lstm, "GRU": torch.gru}.get(layer.mode)
    function = function or getattr(torch, layer.mode.lower())
    directions = 1 + layer.bidirectional
    hidden = x.new_zeros(layer.num_layers * directions, x.shape[1], getattr(layer, "proj_size", 0) or 6)
    states: tuple[Tensor, ...] = (hidden + 0.1,)
    if layer.mode == "LSTM":
        states = (hidden + 0.1, x.new_zeros(layer.num_layers * directions, x.shape[1], 6))
    given = states if len(states) == 2 else states[0]
    if run is not None:
        bound = partial(run, function.__name__, has_biases=layer.bias, bidirectional=layer.bidirectional)
        return run_layers(bound, x, states, weights, layers=layer.num_layers, dropout=0.0)
    numbers = (layer.bias, layer.num_layers, layer.dropout, True, layer.bidirectional, False)
    return function(x, given, list(weights), *numbers)


@pytest.mark.parametrize("name", LAYERS)
def test_loops_do_what_layers_do(name: str) -> None:
    layer = LAYERS[name]().double()
    operands = (torch.randn(7, 3, 4, dtype=torch.float64), *weights_of(layer))
    compare(partial(call_layer, calls._run_loops, layer), partial(call_layer, None, layer), operands)


def trace(layer: nn.RNNBase, x: Tensor, *weights: Tensor) -> Any:
    """As `call_layer` by torch, through what tracing calls."""
    function = TRACED[getattr(torch, layer.mode.lower())]
    hidden = x.new_zeros(layer.num_layers * (1 + layer.bidirectional), x.shape[1], 6)
    given = (hidden + 0.1, hidden) if layer.mode == "LSTM" else hidden + 0.1
    numbers = (layer.bias, layer.num_layers, layer.dropout, True, layer.bidirectional, False)
    return function(x, given, list(weights), *numbers)


def test_layers_of_onednn_train() -> None:
    for layer in (LAYERS["lstm"](), nn.LSTM(4, 6, bias=False)):
        operands = (torch.randn(7, 3, 4), *weights_of(layer))
        compare(partial(trace, layer), partial(call_layer, None, layer), operands)


def test_dropout_is_between_layers() -> None:
    # torch's own decomposition leaves it out; of all elements, it is the same in each call
    for layer in (nn.GRU(4, 6, 3, dropout=1.0), nn.LSTM(4, 6, 2, dropout=1.0)):
        operands = (torch.randn(7, 3, 4), *weights_of(layer))
        compare(partial(trace, layer), partial(call_layer, None, layer), operands)


# ---- cuDNN ----


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The calls of a stand-in for cuDNN on CPUs, which overwrites what it reserved, as cuDNN does."""
    monkeypatch.setattr(calls, "may_use_cudnn", lambda x: True)
    functions: dict[int, Callable[..., Any]] = {
        0: torch.rnn_relu,
        1: torch.rnn_tanh,
        2: torch.lstm,
        3: torch.gru,
    }
    called: list[str] = []

    def run(x: Tensor, hx: Tensor, cx: Tensor | None, packed: Tensor, weights: Any, numbers: Any) -> Any:
        mode, _, _, layers, _, _, _, bidirectional, *_ = numbers
        ordered = sorted(weights, key=lambda one: one.dim() == 1)
        rows = packed.split([one.numel() for one in ordered])
        taken = {id(one): row.view(one.shape) for one, row in zip(ordered, rows, strict=True)}
        has_biases = any(one.dim() == 1 for one in weights)
        own = [taken[id(one)] for one in weights]
        states: Any = hx if cx is None else [hx, cx]
        return functions[mode](x, states, own, has_biases, layers, 0.0, True, bidirectional, False)

    def forward(
        x: Tensor, w: Any, stride: int, packed: Tensor, hx: Tensor, cx: Tensor | None, *numbers: Any
    ) -> Any:
        called.append("forward")
        with torch.no_grad():
            hidden, last, *cell = run(x, hx, cx, packed, w, numbers)
        return hidden, last, cell[0] if cell else x.new_empty(0), torch.ones(9, dtype=torch.uint8), packed

    def backward(
        x: Tensor, w: Any, stride: int, packed: Tensor, hx: Tensor, cx: Tensor | None, y: Tensor, *rest: Any
    ) -> Any:
        *grads_and_numbers, reserve, mask = rest
        grads, numbers = grads_and_numbers[:3], grads_and_numbers[3:]
        called.append("backward")
        assert bool((reserve == 1).all()) and mask == [True, True, cx is not None, True]
        reserve.zero_()
        given = [one.detach().clone().requires_grad_() for one in (x, hx, *([] if cx is None else [cx]), *w)]
        count = 2 if cx is None else 3

        def differentiate() -> Any:
            own = given[count:]
            row = torch.cat([one.flatten() for one in sorted(own, key=lambda one: one.dim() == 1)])
            results = run(given[0], given[1], None if cx is None else given[2], row, own, numbers)
            pairs = [pair for pair in zip(results, grads, strict=False) if pair[1] is not None]
            return torch.autograd.grad([one for one, _ in pairs], given, [grad for _, grad in pairs])

        # kernels run below autograd
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(differentiate).result()
        return found[0], found[1], x.new_empty(0) if cx is None else found[2], list(found[count:])

    library = torch.library.Library("aten", "IMPL")
    library.impl("_cudnn_rnn", forward, "CPU")
    library.impl("_cudnn_rnn_backward", backward, "CPU")
    yield called
    library._destroy()


def test_layers_of_cudnn_train(called: list[str]) -> None:
    for name in ("lstm", "gru", "rnn_tanh", "gru without biases"):
        layer = LAYERS[name]()
        operands = (torch.randn(7, 3, 4), *weights_of(layer))
        compare(partial(trace, layer), partial(call_layer, None, layer), operands)
    assert called == ["forward", "backward"] * 4
    x, layer = torch.randn(7, 3, 4, requires_grad=True), LAYERS["gru without biases"]()
    total = trace(layer, x, *weights_of(layer))[0].sum()
    first, second = (torch.autograd.grad(total, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_dropout_makes_a_call_of_each_layer(called: list[str]) -> None:
    layer = nn.GRU(4, 6, 3, dropout=1.0)
    operands = (torch.randn(7, 3, 4), *weights_of(layer))
    compare(partial(trace, layer), partial(call_layer, None, layer), operands)
    assert called == ["forward"] * 3 + ["backward"] * 3


# ---- Cells ----


class Cells(nn.Module):
    """Layers of cells over the steps of `x: [T, B, 6]`; `way` says what else the loop does."""

    def __init__(self, kind: Callable[[int, int], nn.Module], layers: int, way: str) -> None:
        super().__init__()
        self.cells = nn.ModuleList(kind(6, 6) for _ in range(layers))
        self.way = way

    def forward(self, x: Tensor) -> Any:
        zeros = x.new_zeros(x.shape[1], 6)
        is_lstm = isinstance(self.cells[0], nn.LSTMCell)
        states: list[Any] = [(zeros, zeros) if is_lstm else zeros for _ in self.cells]
        rows: list[Tensor] = []
        stored = x + 0
        for step in range(x.shape[0]):
            value = x.transpose(0, 1)[:, step] if self.way == "columns" else x[step]
            if self.way == "fed" and step:
                value = value + rows[-1]
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(value, states[layer])
                value = states[layer][0] if is_lstm else states[layer]
            rows.append(value.relu() if self.way == "columns" else value)
            if self.way == "memory":
                rows[-1] = rows[-1] + states[0][1]
            if self.way == "written":
                stored[step] = value
        return torch.stack(rows), stored, states


@pytest.mark.parametrize(
    ("kind", "layers", "way", "chains"),
    [
        (nn.LSTMCell, 2, "rows", 2),
        (nn.GRUCell, 2, "columns", 2),
        (nn.RNNCell, 1, "rows", 1),
        (nn.LSTMCell, 1, "fed", 0),
        (nn.LSTMCell, 1, "memory", 0),
        (nn.GRUCell, 1, "written", 0),
    ],
)
def test_cells_that_become_layers(kind: Any, layers: int, way: str, chains: int) -> None:
    model = Cells(kind, layers, way)
    found: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        replace_recurrent_calls(gm)
        gm.graph.lint()
        make_captured_key(gm, inputs)
        targets = [node.target for node in gm.graph.nodes]
        found.append(sum(targets.count(function) for function in TRACED.values()))
        cells = sum(getattr(target, "__name__", "").endswith("_cell") for target in targets)
        assert bool(cells) is not bool(chains)
        return gm

    torch._dynamo.reset()
    compiled, other = torch.compile(model, backend=backend, fullgraph=True), deepcopy(model)
    x = torch.randn(5, 3, 6)
    compare(compiled, other, (x,))
    compiled(x)[0].sum().backward()
    other(x)[0].sum().backward()
    for one, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, expected.grad, rtol=1e-4, atol=1e-4)
    assert found == [chains, chains] or found == [chains]
