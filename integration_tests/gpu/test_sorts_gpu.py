"""Sorted rows, their first elements and elements by rank on a GPU: what a stable sort gives, to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def compiled(function: Callable[..., tuple[Tensor, ...]], cache: Path) -> Callable[..., tuple[Tensor, ...]]:
    torch._dynamo.reset()
    options = {"cache_dir": str(cache), "strict": True, "sorting": "kernels"}

    def configured(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        return backend(gm, inputs, options=options)

    return torch.compile(function, backend=configured)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers with ties; among floats NaN, infinities and zeros of both signs."""
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 20).round()
    if dtype.is_floating_point:
        x[x == 3] = math.nan
        x[x == 5] = -math.inf
        x[x == 7] = math.inf
        x[..., ::2] *= -1
    return x.to("cuda", dtype)


def sorted_rows(x: Tensor, dim: int, *, descending: bool = False) -> tuple[Tensor, Tensor]:
    """What a stable sort gives, zeros of both signs being equal and NaN the largest.

    Eager's own, where it sorts by digits, puts -0.0 before 0.0 in bf16, and NaN with a sign first.
    """
    wide = x.float() if x.dtype is torch.bfloat16 else x
    if wide.dtype.is_floating_point:
        wide = torch.where(wide.isnan(), math.nan, wide)
    values, places = torch.sort(wide, dim=dim, stable=True, descending=descending)
    return values.to(x.dtype), places


def agrees(mine: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for one, other in zip(mine, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        if other.dtype.is_floating_point:
            assert torch.equal(one.signbit() & (one == 0), other.signbit() & (other == 0))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int16, torch.uint8, torch.bool])
def test_rows_of_every_type_are_sorted_stably(dtype: torch.dtype, descending: bool, tmp_path: Path) -> None:
    function = partial(torch.sort, dim=-1, stable=True, descending=descending)
    x = drawn(300, 100, dtype=dtype)
    wanted = sorted_rows(x, -1, descending=descending)
    agrees(tuple(compiled(lambda x: tuple(function(x)), tmp_path)(x)), wanted)


@pytest.mark.parametrize(
    "shape, dim", [((5000, 8), 1), ((64, 1024), 1), ((40, 2048), 1), ((9, 1000), 1), ((700, 300), 0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_every_length_are_sorted_stably(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    function = partial(torch.sort, dim=dim, stable=True)
    x = drawn(*shape, dtype=dtype)
    agrees(tuple(compiled(lambda x: tuple(function(x)), tmp_path)(x)), sorted_rows(x, dim))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "shape, k",
    [
        ((4000, 64), 2),
        ((4000, 64), 6),
        ((300, 4096), 64),
        ((300, 1000), 300),
        ((64, 50257), 50),
        ((3, 8192), 1),
    ],
)
def test_the_first_elements_are_those_of_sorted_rows(
    shape: tuple[int, ...], k: int, largest: bool, tmp_path: Path
) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = drawn(*shape, dtype=dtype)
        found = compiled(lambda x: tuple(torch.topk(x, k, -1, largest)), tmp_path)(x)
        values, places = sorted_rows(x, -1, descending=largest)
        torch.testing.assert_close(found[0], values[:, :k], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found[1], places[:, :k])


def test_what_is_around(tmp_path: Path) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        shares = x.softmax(-1)
        values, places = torch.topk(shares, 6)
        ordered, _ = torch.sort(x * 2, dim=-1)
        return (
            shares,
            values / values.sum(-1, keepdim=True),
            places,
            ordered.exp(),
            torch.median(x, -1).values,
        )

    x = torch.rand(500, 96, generator=torch.Generator().manual_seed(0)).cuda()
    for one, other in zip(compiled(function, tmp_path)(x), function(x), strict=True):
        torch.testing.assert_close(one, other)
