"""Sizes from data that torch takes for others: one element is broadcast, and other numbers are
eager's error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend
from coilwork_runtime import LayoutError

Function = Callable[[Tensor, Tensor], Tensor]
COUNTS = (5, 1, 3, 0, 1, 5)


def indexed(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > 0, x[x > 0], y)


def selected(x: Tensor, y: Tensor) -> Tensor:
    return (torch.masked_select(x, x > 0) * 2 + y).sum() + y


def random(x: Tensor, y: Tensor) -> Tensor:
    return y * torch.rand_like(y) + x[x > 0]


FUNCTIONS = {"indexed": indexed, "selected": selected, "random": random}
SETTINGS: dict[str, dict[str, object]] = {
    "native": {"executor": "native"},
    "python": {"executor": "python"},
    "fx": {"wrapper": "fx"},
    "cpp": {"wrapper": "cpp"},
}


@pytest.fixture(autouse=True)
def _sizes_stay_in_graphs() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


def chosen(count: int) -> Tensor:
    """Five numbers, `count` of them positive."""
    return torch.where(torch.arange(5) < count, 1.0, -1.0) * torch.arange(1.0, 6.0)


def ran(function: Function, x: Tensor, y: Tensor, *, gradients: bool) -> tuple[Tensor, ...] | str:
    torch.manual_seed(3)
    x, y = x.clone().requires_grad_(gradients), y.clone().requires_grad_(gradients)
    try:
        found = function(x, y)
    except RuntimeError as error:
        return str(error)
    return (found, *(torch.autograd.grad((found * found).sum(), (x, y)) if gradients else ()), torch.rand(2))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("driver", SETTINGS)
def test_one_element_is_broadcast(driver: str, name: str, gradients: bool) -> None:
    function = FUNCTIONS[name]
    options = {"strict": True, **SETTINGS[driver]}
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True, options=options)
    y = torch.arange(5.0) + 7
    for count in COUNTS:
        expected = ran(function, chosen(count), y, gradients=gradients)
        found = ran(compiled, chosen(count), y, gradients=gradients)
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)


def scaled(x: Tensor, y: Tensor) -> Tensor:
    found = x[x > 0]
    return (found + y) * found.shape[0]


def overwriting(x: Tensor, y: Tensor) -> Tensor:
    y.add_(1)
    return x[x > 0] + y


@pytest.mark.parametrize(
    ("function", "dynamic"), [(scaled, True), (overwriting, True), (scaled, False), (indexed, False)]
)
def test_a_call_that_cannot_be_repeated_is_refused(function: Function, dynamic: bool) -> None:
    """Where the size was read as a number, or is a constant of the graph, or inputs were overwritten, one
    element is an error.
    """
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    y = torch.arange(5.0)
    torch.testing.assert_close(compiled(chosen(5), y.clone()), function(chosen(5), y.clone()))
    with pytest.raises(LayoutError, match=r"returned shape \(1,\) where \(5,\)"):
        compiled(chosen(1), y.clone())


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_error_of_eager_is_raised_as_it_is(dynamic: bool) -> None:
    compiled = torch.compile(indexed, backend=backend, dynamic=dynamic)
    compiled(chosen(5), chosen(5))
    with pytest.raises(
        RuntimeError, match=r"The size of tensor a \(5\) must match the size of tensor b \(3\)"
    ):
        compiled(chosen(3), chosen(5))


def test_the_first_such_call_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(indexed, backend=backend, dynamic=True)
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        for count in (5, 1, 1):
            compiled(chosen(count), chosen(5))
    assert sum("was taken for another" in record.message for record in caplog.records) == 1
