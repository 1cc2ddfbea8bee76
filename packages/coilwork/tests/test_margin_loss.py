"""Losses of several labels per row: against eager, with rows whose labels end early."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coilwork.backend import backend


def labels(rows: int, classes: int) -> Tensor:
    """Of each row other classes, of which some rows have none and some all."""
    generator = torch.Generator().manual_seed(3)
    found = torch.stack([torch.randperm(classes, generator=generator) for _ in range(rows)])
    for row in range(rows):
        end = row % (classes + 1)
        if end < classes:
            found[row, end] = -1
    return found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_end_at_the_first_that_is_none(reduction: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.randn(9, 6, dtype=torch.float64)
    x[2, 3] = float("inf")
    x[3, 1] = float("nan")

    def loss(x: Tensor, target: Tensor) -> Tensor:
        return functional.multilabel_margin_loss(x, target, reduction=reduction)

    compiled = torch.compile(loss, backend=backend, dynamic=dynamic)
    mine, its = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, wanted = compiled(mine, labels(9, 6)), loss(its, labels(9, 6))
    torch.testing.assert_close(got, wanted, equal_nan=True)
    got.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(mine.grad, its.grad, equal_nan=True)


def test_ways_to_call_it() -> None:
    torch._dynamo.reset()
    x, target = torch.randn(9, 6), labels(9, 6)

    def losses(x: Tensor) -> list[Tensor]:
        return [
            functional.multilabel_margin_loss(x, target, size_average=False),
            functional.multilabel_margin_loss(x, target, reduce=False),
            torch._C._nn.multilabel_margin_loss(x, target, 2),
            torch.ops.aten.multilabel_margin_loss(x, target, reduction=0),
            functional.multilabel_margin_loss(target=target, input=x),
            *torch.ops.aten.multilabel_margin_loss_forward(x, target, 1),
        ]

    torch.testing.assert_close(torch.compile(losses, backend=backend)(x), losses(x))


def test_one_row() -> None:
    torch._dynamo.reset()
    module = torch.nn.MultiLabelMarginLoss()
    compiled = torch.compile(module, backend=backend)
    x, target = torch.ones(4), torch.tensor([0, 1, -1, 2])
    assert compiled(x, target).item() == module(x, target).item() == 1.0
    with pytest.raises(RuntimeError):
        compiled(x, torch.tensor([0, 4, -1, 2]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_one_label(reduction: str) -> None:
    """Losses of labels without a dimension have none."""
    torch._dynamo.reset()

    def losses(x: Tensor, row: Tensor, rows: Tensor, label: Tensor) -> list[Tensor]:
        return [
            functional.multi_margin_loss(row, label, p=2, reduction=reduction),
            functional.multi_margin_loss(rows, label, weight=row.square(), reduction=reduction),
            functional.multi_margin_loss(x, label, reduction=reduction),
            functional.multilabel_margin_loss(x, label, reduction=reduction),
            torch.ops.aten.multi_margin_loss(row, label, reduction=0),
        ]

    row = torch.randn(5)
    given = (torch.tensor(0.5), row, row[None] + 1, torch.tensor(0))
    found, wanted = torch.compile(losses, backend=backend)(*given), losses(*given)
    assert [one.shape for one in found] == [one.shape for one in wanted]
    torch.testing.assert_close(found, wanted)
