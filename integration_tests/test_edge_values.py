"""Values at the edges of their types, in operators that other tests see with plain ones: beside eager, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from integration_tests.beside_eager import agrees, compiled

EDGES = (0.0, -0.0, 1, -1, 0.5, 3, 1e-8, 6e-8, 1e-5, 2, 1024, -7.25, 65504, 1e38, float("inf"), -float("inf"))
Function = Callable[[Tensor], Tensor]
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def edges(dtype: torch.dtype) -> list[Tensor]:
    return [torch.tensor([*EDGES, float("nan")], dtype=torch.float64).to(dtype)]


def taken_apart(x: Tensor) -> tuple[Any, ...]:
    scaled = x * 0.3
    return (*torch.frexp(x), *torch.frexp(scaled), scaled)


@pytest.mark.parametrize("dtype", FLOATS)
def test_frexp(dtype: torch.dtype) -> None:
    agrees(taken_apart, compiled(taken_apart), lambda: edges(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inner", [torch.atan, torch.atanh], ids=lambda f: f.__name__)
@pytest.mark.parametrize("outer", [torch.sin, torch.cos, torch.sinh, torch.cosh], ids=lambda f: f.__name__)
def test_functions_of_inverses(outer: Function, inner: Function, dtype: torch.dtype) -> None:
    """C++ compilers know formulas for some of these pairs, which do without the functions, and not of NaN."""

    def function(x: Tensor) -> Tensor:
        return outer(inner(x))

    agrees(function, compiled(function), lambda: edges(dtype))


def ramp(value: float, dtype: torch.dtype) -> list[Tensor]:
    x = torch.arange(24.0).view(4, 6).to(dtype)
    x[1, 2] = value
    return [x]


SPREADS = (torch.var, torch.std, torch.var_mean, torch.std_mean)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 1e38])
@pytest.mark.parametrize("spread", SPREADS, ids=lambda f: f.__name__)
def test_spread_beside_an_infinity(spread: Callable[..., Any], value: float) -> None:
    def both(x: Tensor) -> Any:
        return spread(x, dim=1), spread(x)

    ours = compiled(both)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        agrees(both, ours, partial(ramp, value, dtype))


@pytest.mark.parametrize("shape", [(5, 700), (3, 7), (64, 4096)], ids=str)
@pytest.mark.parametrize("number", [1.0444, 0.1, 123.456])
def test_equal_numbers_are_their_mean_and_do_not_spread(number: float, shape: tuple[int, int]) -> None:
    """Along memory, and in all."""

    def moments(x: Tensor) -> tuple[Tensor, ...]:
        normed = torch.nn.functional.layer_norm(x, x.shape[-1:])
        return *torch.var_mean(x, 1), *torch.var_mean(x), normed

    for dtype in (torch.float32, torch.float64):
        x = torch.full(shape, number, dtype=dtype)
        found = compiled(moments)(x)
        for variance, mean in (found[:2], found[2:4]):
            assert torch.equal(variance, torch.zeros_like(variance))
            assert torch.equal(mean, torch.full_like(mean, x[0, 0].item()))
        assert torch.equal(found[-1], torch.zeros_like(x))


def test_running_means_beside_an_infinity() -> None:
    """Norms add up, and do not update a mean."""

    def normed(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    agrees(
        normed, compiled(normed), lambda: [*ramp(float("inf"), torch.float32), torch.zeros(6), torch.ones(6)]
    )
