"""`scan` and `while_loop` as loops whose body is compiled once, beside eager: drivers, gradients, results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop

Pair = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    ours: Callable[..., Any] = torch.compile(
        function, backend="coilwork", fullgraph=True, options={"strict": True, **options}
    )
    return ours


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def remembered(first: Tensor, rows: Tensor, weight: Tensor) -> Pair:
    """The gradients need what is carried, which is a result, too."""

    def combine(carried: Tensor, row: Tensor) -> Pair:
        now = torch.tanh(carried @ weight + row)
        return now, now.sin()

    found: Pair = scan(combine, first, rows, reverse=True)
    return found


def with_gradients(function: Callable[..., Any], *given: Tensor) -> list[Tensor]:
    inputs = [one.clone().requires_grad_() for one in given]
    found = [one for one in function(*inputs) if one.is_floating_point()]
    total = torch.stack([(one * one.cos()).sum() for one in found]).sum()
    return [*found, *torch.autograd.grad(total, inputs)]


def test_gradients_need_what_is_returned() -> None:
    given = (draw(4, 8), draw(90, 4, 8), draw(8, 8) / 4)
    found = with_gradients(compiled(remembered), *given)
    torch.testing.assert_close(found, with_gradients(remembered, *given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"executor": "native"}, {"executor": "python"}, {"wrapper": "fx"}])
def test_every_driver_runs_loops_as_eager_does(options: dict[str, str]) -> None:
    given = (draw(4, 8), draw(100, 4, 8), draw(8, 8) / 4)
    torch.testing.assert_close(compiled(remembered, **options)(*given), remembered(*given))


def test_numbers_of_rounds_that_the_run_tells() -> None:
    ours = torch.compile(remembered, backend="coilwork", fullgraph=True, dynamic=True)
    for count in (5, 300, 2):
        given = (draw(4, 8), draw(count, 4, 8), draw(8, 8) / 4)
        torch.testing.assert_close(ours(*given), remembered(*given))


def until(first: Tensor, weight: Tensor) -> Pair:
    def going(number: Tensor, value: Tensor) -> Tensor:
        return (number < 5) & (value.sum() < 1000)

    def step(number: Tensor, value: Tensor) -> Pair:
        return number + 1, (value @ weight).sin() + value

    found: Pair = while_loop(going, step, (torch.tensor(0), first))
    return found


@pytest.mark.parametrize("scale", [1, 1000])
def test_gradients_of_a_loop_that_data_ends(scale: int) -> None:
    given = (draw(4, 8).abs() * scale, draw(8, 8) / 4)
    found = with_gradients(compiled(until), *given)
    torch.testing.assert_close(found, with_gradients(until, *given), rtol=1e-4, atol=1e-4)
