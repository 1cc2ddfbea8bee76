"""Sums in fixed point of many elements: exact with units that all sums share, as good as ever where data
forbid them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import trace_and_lower

from coilwork_ir.loops import Graph, Pointwise, Reduce, Scatter
from coilwork_ir.loops.access import list_bodies
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.machine import change_figures, find_like_model
from coilwork_ir.scalar import list_loads
from coilwork_lowering import LoweringOptions

INF, NAN = float("inf"), float("nan")
ROWS, COUNT = 12, 400
LOWEST = torch.finfo(torch.float32).min
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "coilwork_lowering.ops.scattering.segment_sums.has_few_rows", lambda elements, machine: False
    )
    one = change_figures(find_like_model("cpu"), {"scatters.many_elements": 1})
    monkeypatch.setattr("coilwork_ir.machine.data_file.read_model", lambda path: one)


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Graph, Any]:
    lowered = trace_and_lower(function, inputs, options=LoweringOptions(accumulation="fixed"))
    verify_graph(lowered.graph)
    return lowered.graph, lowered.constants


def evaluated(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.Tensor:
    """The result, which two interpreters agree on, bit for bit."""
    graph, constants = graph_of(function, *inputs)
    (found,) = loop_evaluator.run(graph, constants, [x.clone() for x in inputs])
    (again,) = interpret_graph(graph, [x.clone() for x in inputs], constants)
    assert isinstance(found, torch.Tensor) and isinstance(again, torch.Tensor)
    assert torch.equal(found.view(torch.int32), again.view(torch.int32))
    return found


def added(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return torch.scatter_add(x, 0, index, source)


def sums(index: torch.Tensor, source: torch.Tensor, rows: int = ROWS) -> torch.Tensor:
    return evaluated(added, torch.zeros(rows, source.shape[1]), index, source)


def exact(index: torch.Tensor, source: torch.Tensor, rows: int = ROWS) -> torch.Tensor:
    """Sums rounded once, to `f64`, and then to `f32`."""
    found = torch.zeros(rows, source.shape[1], dtype=torch.float64)
    for column in range(source.shape[1]):
        parts: list[list[float]] = [[] for _ in range(rows)]
        for row, value in zip(index[:, column].tolist(), source[:, column].tolist(), strict=True):
            parts[row].append(value)
        found[:, column] = torch.tensor([math.fsum(part) for part in parts], dtype=torch.float64)
    return found.float()


def indices(columns: int = 3, rows: int = ROWS) -> torch.Tensor:
    return torch.randint(0, rows, (COUNT, columns))


def test_sums_of_usual_numbers_are_exact() -> None:
    index, source = indices(), torch.randn(COUNT, 3)
    assert torch.equal(sums(index, source), exact(index, source))


@pytest.mark.parametrize("spread", [0, 28, 29, 30, 40, 57, 58, 59, 60, 62])
def test_exponents_around_what_one_word_and_two_words_hold(spread: int) -> None:
    """Runs of 400 elements have units 2^-52 of the largest, and 30 below: multiples of these have exponents
    up to 29 and 59 below.
    """
    index, source = indices(), 1 + torch.rand(COUNT, 3)
    source[::3] *= 2.0**-spread
    source[::7] *= -1
    found, wanted = sums(index, source), exact(index, source)
    if spread <= 59:
        assert torch.equal(found, wanted)
    torch.testing.assert_close(found, wanted, rtol=EPS, atol=0)


def test_what_cancels_in_one_word_leaves_the_other() -> None:
    index = torch.zeros(5, 1, dtype=torch.int64)
    source = torch.tensor([[2.0**20], [2.0**-20 * (1 + EPS)], [-(2.0**20)], [1.0], [-1.0]])
    assert sums(index, source).flatten()[0].item() == 2.0**-20 * (1 + EPS)


def test_one_row_for_all() -> None:
    index, source = torch.full((COUNT, 8), 5), torch.randn(COUNT, 8) * 1e6 + 1e-3
    x = torch.zeros(60, 8)
    assert torch.equal(evaluated(added, x, index, source), exact(index, source, 60))


def test_a_wide_spread_of_exponents_is_as_good_as_with_units_of_sums_own() -> None:
    index = indices()
    source = torch.randn(COUNT, 3) * 10.0 ** torch.randint(-30, 31, (ROWS,))[index]
    found, wanted = sums(index, source), exact(index, source)
    largest = torch.zeros(ROWS, 3).scatter_reduce(0, index, source.abs(), "amax")
    assert ((found.double() - wanted.double()).abs() <= largest * COUNT * 2.0**-50 + wanted.abs() * EPS).all()


def test_numbers_beside_a_masks_lowest_ones() -> None:
    index = indices()
    source = torch.randn(COUNT, 3)
    source[index >= 8] = LOWEST / 4096
    found, wanted = sums(index, source), exact(index, source)
    torch.testing.assert_close(found, wanted, rtol=EPS, atol=1e-12)


@pytest.mark.parametrize(
    "numbers",
    [
        [0.0],
        [-0.0],
        [1e-45, -1e-45, 3e-45],
        [1e-39, -2e-40, 1e-38, 1e-45],
        [0.0, 1.0],
        [3.4e38, 1e-45, -3.4e38],
    ],
)
def test_zeros_and_the_smallest_numbers(numbers: list[float]) -> None:
    index = indices()
    source = torch.tensor(numbers)[torch.randint(0, len(numbers), (COUNT, 3))]
    if max(numbers) > 1e38:
        source[index % 2 == 0] = 0.0
        wanted = torch.zeros(ROWS, 3, dtype=torch.float64).scatter_add(0, index, source.double()).float()
        torch.testing.assert_close(sums(index, source), wanted)
        return
    found = sums(index, source)
    assert torch.equal(found, exact(index, source)) and not (found == 0).logical_and(found.signbit()).any()


@pytest.mark.parametrize("special", [INF, -INF, NAN])
def test_what_is_no_number_beside_what_is(special: float) -> None:
    index, source = indices(), torch.randn(COUNT, 3)
    source[17, 1] = special
    found, wanted = sums(index, source), torch.zeros(ROWS, 3).scatter_add(0, index, source)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert int((~found.isfinite()).sum()) == 1


@pytest.mark.parametrize("power", [0, 12, 25])
def test_any_order_gives_the_same_bits(power: int) -> None:
    index, source = indices(), torch.randn(COUNT, 3)
    source = source * 10.0 ** torch.randint(-power, power + 1, source.shape)
    order = torch.randperm(COUNT)
    assert torch.equal(sums(index, source), sums(index[order], source[order]))


def test_elements_that_are_left_out() -> None:
    def gradient(g: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten.embedding_dense_backward(g, i, ROWS, 2, False)
        return result

    grad, ids = torch.randn(COUNT, 1), torch.randint(0, ROWS, (COUNT,))
    for scale in (1.0, 1e30):
        grad[0] *= scale
        found = evaluated(gradient, grad, ids)
        wanted = exact(ids[:, None], torch.where((ids == 2)[:, None], 0.0, grad))
        torch.testing.assert_close(found, wanted, rtol=EPS, atol=0)


@pytest.mark.parametrize("number", [1.0, 0.1, -3e38, 0.0, INF, -INF, NAN])
@pytest.mark.parametrize("dim", [0, 1])
def test_elements_that_are_all_one_number_are_counted(number: float, dim: int) -> None:
    def counted(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.scatter_add(x, dim, i, torch.full_like(i, number, dtype=torch.float32))

    x = torch.zeros(40, 40)
    index = torch.randint(0, 30, (80, 20) if dim == 0 else (20, 80))
    graph, _ = graph_of(counted, x, index)
    scatters = [node for node in graph.nodes if isinstance(node, Scatter)]
    assert len(scatters) == 1 and scatters[0].checks and not any(isinstance(n, Reduce) for n in graph.nodes)
    full = torch.full(index.shape, number, dtype=torch.float32)
    wanted = torch.scatter_add(x.double(), dim, index, full.double()).float()
    torch.testing.assert_close(evaluated(counted, x, index), wanted, rtol=0, atol=0, equal_nan=True)
    index[3, 3] = 40
    with pytest.raises(RuntimeError, match="out of range"):
        evaluated(counted, x, index)


def test_means_of_scattered_halves_are_as_exact_as_wide_ones() -> None:
    def mean(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch.scatter_reduce(x, 0, i, s, "mean", include_self=False)

    index, source, x = indices(), torch.randn(COUNT, 3), torch.randn(ROWS + 1, 3)
    torch.testing.assert_close(
        evaluated(mean, x, index, source), mean(x.double(), index, source.double()).float()
    )


def test_gradients_of_gathered_elements() -> None:
    def gradient(g: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return g.new_zeros(30, 20).scatter_add(1, i, g * 3)

    g, index = torch.randn(30, 50), torch.randint(0, 20, (30, 50))
    wanted = gradient(g.double(), index).float()
    torch.testing.assert_close(evaluated(gradient, g, index), wanted, rtol=1e-5, atol=1e-6)


def test_a_sum_of_no_elements_changes_nothing() -> None:
    index, source = torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3)
    x = torch.randn(4, 3)
    assert torch.equal(evaluated(added, x, index, source), x)


def test_the_way_that_is_not_taken_reads_numbers_alone() -> None:
    graph, _ = graph_of(added, torch.zeros(ROWS, 3), indices(), torch.randn(COUNT, 3))
    single = {
        output.name for node in graph.nodes if isinstance(node, Reduce) for output in node.outputs if output
    }
    zeros, maxima = (
        node
        for node in graph.nodes
        if isinstance(node, Scatter) and node.output.name.startswith("scatter_add_exponents")
    )
    # memory that is not needed is not filled
    assert (
        zeros.covers
        and zeros.mask is not None
        and {load.buffer for load in list_loads((zeros.mask,))} <= single
    )
    assert maxima.mode == "max" and maxima.mask is not None and maxima.checks
    found = [load for load in list_loads(list_bodies(maxima)) if load.buffer not in single]
    assert found and all(load.mask is not None for load in found)
    others = [
        load
        for node in graph.nodes
        if isinstance(node, Scatter | Pointwise) and node is not maxima
        for load in list_loads(list_bodies(node))
        if load.buffer == maxima.output.name
    ]
    assert others and all(load.mask is not None for load in others)


@pytest.mark.parametrize("huge", [1.0, 1e30])
def test_an_index_out_of_range_is_found_on_both_ways(huge: float) -> None:
    index, source = indices(), torch.randn(COUNT, 3)
    source[0] *= huge
    index[2, 1] = ROWS
    with pytest.raises(RuntimeError, match="out of range"):
        sums(index, source)
