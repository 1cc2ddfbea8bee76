"""Results that are numbers: of the types and values that eager gives, in graphs that are compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True), warnings.catch_warnings():
        warnings.simplefilter("error", CoilworkFallbackWarning)
        yield
    torch._dynamo.reset()


def sizes(x: torch.Tensor) -> tuple[Any, ...]:
    rows, columns = x.shape
    return (
        x + 1,
        rows > 3,
        rows >= columns,
        rows < columns,
        rows <= 4,
        rows == columns,
        rows != columns,
        not rows > columns,
        rows + columns,
        True,
        2.5,
        None,
    )


def items(x: torch.Tensor) -> tuple[Any, ...]:
    total = x.sum().item()
    return total, total * 2 + 1, x.amax() - total, int(x.shape[0])


def rounded(x: torch.Tensor) -> tuple[Any, ...]:
    rows, columns = x.shape
    return (
        x[: round(rows / 2)] + round(columns / 4),
        x + round(rows * 123.456, 1) + round(rows * 123.456, -1) + round(columns, 2),
        round(rows / columns, 2),
    )


def conditions(x: torch.Tensor) -> tuple[Any, ...]:
    rows, columns = x.shape
    return x * (rows > columns), torch.full((2,), rows == columns), torch.full((1,), rows < columns) + 1


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("function", [sizes, items, rounded, conditions])
def test_numbers_as_eager_gives_them(
    function: Callable[[torch.Tensor], tuple[Any, ...]], shape: tuple[int, int]
) -> None:
    x = torch.arange(float(shape[0] * shape[1])).view(shape)
    found, wanted = torch.compile(function, backend=backend, dynamic=True)(x), function(x)
    assert [type(value) for value in found] == [type(value) for value in wanted]
    torch.testing.assert_close(found, wanted)


def test_the_rest_of_a_broken_function_that_returns_a_truth_value() -> None:
    def function(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
        with torch._dynamo.config.patch(capture_scalar_outputs=False):
            total = x.sum().item()
        return total + 1 > 0, x * 2

    for value in (1.0, -1.0, -2.0):
        found, doubled = torch.compile(function, backend=backend, dynamic=True)(torch.full((3, 3), value))
        assert found is (value > 0)
        assert torch.equal(doubled, torch.full((3, 3), 2 * value))
