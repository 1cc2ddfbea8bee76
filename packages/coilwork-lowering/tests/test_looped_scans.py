"""`scan` and `map` beside eager where they are loops: over rows whose number the run tells, and over very
many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as map_operator

from coilwork_ir.index import as_int
from coilwork_ir.loops import Loop, Pointwise
from coilwork_lowering.higher_order import scan as unrolled_scans

COUNTS = (5, 2, 7, 3)

# its own types know no further arguments
mapped: Callable[..., Any] = map_operator


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield
    torch._dynamo.reset()


def assert_as_eager(
    function: Callable[..., Any], given: Callable[[int], tuple[Tensor, ...]], *, gradients: bool = False
) -> None:
    """For all counts, with one graph, whose scans are loops."""
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, dynamic=True, fullgraph=True)
    for count in COUNTS:
        found, expected = (ran(each, given(count), gradients=gradients) for each in (compiled, function))
        torch.testing.assert_close(found, expected)
    assert len(recorder.lowered) == 1 + gradients
    for lowered in recorder.lowered:
        assert any(isinstance(node, Loop) for node in lowered.graph.nodes)
        assert not lowered.guards


def ran(function: Callable[..., Any], given: tuple[Tensor, ...], *, gradients: bool) -> list[Tensor]:
    inputs = [one.clone().requires_grad_(gradients) for one in given]
    found = function(*inputs)
    results = list(found) if isinstance(found, tuple) else [found]
    if gradients:
        total = sum((one * one.cos()).sum() for one in results)
        results += torch.autograd.grad(total, inputs)
    return results


def smoothed(first: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    def combine(carried: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        now = (carried * 0.5 + row).tanh()
        return now, carried + row.T

    found: tuple[Tensor, Tensor] = scan(combine, first, rows, dim=1, reverse=True)
    return found


def several(first: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def combine(
        carried: tuple[Tensor, Tensor], row: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        number, total = carried
        left, right = row
        return (number + 1, total + left * right), (left > total, (total * number)[:2].clone())

    given = (torch.zeros((), dtype=torch.int64), first[0])
    (number, total), (larger, parts) = scan(combine, given, (rows[:, 0], rows[:, 1] + 1))
    return number, total, larger, parts


def within(first: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    def total(carried: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return carried + row, carried * row

    def of_each(carried: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        last, sums = scan(total, carried, matrix)
        return last, sums.sum(0)

    found: tuple[Tensor, Tensor] = scan(of_each, first[0], blocks)
    return found


def chosen(first: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    matrices = rows[rows[:, 0, 0] < 9]
    torch._check(matrices.shape[0] > 0)
    found: tuple[Tensor, Tensor] = scan(lambda c, m: (c + m, (c @ m).sin()), first, matrices)
    return found


def given(count: int, dim: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    shape = [3, 3]
    shape.insert(dim, count)
    return torch.randn(3, 3, generator=generator), torch.randn(shape, generator=generator)


@pytest.mark.parametrize("gradients", [False, True])
def test_forward_and_backward(gradients: bool) -> None:
    assert_as_eager(smoothed, lambda count: given(count, 1), gradients=gradients)


@pytest.mark.parametrize("function", [several, within, chosen])
def test_scans_that_torch_writes_as_loops_are_those_of_eager(function: Callable[..., Any]) -> None:
    assert_as_eager(function, given)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_map_and_its_gradients_are_those_of_eager(gradients: bool) -> None:
    def function(weight: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = mapped(lambda row, w: ((row @ w).softmax(0), row.sum()), rows, weight)
        return found

    assert_as_eager(function, given, gradients=gradients)


def test_a_map_in_a_map() -> None:
    def function(weight: Tensor, blocks: Tensor) -> Tensor:
        found: Tensor = mapped(
            lambda rows, w: mapped(lambda row, v: (v * row).sin(), rows, w), blocks, weight
        )
        return found

    assert_as_eager(function, given)


def test_more_rows_than_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolled_scans, "_MOST_NODES", 8)
    recorder = Recorder()
    compiled = torch.compile(smoothed, backend=recorder, dynamic=False)
    torch.testing.assert_close(compiled(*given(6, 1)), smoothed(*given(6, 1)))
    assert any(isinstance(node, Loop) for node in recorder.lowered[0].graph.nodes)


def test_many_rows_are_one_body() -> None:
    recorder = Recorder()
    compiled = torch.compile(smoothed, backend=recorder, dynamic=False)
    compiled(torch.randn(3, 3), torch.randn(3, 800, 3))
    graph = recorder.lowered[0].graph
    (loop,) = (node for node in graph.nodes if isinstance(node, Loop))
    assert loop.condition is None and loop.rounds is not None and as_int(loop.rounds) == 800
    # the stack alone is as long as the rows: these are read where they lie, and nothing is turned round
    assert len(loop.body.nodes) < 10
    assert len([node for node in graph.nodes if isinstance(node, Pointwise)]) == len(loop.mutates) == 1
