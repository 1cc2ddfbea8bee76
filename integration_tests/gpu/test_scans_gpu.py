"""Scans of few long rows on a GPU, by programs that share them: what eager gives, and the same bits every
time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
RUNS = 20
SHAPES = [(64, 1048576), (1, 1000003), (3, 300007), (8, 4_000_000), (7, 20001)]


def compiled(function: Callable[..., object], cache: Path) -> Callable[..., tuple[Tensor, ...]]:
    torch._dynamo.reset()
    options = {"cache_dir": str(cache), "strict": True}

    def configured(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        return backend(gm, inputs, options=options)

    return torch.compile(function, backend=configured)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    if not dtype.is_floating_point:
        return torch.randint(-1000, 1000, shape, generator=generator, device="cuda").to(dtype)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype)


def checked(function: Callable[..., tuple[Tensor, ...]], x: Tensor, cache: Path, *, share: float) -> None:
    """Results are off what f64 gives by no more than `share` of the largest, and the same in every run."""
    fast = compiled(function, cache)
    first = [value.clone() for value in fast(x)]
    wanted = function(x.double() if x.dtype.is_floating_point else x)
    for one, other in zip(first, wanted, strict=True):
        if not x.dtype.is_floating_point or not one.dtype.is_floating_point:
            assert torch.equal(one, other)
            continue
        assert torch.equal(one.isnan(), other.isnan())
        largest = other[other.isfinite()].abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=share, atol=share * largest, equal_nan=True)
    for _ in range(RUNS):
        for one, again in zip(first, fast(x), strict=True):
            assert torch.equal(one.view(torch.uint8), again.view(torch.uint8))


@pytest.mark.parametrize("shape", SHAPES)
def test_running_sums_are_near_the_exact_ones(shape: tuple[int, int], tmp_path: Path) -> None:
    checked(lambda x: (x.cumsum(1),), drawn(*shape), tmp_path, share=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32])
def test_running_sums_of_every_type(dtype: torch.dtype, tmp_path: Path) -> None:
    share = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 0.0)
    checked(lambda x: (x.cumsum(1),), drawn(5, 400003, dtype=dtype), tmp_path, share=share)


@pytest.mark.parametrize("shape", SHAPES)
def test_running_extremes_are_eagers_in_every_run(shape: tuple[int, int], tmp_path: Path) -> None:
    x = (drawn(*shape) * 100).round()
    fast = compiled(lambda x: (*x.cummax(1), *x.cummin(1)), tmp_path)
    wanted = [(x.cummax(1), x.cummin(1))]
    first = [value.clone() for value in fast(x)]
    for one, other in zip(first, [value for pair in wanted[0] for value in pair], strict=True):
        assert torch.equal(one, other)
    for _ in range(RUNS):
        assert all(torch.equal(one, again) for one, again in zip(first, fast(x), strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_running_logarithms_of_sums(shape: tuple[int, int], tmp_path: Path) -> None:
    checked(lambda x: (x.logcumsumexp(1),), drawn(*shape) * 4, tmp_path, share=1e-6)


def test_running_products_are_near_the_exact_ones(tmp_path: Path) -> None:
    x = (drawn(6, 500009) / 100).exp()
    checked(lambda x: (x.cumprod(1),), x, tmp_path, share=1e-4)


@pytest.mark.parametrize("period", [2, 128, 8192])
def test_running_products_of_what_cancels(period: int, tmp_path: Path) -> None:
    # half a period has up to 64 times 2, the other as often a half, and products of neighbours do not leave
    # the range; all are powers of two, which are exact
    half = period // 2
    cycle = torch.ones(period, device="cuda")
    cycle[: half : max(half // 64, 1)] = 2.0
    cycle[half :: max(half // 64, 1)] = 0.5
    x = cycle.repeat(4, (1 << 20) // period)
    checked(lambda x: (x.cumprod(1),), x, tmp_path, share=0.0)


def test_what_is_pointwise_around(tmp_path: Path) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        total = (x * 2 + 1).cumsum(-1)
        return (total.relu() - x, total)

    checked(function, drawn(2, 3, 262145), tmp_path, share=1e-5)


def test_from_the_end(tmp_path: Path) -> None:
    checked(lambda x: (x.flip(1).cumsum(1).flip(1),), drawn(4, 700001), tmp_path, share=1e-5)


def test_gradients_of_running_sums_are_near_the_exact_ones(tmp_path: Path) -> None:
    x = drawn(4, 400001).requires_grad_()
    fast = compiled(lambda x: x.cumsum(1).sin(), tmp_path)
    weight = drawn(4, 400001)
    (mine,) = torch.autograd.grad((fast(x) * weight).sum(), x)
    wide = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad((wide.cumsum(1).sin() * weight).sum(), wide)
    torch.testing.assert_close(mine.double(), wanted, rtol=1e-2, atol=wanted.abs().max().item() * 1e-2)


@pytest.mark.parametrize("special", [float("inf"), float("nan")])
def test_what_is_no_number_goes_on(special: float, tmp_path: Path) -> None:
    x = drawn(3, 300007)
    x[0, 100000], x[1, 0] = special, special
    fast = compiled(lambda x: (x.cumsum(1), x.logcumsumexp(1)), tmp_path)
    for one, other in zip(fast(x), (x.cumsum(1), x.logcumsumexp(1)), strict=True):
        assert torch.equal(one.isnan(), other.isnan()) and torch.equal(one.isinf(), other.isinf())
