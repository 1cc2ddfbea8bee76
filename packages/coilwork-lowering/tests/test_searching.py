"""Binary searches against eager: ties, NaN, boundaries out of order, rows, and other orders."""

from __future__ import annotations

import pytest
import torch
from lowering_against_eager import assert_as_eager, externs, trace_and_lower

NAN, INF = float("nan"), float("inf")
BOUNDARIES = torch.tensor([-INF, -1.0, 0.0, 0.0, 2.0, 2.0, 2.0, 5.0, INF])
VALUES = torch.tensor([[NAN, INF, -INF, 0.0, -0.0], [2.0, 1.9999, 2.0001, 5.0, 6.0]])


@pytest.mark.parametrize("right", [False, True])
def test_bucketize(right: bool) -> None:
    for boundaries in (BOUNDARIES, BOUNDARIES[:1], BOUNDARIES[:8], torch.tensor([3.0, 1.0, 2.0])):
        assert_as_eager(lambda v, b: torch.bucketize(v, b, right=right), VALUES, boundaries)
    assert_as_eager(lambda v, b: torch.bucketize(v, b, out_int32=True, right=right), VALUES, BOUNDARIES)


@pytest.mark.parametrize("right", [False, True])
def test_boundaries_may_be_nan(right: bool) -> None:
    boundaries = torch.tensor([1.0, 2.0, 3.0, NAN])
    assert_as_eager(lambda v, b: torch.bucketize(v, b, right=right), VALUES, boundaries)
    assert_as_eager(lambda v, b: torch.bucketize(v, b, right=right), VALUES, boundaries.flip(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_types(dtype: torch.dtype) -> None:
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


def test_what_eager_searches() -> None:
    calls = (
        lambda v: torch.bucketize(2.0, v),
        lambda v: torch.searchsorted(v, torch.empty(0)),
        lambda v: torch.searchsorted(v[:0], v),
    )
    for call in calls:
        assert externs(trace_and_lower(call, (BOUNDARIES,)).graph) != []
