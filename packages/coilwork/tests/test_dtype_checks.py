"""Dtypes for which eager has no kernel raise eager's error, in strict mode, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coilwork.backend import backend

aten = torch.ops.aten
POSITIONS, LABELS = torch.tensor([1, 0, 4]), torch.tensor([[1, 2, -1, 0, 0], [0, 1, 2, 3, 4], [-1] * 5])
Loss = Callable[[Tensor], Any]
LOSSES: dict[str, Loss] = {
    "one label": lambda x: functional.multi_margin_loss(x, POSITIONS),
    "one label, by keywords": lambda x: functional.multi_margin_loss(target=POSITIONS, input=x, p=2),
    "one label, by number": lambda x: aten.multi_margin_loss(x, POSITIONS, reduction=2),
    "several labels": lambda x: functional.multilabel_margin_loss(x, LABELS),
    "several labels, by number": lambda x: aten.multilabel_margin_loss.default(x, LABELS, 0),
    "several labels, and which": lambda x: aten.multilabel_margin_loss_forward(x, LABELS, 1),
}
LABEL_LOSSES: dict[str, Loss] = {
    "one label": lambda x: functional.multi_margin_loss(x, POSITIONS.int()),
    "several labels": lambda x: functional.multilabel_margin_loss(x, LABELS.int()),
    "weights": lambda x: functional.multi_margin_loss(x, POSITIONS, weight=torch.rand(5).double()),
}
REFUSED = (torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def compiled(loss: Loss) -> Loss:
    torch._dynamo.reset()
    return torch.compile(loss, backend=backend, options={"strict": True})


def raises_as_eager(loss: Loss, x: Tensor) -> None:
    with pytest.raises(RuntimeError) as wanted:
        loss(x)
    with pytest.raises(RuntimeError) as found:
        compiled(loss)(x)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("dtype", REFUSED)
@pytest.mark.parametrize("name", LOSSES)
def test_scores_of_types_that_eager_refuses_are_refused(name: str, dtype: torch.dtype) -> None:
    raises_as_eager(LOSSES[name], torch.ones(3, 5).to(dtype))
    if dtype.is_floating_point:
        raises_as_eager(LOSSES[name], torch.ones(3, 5).to(dtype).requires_grad_())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 65520.0), (torch.float32, 1e39)])
def test_bounds_that_do_not_fit(dtype: torch.dtype, bound: float) -> None:
    x = torch.ones(3).to(dtype)
    for shrink in (
        lambda x: functional.hardshrink(x, bound),
        lambda x: torch.hardshrink(x, lambd=bound),
        lambda x: aten.hardshrink(x + 1, bound),
    ):
        raises_as_eager(shrink, x)
    module = torch.nn.Hardshrink(0.5)
    assert torch.equal(compiled(module)(x), module(x))


@pytest.mark.parametrize("factor", [True, False])
def test_truth_values_that_scale_numbers(factor: bool) -> None:
    raises_as_eager(lambda x: torch.add(x, x, alpha=factor), torch.ones(3, 5))
    raises_as_eager(lambda x: torch.add(x, 2, alpha=factor), torch.ones(3, 5, dtype=torch.bool))


UNSIGNED: dict[str, Loss] = {
    "flip": torch.fliplr,
    "sum of two": lambda x: x + x,
    "order": lambda x: x < 2,
    "largest": lambda x: x.amax(0),
    "largest and where": lambda x: x.max(0),
    "fill": lambda x: x.masked_fill(x.float() > 0, 1),
    "positions": lambda x: x.gather(0, x[:1].long()),
    "stored at positions": lambda x: x.scatter(0, x[:1].long(), x),
    "corner": torch.tril,
    "truth": torch.logical_not,
    "shift": lambda x: x << 1,
    "made": lambda x: torch.arange(5, dtype=x.dtype),
}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_unsigned_integers_are_refused_where_eager_refuses_them(dtype: torch.dtype) -> None:
    for refused in UNSIGNED.values():
        raises_as_eager(refused, torch.zeros(3, 5).to(dtype))

    def accepted(x: Tensor) -> tuple[Tensor, ...]:
        return x.flip(0), x * 2, x == x, x & x, x.sum(), torch.cat([x, x]), x[x[0, :2].long()], x.float()

    x = torch.ones(3, 5).to(dtype)
    for found, wanted in zip(compiled(accepted)(x), accepted(x), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", LABEL_LOSSES)
def test_labels_and_weights(name: str) -> None:
    raises_as_eager(LABEL_LOSSES[name], torch.ones(3, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_types_that_eager_accepts_are_accepted(name: str, dtype: torch.dtype) -> None:
    def first(loss: Loss, x: Tensor) -> tuple[Any, Tensor]:
        found = loss(x)
        head = found[0] if isinstance(found, tuple) else found
        return found, torch.autograd.grad(head.sum(), x)[0]

    x = torch.randn(3, 5, dtype=dtype).requires_grad_()
    torch.testing.assert_close(first(compiled(LOSSES[name]), x), first(LOSSES[name], x))


def test_no_elements_are_refused_by_nobody() -> None:
    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return functional.multi_margin_loss(x, labels, reduction="none")

    operands = torch.ones(0, 5, dtype=torch.float16), torch.ones(0, dtype=torch.int32)
    torch.testing.assert_close(compiled(loss)(*operands), loss(*operands))
