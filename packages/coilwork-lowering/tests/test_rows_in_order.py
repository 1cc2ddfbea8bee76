"""Sums of rows whose positions come in order need no sort: against f64, and what keeps its sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
from aot_compilers import TracingMode
from lowering_against_eager import externs, trace_and_lower
from torch import Tensor

from coilwork_ir.loops import Scatter, Sort
from coilwork_lowering import LoweringOptions

aten = torch.ops.aten
ROWS = 5000


def gradient(positions: Callable[[Tensor], Tensor], padding: int = -1) -> Callable[[Tensor], Tensor]:
    """Of a table of `ROWS` rows at `positions`, which are made of the shape of its gradient."""
    return lambda g: aten.embedding_dense_backward(g, positions(g), ROWS, padding, False)


def check(function: Callable[[Tensor], Tensor], g: Tensor, *, mode: TracingMode = "fake") -> bool:
    """As eager in f64; whether positions are sorted for it."""
    lowered = trace_and_lower(function, (g,), options=LoweringOptions(accumulation="sorted"), mode=mode)
    assert externs(lowered.graph) == []
    assert not any(isinstance(node, Scatter) for node in lowered.graph.nodes)
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [g.clone()])
    torch.testing.assert_close(found.double(), function(g.double()), rtol=1e-4, atol=1e-4, equal_nan=True)
    return any(isinstance(node, Sort) for node in lowered.graph.nodes)


IN_ORDER: dict[str, Any] = {
    "counted": lambda g: torch.arange(g.shape[0]),
    "counted from 3": lambda g: torch.arange(3, 3 + g.shape[0]),
    "moved on": lambda g: torch.arange(g.shape[0]) + 2,
    "every other": lambda g: torch.arange(2 * g.shape[0])[::2],
}


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", list(IN_ORDER))
def test_counted_positions_are_not_sorted(name: str, mode: TracingMode) -> None:
    g = torch.randn(2000, 7)
    g[5, 2], g[6, 1], g[7, 0] = float("nan"), float("inf"), -float("inf")
    assert not check(gradient(IN_ORDER[name]), g, mode=mode)


def test_a_row_of_a_batch_of_one() -> None:
    assert not check(
        gradient(lambda g: torch.arange(g.shape[1])[None]), torch.randn(1, 2000, 7), mode="symbolic"
    )


def test_repeated_positions_whose_values_are_known() -> None:
    repeated = gradient(lambda g: torch.arange(700).unsqueeze(1).expand(700, 3))
    assert not check(repeated, torch.randn(700, 3, 7))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_others_are_sorted(mode: TracingMode) -> None:
    g = torch.randn(2000, 7)
    assert check(gradient(lambda g: torch.arange(g.shape[0]).flip(0)), g, mode=mode)
    assert check(gradient(IN_ORDER["counted"], padding=5), g, mode=mode)
    rows = gradient(lambda g: torch.arange(g.shape[1]).expand(g.shape[0], g.shape[1]))
    assert check(rows, torch.randn(4, 500, 7), mode=mode)


def test_positions_behind_the_table_are_told() -> None:
    lowered = trace_and_lower(gradient(IN_ORDER["counted"]), (torch.randn(ROWS + 1, 7),), mode="symbolic")
    with pytest.raises((IndexError, RuntimeError, AssertionError)):
        loop_evaluator.run(lowered.graph, lowered.constants, [torch.randn(ROWS + 1, 7)])
