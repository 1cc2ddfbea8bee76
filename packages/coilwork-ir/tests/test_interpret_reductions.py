"""Reductions and scans against torch, with masks, ties, nan, and no elements."""

from __future__ import annotations

import pytest
import torch

from coilwork_ir.errors import InterpretError
from coilwork_ir.interpretation.ops import REDUCERS, SCANNERS, reduce_last, scan_last
from coilwork_ir.ops import REDUCE_OPS, SCAN_KINDS

X = torch.randn(3, 17, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
MASK = torch.randint(0, 2, (3, 17), generator=torch.Generator().manual_seed(2)) > 0
NAN, INF = float("nan"), float("inf")


def test_tables_are_complete() -> None:
    assert set(REDUCERS) == set(REDUCE_OPS)
    assert set(SCANNERS) == set(SCAN_KINDS)
    for kind, row in REDUCE_OPS.items():
        value = X > 0 if kind in ("any", "all") else X.to(torch.int64) if kind == "xor_sum" else X
        assert len(reduce_last(row.name, value)) == row.outputs


def test_sums_and_products() -> None:
    torch.testing.assert_close(reduce_last("sum", X)[0], X.sum(-1))
    torch.testing.assert_close(reduce_last("prod", X)[0], X.prod(-1))
    torch.testing.assert_close(reduce_last("sum", X, MASK)[0], (X * MASK).sum(-1))
    small = torch.full((300,), 100, dtype=torch.int8)
    assert reduce_last("sum", small)[0].item() == (300 * 100 + 128) % 256 - 128
    big = torch.full((3,), (1 << 62), dtype=torch.int64).view(torch.uint64)
    assert reduce_last("sum", big)[0].item() == 3 << 62


def test_extremes_propagate_nan() -> None:
    line = torch.tensor([[1.0, NAN, 3.0], [INF, 2.0, -INF]])
    assert torch.isnan(reduce_last("min", line)[0][0]) and torch.isnan(reduce_last("max", line)[0][0])
    assert reduce_last("min", line)[0][1] == -INF and reduce_last("max", line)[0][1] == INF
    assert reduce_last("max", torch.tensor([5, 250, 7], dtype=torch.uint16))[0].item() == 250
    assert reduce_last("max", torch.tensor([False, True]))[0].item() is True
    top = torch.tensor([-1, 5], dtype=torch.int64).view(torch.uint64)
    assert reduce_last("max", top)[0].item() == (1 << 64) - 1
    assert reduce_last("argmin", top)[0].item() == 1


def test_positions_are_of_the_first_extreme() -> None:
    line = torch.tensor([2.0, 7.0, 7.0, 1.0, 1.0])
    assert reduce_last("argmax", line)[0].item() == 1
    assert reduce_last("argmin", line)[0].item() == 3
    with_nan = torch.tensor([2.0, 7.0, NAN, 1.0, NAN])
    assert reduce_last("argmax", with_nan)[0].item() == 2
    assert reduce_last("argmin", with_nan)[0].item() == 2
    assert reduce_last("argmax", line, torch.tensor([True, False, True, True, True]))[0].item() == 2
    lowest = torch.full((4,), -INF)
    assert reduce_last("argmax", lowest, torch.tensor([False, False, True, True]))[0].item() == 2


def test_truth_values_and_xor() -> None:
    assert torch.equal(reduce_last("any", MASK)[0], MASK.any(-1))
    assert torch.equal(reduce_last("all", MASK, ~MASK)[0], torch.zeros(3, dtype=torch.bool))
    numbers = torch.randint(-1000, 1000, (2, 13), generator=torch.Generator().manual_seed(3))
    expected = numbers[:, 0]
    for k in range(1, 13):
        expected = expected ^ numbers[:, k]
    assert torch.equal(reduce_last("xor_sum", numbers)[0], expected)


def test_welford_and_online_softmax() -> None:
    mean, m2 = reduce_last("welford", X)
    torch.testing.assert_close(mean, X.mean(-1))
    torch.testing.assert_close(m2 / 16, X.var(-1))
    masked_mean, masked_m2 = reduce_last("welford", X, MASK)
    for row in range(3):
        chosen = X[row][MASK[row]]
        torch.testing.assert_close(masked_mean[row], chosen.mean())
        torch.testing.assert_close(masked_m2[row], chosen.var(correction=0) * chosen.numel())
    top, total = reduce_last("online_softmax", X)
    torch.testing.assert_close(torch.exp(X - top[:, None]) / total[:, None], torch.softmax(X, -1))
    top, total = reduce_last("online_softmax", X, MASK)
    expected = torch.logsumexp(torch.where(MASK, X, -INF), -1)
    torch.testing.assert_close(top + total.log(), expected)


def test_no_elements() -> None:
    nothing = torch.zeros(2, 0)
    assert reduce_last("sum", nothing)[0].tolist() == [0, 0]
    assert reduce_last("prod", nothing)[0].tolist() == [1, 1]
    assert reduce_last("all", nothing > 0)[0].tolist() == [True, True]
    assert reduce_last("xor_sum", nothing.to(torch.int64))[0].tolist() == [0, 0]
    assert reduce_last("online_softmax", nothing)[0].tolist() == [-INF, -INF]
    with pytest.raises(InterpretError, match="empty-reduction"):
        reduce_last("max", nothing)
    assert reduce_last("argmax", torch.zeros(0, 0))[0].dtype is torch.int64


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(reverse: bool) -> None:
    line = torch.tensor([[3.0, 1.0, 1.0, 4.0, 4.0, 2.0]], dtype=torch.float64)

    def turned(value: torch.Tensor) -> torch.Tensor:
        return value.flip(-1) if reverse else value

    for kind, function in (
        ("sum", torch.cumsum),
        ("prod", torch.cumprod),
        ("logcumsumexp", torch.logcumsumexp),
    ):
        (result,) = scan_last(kind, line, reverse=reverse)
        torch.testing.assert_close(result, turned(function(turned(line), -1)))
    for kind, positions, function in (("min", "argmin", torch.cummin), ("max", "argmax", torch.cummax)):
        values, where = scan_last(kind, line, reverse=reverse)
        expected = function(turned(line), -1)
        assert torch.equal(values, turned(expected.values))
        assert torch.equal(line.gather(-1, where), values)
        assert torch.equal(scan_last(positions, line, reverse=reverse)[0], where)
