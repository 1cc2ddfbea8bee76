"""`scan` beside eager where it is written out: what is carried, results per row, gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor
from torch._higher_order_ops import scan

Pair = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def smoothed(first: Tensor, rows: Tensor) -> Pair:
    def combine(carried: Tensor, row: Tensor) -> Pair:
        now = (carried * 0.5 + row).tanh()
        return now, carried + row.T

    found: Pair = scan(combine, first, rows, dim=1)
    return found


def test_forward_and_backward() -> None:
    torch.manual_seed(0)
    first, rows = torch.randn(3, 3), torch.randn(3, 5, 3)
    for given in (rows, rows.transpose(0, 2).contiguous().transpose(0, 2)):
        ours = [x.clone().requires_grad_() for x in (first, given)]
        theirs = [x.clone().requires_grad_() for x in (first, given)]
        found, expected = torch.compile(smoothed, backend=Recorder())(*ours), smoothed(*theirs)
        torch.testing.assert_close(found, expected)
        (found[0].sum() + found[1].square().sum()).backward()
        (expected[0].sum() + expected[1].square().sum()).backward()
        torch.testing.assert_close([x.grad for x in ours], [x.grad for x in theirs])


def test_backwards_within_a_branch_and_within_another() -> None:
    def total(carried: Tensor, row: Tensor) -> Pair:
        return carried + row, carried * row

    def of_each(carried: Tensor, matrix: Tensor) -> Pair:
        last, sums = scan(total, carried, matrix, reverse=True)
        return last, sums.sum(0)

    def function(first: Tensor, batch: Tensor) -> Pair:
        found: Pair = torch.cond(
            batch.sum() > 0,
            lambda a, b: scan(of_each, a, b),
            lambda a, b: (a * 2, b.sum(1)),
            (first, batch),
        )
        return found

    compiled = torch.compile(function, backend=Recorder())
    for sign in (1, -1):
        first, batch = torch.randn(4), sign * torch.rand(2, 3, 4)
        torch.testing.assert_close(compiled(first, batch), function(first, batch))
