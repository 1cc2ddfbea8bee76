"""Values at the edges of their types, in operators that other tests see with plain ones: beside eager, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from integration_tests.beside_eager import agrees, compiled

pytestmark = pytest.mark.usefixtures("own_caches")

EDGES = (0.0, -0.0, 1, -1, 0.5, 3, 1e-8, 6e-8, 1e-5, 2, 1024, -7.25, 65504, 1e38, float("inf"), -float("inf"))
Function = Callable[[Tensor], Tensor]
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def edges(dtype: torch.dtype) -> list[Tensor]:
    return [torch.tensor([*EDGES, float("nan")], dtype=torch.float64).to(dtype)]


def taken_apart(x: Tensor) -> tuple[Any, ...]:
    scaled = x * 0.3
    return (*torch.frexp(x), *torch.frexp(scaled), scaled)


@pytest.mark.parametrize("dtype", FLOATS)
def test_frexp_agrees_at_edges(dtype: torch.dtype) -> None:
    agrees(taken_apart, compiled(taken_apart), lambda: edges(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inner", [torch.atan, torch.atanh], ids=lambda f: f.__name__)
@pytest.mark.parametrize("outer", [torch.sin, torch.cos, torch.sinh, torch.cosh], ids=lambda f: f.__name__)
def test_functions_of_their_inverses_agree_at_edges(
    outer: Function, inner: Function, dtype: torch.dtype
) -> None:
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
def test_variance_beside_an_infinity_agrees(spread: Callable[..., Any], value: float) -> None:
    def both(x: Tensor) -> Any:
        return spread(x, dim=1), spread(x)

    ours = compiled(both)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        agrees(both, ours, partial(ramp, value, dtype))


@pytest.mark.parametrize("shape", [(5, 700), (3, 7), (64, 4096)], ids=str)
@pytest.mark.parametrize("number", [1.0444, 0.1, 123.456])
def test_equal_numbers_have_their_mean_and_no_variance(number: float, shape: tuple[int, int]) -> None:
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


def test_running_means_beside_an_infinity_agree() -> None:
    """Norms add up, and do not update a mean."""

    def normed(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    agrees(
        normed, compiled(normed), lambda: [*ramp(float("inf"), torch.float32), torch.zeros(6), torch.ones(6)]
    )


@pytest.mark.parametrize("size", [(6, 2), (3, 7), (4, 4), (4, 6)], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_an_infinity_outside_a_window_has_no_effect(mode: str, size: tuple[int, int]) -> None:
    def resized(x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x, size=size, mode=mode, antialias=True)

    def image(shape: tuple[int, int], place: int) -> Tensor:
        x = torch.arange(float(shape[0] * shape[1])).view(1, 1, *shape).sin()
        x.view(-1)[place % x.numel()] = float("inf")
        return x

    def both(function: Function, place: int) -> tuple[Tensor, Tensor]:
        x = image((4, 4), place).requires_grad_()
        result = function(x)
        return result.detach(), torch.autograd.grad(result, x, image(size, place))[0]

    # torch has no derivative of the cubic kind for sizes that are not known
    ours = compiled(resized, dynamic=False)
    for place in (0, 5, 10, 15):
        torch.testing.assert_close(both(ours, place), both(resized, place), equal_nan=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_scale_that_keeps_the_size_copies(mode: str) -> None:
    """Four rows by 1.1 are four, which eager takes as they are."""

    def resized(x: Tensor, scale: tuple[float, float]) -> Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=scale, mode=mode, antialias=True)

    ours = compiled(resized)
    x = torch.arange(32.0).view(1, 2, 4, 4).sin()
    for scale in ((1.1, 1.0), (1.1, 1.6), (0.8, 1.2)):
        torch.testing.assert_close(ours(x, scale), resized(x, scale))
    assert ours(x, (1.1, 1.2)).data_ptr() != x.data_ptr()


def test_windows_over_padding_of_an_empty_input_agree() -> None:
    """There is no memory to read."""

    def windows(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x.reshape(-1), (0, 64)).view(1, 4, 4, 4)
        return torch.nn.functional.avg_pool2d(padded, 3, 2, 1, ceil_mode=True)

    agrees(windows, compiled(windows), lambda: [torch.empty(6, 0)])
