"""`squeeze` of sizes from data, which are 1 in some calls and not in others: results, gradients and
overwritten inputs are eager's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

from coilwork.backend import backend

Function = Callable[[Tensor], Any]
COUNTS = (3, 1, 0, 2, 1)


def chosen(count: int) -> Tensor:
    """Eight numbers, `count` of them positive."""
    value = -torch.arange(1.0, 9.0)
    value[1 : 1 + count] *= -1
    return value


def selected(x: Tensor) -> tuple[Tensor, Tensor]:
    found = x.masked_select(x > 0)
    return found.squeeze(), (found + 1).squeeze(0) * 2


def along_one_of_two(x: Tensor) -> tuple[Tensor, ...]:
    rows = x[x > 0].unsqueeze(1) * torch.ones(3)
    # of one row, the second is a softmax along the columns
    return rows.squeeze(0), rows.squeeze().softmax(0), rows.squeeze((0, 1)), rows.squeeze(1)


def positions(x: Tensor) -> Tensor:
    return x[torch.nonzero(x > 0).squeeze()]


def random(x: Tensor) -> Tensor:
    return torch.rand(4).sum() + torch.nn.functional.dropout(x[x > 0].squeeze())


def overwritten(x: Tensor) -> Tensor:
    x[2:4] = 7.5
    x.add_(1)
    return torch.where(x > 0, x, 0.0)[x > 0].squeeze() + x.sum()


def in_a_branch(x: Tensor) -> Tensor:
    x[2:4] = -7.5
    x.mul_(2)
    branches = (lambda y: y[y > 0].unsqueeze(0).squeeze().sum() * 3, lambda y: y.sum() * 1.0)
    return torch.cond(x.sum() < 1e6, *branches, (x,))


def in_a_loop(x: Tensor) -> Tensor:
    def body(count: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return count + 1, y + y[y > 0].unsqueeze(0).squeeze().sum()

    x.mul_(2)
    return while_loop(lambda count, y: count < 2, body, (torch.zeros((), dtype=torch.int64), x - 1))[1]


FUNCTIONS: dict[str, Function] = {
    "selected": selected,
    "along one of two": along_one_of_two,
    "positions": positions,
    "random": random,
}
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


def ran(function: Function, value: Tensor, *, gradients: bool = False) -> tuple[Tensor, ...]:
    torch.manual_seed(3)
    value.requires_grad_(gradients)
    found = function(value)
    results = found if isinstance(found, tuple) else (found,)
    if gradients:
        results += torch.autograd.grad(sum((one * one).sum() for one in results), value)
    return (*results, value, torch.rand(2))


def assert_as_eager(function: Function, *, gradients: bool = False, **options: object) -> None:
    compiled = torch.compile(function, backend=backend, fullgraph=True, options={"strict": True, **options})
    for count in COUNTS:
        expected = ran(function, chosen(count), gradients=gradients)
        found = ran(compiled, chosen(count), gradients=gradients)
        assert [one.shape for one in found] == [one.shape for one in expected]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_that_turn_out_to_be_one(name: str, gradients: bool) -> None:
    assert_as_eager(FUNCTIONS[name], gradients=gradients)


@pytest.mark.parametrize("driver", SETTINGS)
def test_every_driver_says_so(driver: str) -> None:
    assert_as_eager(selected, **SETTINGS[driver])


@pytest.mark.parametrize("function", [in_a_branch, in_a_loop])
@pytest.mark.parametrize("driver", SETTINGS)
def test_in_a_nested_graph(function: Function, driver: str) -> None:
    """Behind updates of an input, which the call that fails must not have made yet."""
    assert_as_eager(function, **SETTINGS[driver])


def test_inputs_are_overwritten_once() -> None:
    compiled = torch.compile(overwritten, backend=backend, options={"strict": True})
    # in the first there is nothing positive but the two that are stored, in the others nothing else is
    for value in (torch.zeros(8) - 2, chosen(3), torch.cat([torch.zeros(3) - 2, torch.zeros(1) - 9])):
        expected, found = ran(overwritten, value.clone()), ran(compiled, value.clone())
        assert [one.shape for one in found] == [one.shape for one in expected]
        torch.testing.assert_close(found, expected)


def test_an_input_of_many_elements_is_overwritten_once() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x[1000:90_000] += y
        return y[y > 0].squeeze()

    compiled = torch.compile(function, backend=backend, options={"strict": True})
    for count in COUNTS:
        y = -torch.ones(89_000)
        y[:count] = 2
        ours, theirs = torch.ones(100_000), torch.ones(100_000)
        assert compiled(ours, y).shape == function(theirs, y).shape
        assert torch.equal(ours, theirs)


def test_the_first_such_call_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(selected, backend=backend)
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        for count in COUNTS:
            compiled(chosen(count))
    assert [record.message for record in caplog.records if "squeezed" in record.message] == [
        "a size from data that is squeezed is 1: the captured graph runs, in eager mode"
    ]


def test_other_assertions_still_fail() -> None:
    def function(x: Tensor) -> Tensor:
        found = x[x > 0]
        torch._check(found.shape[0] <= 2)
        return found.squeeze() + 1

    compiled = torch.compile(function, backend=backend, options={"strict": True})
    compiled(chosen(2))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(chosen(3))


def test_gradients_of_norms_along_a_last_dimension_of_one() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, 3, -1)

    compiled = torch.compile(function, backend=backend, options={"strict": True})
    # of rows, torch 2.12 itself refuses the gradient
    for shape in ((1,),) if torch.__version__.startswith("2.12.") else ((1,), (4, 1)):
        expected = ran(function, torch.full(shape, -2.0), gradients=True)
        found = ran(compiled, torch.full(shape, -2.0), gradients=True)
        assert [one.shape for one in found] == [one.shape for one in expected]
        torch.testing.assert_close(found, expected)
