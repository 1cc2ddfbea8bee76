"""Sums of few rows, which look at every element: against eager and against f64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch.utils import _pytree as pytree

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.loops import Reduce, Scatter, Sort
from coilwork_ir.machine import change_figures, find_like_model
from coilwork_ir.scalar import const
from coilwork_lowering import LoweringOptions
from coilwork_lowering.ops.scattering.elements import Elements
from coilwork_lowering.ops.scattering.segment_sums import has_few_rows

aten = torch.ops.aten


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """As eager with every float in f64; how many reductions that takes."""
    lowered = trace_and_lower(function, inputs, options=LoweringOptions(accumulation="sorted"), mode="fake")
    assert externs(lowered.graph) == []
    assert not any(isinstance(node, Sort | Scatter) for node in lowered.graph.nodes)
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [x.clone() for x in inputs])
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    (wanted,) = pytree.tree_leaves(function(*wide))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
    return sum(isinstance(node, Reduce) for node in lowered.graph.nodes)


@pytest.mark.parametrize("padding", [-1, 1])
@pytest.mark.parametrize("used", [1, 2])
def test_a_table_of_two_rows(padding: int, used: int) -> None:
    ids, grad = torch.randint(0, used, (6, 50)), torch.randn(6, 50, 5)
    assert check(lambda g, i: aten.embedding_dense_backward(g, i, 2, padding, False), grad, ids) == 1


def test_other_ways_to_add() -> None:
    x, ids, g = torch.randn(3, 5), torch.randint(0, 3, (200,)), torch.randn(200, 5)
    assert check(lambda x, i, g: x.index_add(0, i, g, alpha=2), x, ids, g) == 1
    assert check(lambda x, i, g: x.index_put((i - 3,), g, accumulate=True), x, ids, g) == 1
    bins, weight = torch.zeros(4), torch.rand(300)
    assert check(lambda b, i, w: b.scatter_add(0, i, w), bins, torch.randint(0, 4, (300,)), weight) == 1


@pytest.mark.parametrize("include_self", [True, False])
def test_a_mean_sums_values_and_counts(include_self: bool) -> None:
    x, ids, g = torch.randn(5), torch.randint(0, 4, (90,)), torch.randn(90)
    count = check(lambda x, i, g: x.scatter_reduce(0, i, g, "mean", include_self=include_self), x, ids, g)
    assert count == 2


def test_special_values_stay_in_their_rows() -> None:
    g = torch.ones(40, 2)
    g[7], g[8] = float("nan"), float("inf")
    check(lambda g, i: aten.embedding_dense_backward(g, i, 40, -1, False), g, torch.arange(40))


def elements(count: Any, rows: Any, inner: int) -> Elements:
    return Elements(
        count=as_expr(count),
        rows=as_expr(rows),
        runs=as_expr(1),
        all_rows=True,
        inner=(as_expr(inner),),
        key=lambda n: const(0, DType.I64),
        value=lambda position, place, point, mask: const(0.0, DType.F32),
        dtype=DType.F32,
        checks=lambda n: (),
    )


def test_when_rows_are_few() -> None:
    # token types, and one row for everything; a vocabulary, and as many positions as there are tokens in a
    # text
    h200 = find_like_model("cuda")
    for few in (elements(16384, 2, 768), elements(1 << 24, 1, 1)):
        assert has_few_rows(few, h200)
        # where a sort takes no time, rows are never few
        assert not has_few_rows(few, change_figures(h200, {"scatters.sort_us": 0.0, "scatters.step_us": 0.0}))
    assert not has_few_rows(elements(16384, 50257, 768), h200) and not has_few_rows(
        elements(16384, 512, 768), h200
    )
    assert not has_few_rows(elements(symbol("s0", lo=0), 2, 768), h200)
    assert not has_few_rows(replace(elements(16384, 2, 768), ordered=True), h200)
