"""The largest and smallest elements of rows, as an accelerator gets them: against eager on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.loops import Graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_lowering import lower
from coilwork_lowering.ops.sorting import LONGEST_ROW, MOST_CHOSEN

NAN, INF = float("nan"), float("inf")


def for_accelerator(function: Callable[..., Any], *inputs: torch.Tensor) -> Graph:
    """The graph that `function` gives on a GPU, with its memory on the CPU."""
    mode = FakeTensorMode()
    with mode:
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs]
        gm = make_fx(function)(*fakes)
    return parse_graph(format_graph(lower(gm, name="graph").graph).replace("cuda:0", "cpu"))


def check(x: torch.Tensor, k: int, dim: int = -1, *, largest: bool = True) -> None:
    def function(a: torch.Tensor) -> Any:
        return torch.topk(a, k, dim, largest)

    graph = for_accelerator(function, x)
    assert externs(graph) == []
    values, positions = loop_evaluator.run(graph, {}, [x])
    wanted = function(x)
    assert positions.dtype == torch.int64 and positions.shape == wanted.indices.shape
    assert values.dtype == x.dtype and values.stride() == wanted.values.stride()
    torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)
    # which of equal ones is chosen is free, but none twice
    torch.testing.assert_close(x.gather(dim, positions), values, rtol=0, atol=0, equal_nan=True)
    ordered = positions.sort(dim).values
    assert (ordered.diff(dim=dim) > 0).all()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8])
def test_types(dtype: torch.dtype, largest: bool) -> None:
    x = (torch.randn(5, 40) * 20).to(dtype)
    for k in (1, 2, MOST_CHOSEN):
        check(x, k, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
def test_rows_of_equal_and_special_elements(largest: bool) -> None:
    rows = torch.tensor(
        [
            [1.0, 1.0, 1.0, 1.0, 1.0],
            [NAN, 1.0, NAN, NAN, INF],
            [-INF, -INF, -INF, -INF, 2.0],
            [NAN, NAN, NAN, NAN, NAN],
            [0.0, -0.0, 0.0, -1.0, 1e-45],
        ]
    )
    for k in range(1, 5):
        check(rows, k, largest=largest)


def test_extreme_integers() -> None:
    info = torch.iinfo(torch.int32)
    rows = torch.tensor(
        [[info.min, info.min, info.max, 0], [info.max] * 4, [info.min] * 4], dtype=torch.int32
    )
    check(rows, 3)
    check(rows, 3, largest=False)


def test_dimensions() -> None:
    x = torch.randn(3, 9, 4)
    for dim in (0, 1, 2):
        check(x, 2, dim)
    check(torch.randn(7), 2, 0)
    check(torch.randn(4, 6).t(), 3, 0)


def test_of_equal_ones_the_first_is_chosen() -> None:
    graph = for_accelerator(lambda a: torch.topk(a, 3), torch.zeros(2, 9))
    _, positions = loop_evaluator.run(graph, {}, [torch.zeros(2, 9)])
    assert positions.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_what_stays_with_aten() -> None:
    called = ["aten.topk.default"]
    for x, k in (
        (torch.zeros(2, 40), MOST_CHOSEN + 1),
        (torch.zeros(2, LONGEST_ROW + 1), 2),
        (torch.zeros(2, 3), 3),
        (torch.zeros(2, 9, dtype=torch.float64), 2),
        (torch.zeros(2, 9, dtype=torch.int64), 2),
    ):
        assert externs(for_accelerator(partial(torch.topk, k=k), x)) == called
    # a CPU's partial sort is as good
    assert externs(trace_and_lower(lambda a: torch.topk(a, 2), (torch.zeros(2, 9),)).graph) == called
