"""oneDNN's own tensors as inputs of graphs: eager's results with a warning, or an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning

Function = Callable[[Tensor], Tensor]


def value() -> Tensor:
    return torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))


class Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", value().to_mkldnn())
        self.weight = torch.nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        held: Tensor = self.held
        return held.to_dense() * x * self.weight


HELD = value().to_mkldnn()
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "behind a graph break": lambda x: x.to_mkldnn().to_dense() + 1,
    "of a closure": lambda x: HELD.to_dense() - x,
    "in a list, behind a graph break": lambda x: sum(one.to_dense() for one in [x.to_mkldnn(), x]),
    "a buffer, and gradients of a parameter": Held(),
}


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager_with_a_warning(name: str, dynamic: bool | None) -> None:
    function = FUNCTIONS[name]
    expected = function(value())
    with pytest.warns(CoilworkFallbackWarning, match=r"has layout torch\._mkldnn"):
        found = torch.compile(function, backend=backend, dynamic=dynamic)(value())
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    if isinstance(function, torch.nn.Module):
        parameters = list(function.parameters())
        gradients = (torch.autograd.grad(result.sum(), parameters) for result in (found, expected))
        torch.testing.assert_close(next(gradients), next(gradients))


def test_gradients_through_such_a_tensor() -> None:
    def gradient(function: Function) -> Tensor:
        x = value().requires_grad_()
        return torch.autograd.grad(function(x.to_mkldnn()).square().sum(), x)[0]

    def function(m: Tensor) -> Tensor:
        return m.to_dense() * 3

    with pytest.warns(CoilworkFallbackWarning):
        found = gradient(torch.compile(function, backend=backend))
    torch.testing.assert_close(found, gradient(function))


@pytest.mark.parametrize("dynamic", [None, True])
def test_one_function_of_both_kinds(dynamic: bool | None) -> None:
    """Torch's guards tell them apart, so the check at compile time is enough, and calls cost nothing."""

    def function(x: Tensor) -> Tensor:
        return x.to_dense() + 1

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoilworkFallbackWarning)
        for given in (value(), value().to_mkldnn(), value(), value()[1:].to_mkldnn(), value()[:1]):
            torch.testing.assert_close(compiled(given), function(given), rtol=0, atol=0)


def test_strict_refuses() -> None:
    compiled = torch.compile(lambda m: m.to_dense() + 1, backend=backend, options={"strict": True})
    with pytest.raises(BackendCompilerFailed, match=r"opaque-input.*\n.*with strides.*\n.*to_dense"):
        compiled(value().to_mkldnn())


@pytest.mark.parametrize("is_compiled_before", [False, True])
def test_inside_of_functionalize(is_compiled_before: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        y[1:].add_(x[:1])
        return y.sin()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend)
    if is_compiled_before:
        compiled(value())
    with pytest.warns(CoilworkFallbackWarning, match=r"wrapped by torch\.func\.functionalize"):
        found = torch.func.functionalize(compiled)(value())
    torch.testing.assert_close(found, function(value()))
