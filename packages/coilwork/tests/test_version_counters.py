"""Writing to what the backward reads: refused as in eager mode, or without effect on gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork import compile_graph
from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning

Compile = Callable[..., Callable[..., Any]]
Program = Callable[[Tensor, Tensor], Any]

REFUSAL: Final = "modified by an inplace operation"


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.rand(4, 4, generator=generator) + 0.5 for _ in range(2))
    return x.requires_grad_(), w.requires_grad_()


def gradients(
    function: Program, write: Callable[[list[Tensor], Tensor], object] | None
) -> tuple[Tensor | None, ...]:
    x, w = inputs()
    made = function(x, w)
    results = [made] if isinstance(made, Tensor) else list(made)
    weights = [torch.arange(r.numel()).view(r.shape) + 1.0 for r in results]
    if write is not None:
        with torch.no_grad():
            write(results, w)
    given = [(r, weight) for r, weight in zip(results, weights, strict=True) if r.requires_grad]
    torch.autograd.backward([r for r, _ in given], [weight for _, weight in given])
    return x.grad, w.grad


def writing_changes_no_gradient(
    function: Program, write: Callable[[list[Tensor], Tensor], object], dynamic: bool
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, options={"strict": True}, dynamic=dynamic)
    expected = gradients(function, None)
    torch.testing.assert_close(gradients(compiled, None), expected)
    with pytest.raises(RuntimeError, match=REFUSAL):
        gradients(function, write)
    refused = False
    try:
        found = gradients(compiled, write)
    except RuntimeError as refusal:
        refused = REFUSAL in str(refusal)
        found = ()
    if not refused:  # it reads what was not written to
        torch.testing.assert_close(found, expected)


OF_WEIGHTS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "matrix": lambda x, w: x.sin() @ w,
        "transpose": lambda x, w: F.linear(x.sin(), w),
        "row": lambda x, w: x * w[0],
        "column": lambda x, w: x.sin() * w[:, None, 0],
        "batch": lambda x, w: torch.bmm(x[None].sin(), w[None]),
        "filters": lambda x, w: F.conv1d(x[None].sin(), w[:, :, None]),
    }
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", OF_WEIGHTS)
def test_weights_that_are_saved_as_views(what: str, dynamic: bool) -> None:
    writing_changes_no_gradient(OF_WEIGHTS[what], lambda _, w: w.mul_(3), dynamic)


def with_square(view: Callable[[Tensor], Tensor]) -> Program:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = (x * w).exp()
        return view(made), made * made

    return function


OF_RESULTS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "whole": with_square(lambda e: e),
        "row": with_square(lambda e: e[0]),
        "transpose": with_square(lambda e: e.t()),
        "detached": with_square(lambda e: e.detach()),
        "row of detached": with_square(lambda e: e.detach()[0]),
        "product of itself": lambda x, w: (lambda e: (e, e @ e))(x * w),
        "probabilities": lambda x, w: (x * w).softmax(-1).transpose(0, 1),
        "mean": lambda x, w: (lambda m: (m.view(2, 2), x * m * w))(x.mean(-1)),
        "two views": lambda x, w: (lambda e: (e.view(-1), e.view(8, 2), e * e))((x * w).exp()),
    }
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", OF_RESULTS)
def test_results_that_share_memory_with_what_is_saved(what: str, dynamic: bool) -> None:
    writing_changes_no_gradient(OF_RESULTS[what], lambda results, _: results[0].mul_(3), dynamic)


def test_writing_to_what_is_not_saved(strictly: Compile) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = (x * w).exp()
        return made.t(), (x + w).t(), made * made

    for write in (lambda results, _: results[1].mul_(3), lambda results, _: results[2].zero_()):
        torch._dynamo.reset()
        torch.testing.assert_close(gradients(strictly(function), write), gradients(function, write))


def test_results_are_written_to_with_gradients(strictly: Compile) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = (x * w).exp()
        return made.t(), (made + 1)[1:]

    def rows_added(called: Program) -> tuple[Tensor | None, ...]:
        x, w = inputs()
        _, rows = called(x, w)
        rows.add_(w[1:]).mul_(2)
        rows.sum().backward()
        return rows.detach(), x.grad, w.grad

    torch._dynamo.reset()
    torch.testing.assert_close(rows_added(strictly(function)), rows_added(function))


def test_graphs_that_run_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> object:
        raise ValueError("no")

    monkeypatch.setattr(compile_graph, "build_with_retries", failing)
    torch._dynamo.reset()
    compiled = torch.compile(OF_RESULTS["row"], backend=backend, options={"cache": False})
    with pytest.warns(CoilworkFallbackWarning):
        torch.testing.assert_close(gradients(compiled, None), gradients(OF_RESULTS["row"], None))
    with pytest.raises(RuntimeError, match=REFUSAL):
        gradients(compiled, lambda results, _: results[0].mul_(3))
