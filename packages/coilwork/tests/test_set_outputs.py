"""Inputs that are given other memory, as `x.data = y` does, hold what eager's hold, and share memory with
what eager's share it with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning


def an_input(x: Tensor, y: Tensor) -> Tensor:
    x.data = y
    return x + 1


def a_part(x: Tensor, y: Tensor) -> Tensor:
    x.data = y[1:3]
    return x + 1


def something_new(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    new = (y * 2).t()
    x.data = new
    return new, x


def twice(x: Tensor, y: Tensor) -> Tensor:
    x.data = y * 2
    x.data = x * 3
    return x


def one_another(x: Tensor, y: Tensor) -> Tensor:
    x.data, y.data = y * 1, x * 1
    return x[0] - y[0]


def agree(function: Callable[..., Any], options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    ours = torch.compile(function, backend=backend, options=options)
    mine, theirs = ([torch.arange(6.0).view(2, 3), torch.ones(4, 3)] for _ in range(2))
    for _ in range(2):
        found, wanted = ours(*mine), function(*theirs)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, theirs)
        assert [value.stride() for value in mine] == [value.stride() for value in theirs]
        assert sharing(mine, found) == sharing(theirs, wanted)


def sharing(inputs: list[Tensor], results: Any) -> list[int]:
    """For each tensor, the first that lies in the same storage."""
    found = [*inputs, *(results if isinstance(results, tuple) else (results,))]
    starts = [value.untyped_storage().data_ptr() for value in found]
    return [starts.index(start) for start in starts]


@pytest.mark.parametrize("function", [an_input, a_part, something_new, twice, one_another])
@pytest.mark.parametrize("executor", ["auto", "python"])
def test_as_eager(function: Callable[..., Any], executor: str) -> None:
    agree(function, {"strict": True, "verify": True, "executor": executor})


def _set_beside(x: Tensor, y: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    x.data = y + 1
    return x * 2, there.sin()


def _agree_beside(there: Tensor) -> None:
    theirs, mine = (torch.zeros(2), torch.ones(3)), (torch.zeros(2), torch.ones(3))
    found, _ = torch.compile(_set_beside, backend=backend)(*mine, there)
    assert torch.equal(found, _set_beside(*theirs, there)[0])
    assert torch.equal(mine[0], theirs[0])


def test_a_graph_that_runs_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("a fault of a stage")

    monkeypatch.setattr("coilwork.compile_graph._compile", fail)
    with pytest.warns(CoilworkFallbackWarning, match="a fault of a stage"):
        _agree_beside(torch.ones(3))


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_a_graph_in_parts() -> None:
    _agree_beside(torch.empty(3, device="meta"))


class Masked(nn.Module):
    """A layer some of whose weights are nothing, whatever an optimizer made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4, 4).tril())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.data *= self.mask
        return self.linear(x)


def test_a_parameter_in_training() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    theirs = Masked()
    mine = Masked()
    mine.load_state_dict(theirs.state_dict())
    ours = torch.compile(mine, backend=backend, options={"strict": True})
    parameter = mine.linear.weight
    x = torch.randn(3, 4)
    for _ in range(2):
        found, wanted = ours(x), theirs(x)
        torch.testing.assert_close(found, wanted)
        assert mine.linear.weight is parameter
        torch.testing.assert_close(parameter, theirs.linear.weight)
        assert torch.equal(parameter, parameter.tril())
        bias = torch.autograd.grad(found.sum(), mine.linear.bias)
        torch.testing.assert_close(bias, torch.autograd.grad(wanted.sum(), theirs.linear.bias))
