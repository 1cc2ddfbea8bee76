"""Recurrent layers are compiled, with what is around them, for this back end alone."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import coilwork


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compare(compiled: Any, model: nn.Module, other: nn.Module, *inputs: Tensor) -> None:
    """`compiled`, which is `model`, does what `other`, its copy, does: results, strides, gradients."""
    given = [[one.clone().requires_grad_() for one in inputs] for _ in range(2)]
    results, wanted = tree_leaves(compiled(*given[0])), tree_leaves(other(*given[1]))
    weigh = [torch.randn_like(one) for one in wanted]
    torch.autograd.backward(results, weigh)
    torch.autograd.backward(wanted, weigh)
    for one, expected in zip(results, wanted, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4, check_stride=True)
    parameters = zip(model.parameters(), other.parameters(), strict=True)
    for leaf, expected in (*zip(*given, strict=True), *parameters):
        torch.testing.assert_close(leaf.grad, expected.grad, rtol=1e-3, atol=1e-3)
    for module in (model, other):
        module.zero_grad()


class Surrounded(nn.Module):
    """A layer with a producer and consumers."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        hidden, state = self.layer(x.sin() * 2)
        return self.last(hidden.relu()), state


def test_layers_with_what_is_around_them() -> None:
    model = Surrounded(nn.LSTM(5, 8, 2, batch_first=True, bidirectional=True))
    other = deepcopy(model)
    compiled = torch.compile(model, backend="coilwork", fullgraph=True, options={"strict": True})
    compare(compiled, model, other, torch.randn(3, 9, 5))


def test_one_compilation_for_all_numbers_of_steps() -> None:
    layer = nn.GRU(4, 6)
    compiled = coilwork.compile(layer, strict=True, fullgraph=True, dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(40, 3, 4))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for steps, batch in ((70, 2), (17, 5)):
                x = torch.randn(steps, batch, 4)
                for one, expected in zip(compiled(x), layer(x), strict=True):
                    torch.testing.assert_close(one, expected, check_stride=True)


def test_loops_in_checkpoints() -> None:
    layer = nn.GRU(4, 6)
    other = deepcopy(layer)

    def run(x: Tensor) -> Any:
        result: Any = checkpoint(layer, x, use_reentrant=False)
        return result

    compare(coilwork.compile(run, strict=True, fullgraph=True), layer, other, torch.randn(30, 3, 4))


def test_autocast_gives_the_types_of_eager_mode() -> None:
    for layer in (nn.LSTM(4, 6), nn.GRU(4, 6)):
        compiled, x = coilwork.compile(layer, strict=True, fullgraph=True), torch.randn(5, 3, 4)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            pairs = zip(tree_leaves(compiled(x)), tree_leaves(layer(x)), strict=True)
            for one, expected in pairs:
                torch.testing.assert_close(one, expected, rtol=0.03, atol=0.03, check_stride=True)


def test_graphs_of_other_back_ends_end_at_layers() -> None:
    x = torch.randn(5, 3, 4)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="RNN, GRU, or LSTM"):
        torch.compile(nn.GRU(4, 6), backend="eager", fullgraph=True)(x)
    assert not torch._dynamo.config.allow_rnn


def test_packed_rows_do_what_eager_does() -> None:
    layer, sequences = nn.LSTM(4, 6), [torch.randn(length, 4) for length in (5, 3, 2)]
    packed = nn.utils.rnn.pack_sequence(sequences)
    compiled = coilwork.compile(layer)
    for one, expected in zip(tree_leaves(compiled(packed)), tree_leaves(layer(packed)), strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, expected)
