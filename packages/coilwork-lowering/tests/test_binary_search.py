"""Binary searches against eager: ties, NaN, boundaries out of order, rows, and other orders."""

from __future__ import annotations

import loop_evaluator
import pytest
import torch
from lowering_against_eager import assert_as_eager, externs, trace_and_lower

from coilwork_ir.index import as_int
from coilwork_ir.loops import Pointwise

NAN, INF = float("nan"), float("inf")
BOUNDARIES = torch.tensor([-INF, -1.0, 0.0, 0.0, 2.0, 2.0, 2.0, 5.0, INF])
VALUES = torch.tensor([[NAN, INF, -INF, 0.0, -0.0], [2.0, 1.9999, 2.0001, 5.0, 6.0]])


@pytest.mark.parametrize("right", [False, True])
def test_bucketize_is_eagers_for_any_boundaries(right: bool) -> None:
    for boundaries in (BOUNDARIES, BOUNDARIES[:1], BOUNDARIES[:8], torch.tensor([3.0, 1.0, 2.0])):
        assert_as_eager(lambda v, b: torch.bucketize(v, b, right=right), VALUES, boundaries)
    assert_as_eager(lambda v, b: torch.bucketize(v, b, out_int32=True, right=right), VALUES, BOUNDARIES)


@pytest.mark.parametrize("right", [False, True])
def test_boundaries_may_be_nan(right: bool) -> None:
    boundaries = torch.tensor([1.0, 2.0, 3.0, NAN])
    assert_as_eager(lambda v, b: torch.bucketize(v, b, right=right), VALUES, boundaries)
    assert_as_eager(lambda v, b: torch.bucketize(v, b, right=right), VALUES, boundaries.flip(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_searches_take_every_type(dtype: torch.dtype) -> None:
    boundaries = torch.tensor([0, 1, 1, 4, 9]).to(dtype)
    values = torch.tensor([[0, 1, 2], [4, 9, 10]]).to(dtype)
    assert_as_eager(torch.bucketize, values, boundaries)
    assert_as_eager(lambda b, v: torch.searchsorted(b, v, right=True), boundaries, values)


def test_rows_of_boundaries() -> None:
    rows = torch.randn(3, 4, 17).sort(-1).values
    assert_as_eager(torch.searchsorted, rows, torch.randn(3, 4, 6))
    assert_as_eager(lambda b, v: torch.searchsorted(b, v, side="right"), rows, rows[..., ::2].contiguous())
    mixed = torch.randn(3, 17)
    assert_as_eager(
        lambda b, v, o: torch.searchsorted(b, v, sorter=o), mixed, torch.randn(3, 6), mixed.argsort(-1)
    )


@pytest.mark.parametrize("place", [5, -1, 10**12])
def test_an_order_of_places_that_are_none_is_refused(place: int) -> None:
    boundaries, values, order = torch.randn(5), torch.randn(3), torch.arange(5)
    # No search comes by the last place of 5: eager looks at all of them.
    order[4], values[:] = place, -9.0
    graph = trace_and_lower(
        lambda b, v, o: torch.searchsorted(b, v, sorter=o), (boundaries, values, order)
    ).graph
    assert externs(graph) == []
    with pytest.raises(RuntimeError, match="sorter index out of range"):
        loop_evaluator.run(graph, {}, [boundaries, values, order])


def test_what_eager_searches() -> None:
    calls = (
        lambda v: torch.bucketize(2.0, v),
        lambda v: torch.searchsorted(v, torch.empty(0)),
        lambda v: torch.searchsorted(v[:0], v),
    )
    for call in calls:
        assert externs(trace_and_lower(call, (BOUNDARIES,)).graph) != []


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 12, 31])
def test_searches_of_many_values_go_down_a_tree(count: int, right: bool) -> None:
    torch.manual_seed(0)
    boundaries = torch.randn(count).sort().values
    boundaries[count // 2 : count // 2 + 2] = boundaries[count // 2]
    values = torch.cat(
        [torch.randn((1 << 20) - 3 * count), *(boundaries.nextafter(torch.tensor(b)) for b in (-9.0, 9.0))]
    )
    values = torch.cat([values, boundaries])
    values[:5] = torch.tensor([NAN, INF, -INF, 0.0, -0.0])

    def search(v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(v, b, out_int32=True, right=right)

    graph = trace_and_lower(search, (values, boundaries)).graph
    outputs = [node.output for node in graph.nodes if isinstance(node, Pointwise)]
    assert [as_int(output.shape[0]) for output in outputs] == [1 << count.bit_length(), 1 << 20]
    assert_as_eager(search, values, boundaries)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_trees_of_other_types(dtype: torch.dtype, right: bool) -> None:
    # the largest numbers are among the boundaries, as they are where a tree has no boundary
    top = INF if dtype.is_floating_point else torch.iinfo(dtype).max
    boundaries = torch.tensor([0, 1, 1, 4, 9], dtype=dtype)
    boundaries = torch.cat([boundaries, torch.tensor([top], dtype=dtype)])
    values = torch.arange(1 << 20).remainder(12).to(dtype)
    values[:2] = boundaries[-1]
    assert_as_eager(lambda v, b: torch.bucketize(v, b, right=right), values, boundaries)


def test_trees_are_for_boundaries_that_all_values_share() -> None:
    values, rows = torch.randn(4, 1 << 18), torch.randn(4, 9).sort(-1).values
    nodes = trace_and_lower(torch.searchsorted, (rows, values)).graph.nodes
    assert len(nodes) == 1
    assert len(trace_and_lower(torch.bucketize, (values[0], rows[0])).graph.nodes) == 1
