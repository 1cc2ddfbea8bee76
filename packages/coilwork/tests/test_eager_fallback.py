"""What AOTAutograd refuses to trace, or traces wrongly: eager's results with a warning, or an error with
`strict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning

Inputs = tuple[Tensor, ...]


def row_of_an_expanded_input(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 3
    x.detach()[0].add_(1)
    return y, x.sum()


def overlapping_windows(x: Tensor) -> Tensor:
    x.unfold(0, 3, 1).add_(1)
    return x.sin()


def two_types_of_one_memory(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y + 1


def shared() -> Inputs:
    x = torch.arange(4.0)
    return x, x.view(torch.int32)


REFUSED, WRONG = "torch cannot trace a graph that it captured", "a tensor that has an element several times"
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Inputs], str]] = {
    "a row of an expanded input with gradients": (
        row_of_an_expanded_input,
        lambda: (torch.arange(4.0, requires_grad=True).expand(3, 4),),
        WRONG,
    ),
    "overlapping windows": (overlapping_windows, lambda: (torch.arange(8.0),), REFUSED),
    "two types of one memory": (two_types_of_one_memory, shared, REFUSED),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", [{}, {"check": True}], ids=["", "check"])
def test_as_eager_with_a_warning(name: str, options: dict[str, object]) -> None:
    function, inputs, reason = PROGRAMS[name]
    given, expected = inputs(), inputs()
    with pytest.warns(CoilworkFallbackWarning, match=reason):
        found = torch.compile(function, backend=backend, options=options)(*given)
    torch.testing.assert_close(found, function(*expected), rtol=0, atol=0)
    torch.testing.assert_close(given, expected, rtol=0, atol=0)


@pytest.mark.parametrize("option", ["strict", "batch_invariant"])
def test_an_error_where_eager_would_break_a_promise(option: str) -> None:
    function, inputs, _ = PROGRAMS["overlapping windows"]
    with pytest.raises(BackendCompilerFailed, match="internal overlap"):
        torch.compile(function, backend=backend, options={option: True})(*inputs())


def test_gradients() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        x[0].add_(1)
        return (x * w).sin().sum()

    gradients = []
    for run in (function, torch.compile(function, backend=backend)):
        w = torch.ones(4, requires_grad=True)
        run(torch.arange(4.0).expand(3, 4), w).backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_what_eager_rejects_is_eagers_error() -> None:
    def function(x: Tensor) -> Tensor:
        return x.add_(1)

    with pytest.raises(RuntimeError, match="Please clone"):
        torch.compile(function, backend=backend)(torch.zeros(4).expand(3, 4))
