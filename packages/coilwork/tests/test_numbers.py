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


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("function", [sizes, items])
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


def constant(count: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.arange(count.item()).split([2, 4]), x + 1


def size(count: torch.Tensor, x: torch.Tensor) -> Any:
    length = count.item()
    torch._check(length == 2 * x.shape[0])
    return torch.cat([x, x]).view(length) + 1


def pinned(count: torch.Tensor, x: torch.Tensor) -> Any:
    length = count.item()
    torch._check(length >= 6)
    torch._check(length <= 6)
    return x * length, torch.ones(length)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [constant, size, pinned])
def test_an_integer_that_can_be_but_one(function: Callable[..., Any], dynamic: bool) -> None:
    """It decides shapes, and another one is refused."""
    ours = torch.compile(function, backend=backend, dynamic=dynamic)
    x = torch.randn(3)
    torch.testing.assert_close(ours(torch.tensor([6]), x), function(torch.tensor([6]), x))
    with pytest.raises(RuntimeError):
        function(torch.tensor([7]), x)
    with pytest.raises(RuntimeError, match="returned a number that is not"):
        ours(torch.tensor([7]), x)
