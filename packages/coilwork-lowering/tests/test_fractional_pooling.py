"""Maxima over windows that begin at random are eager's, with their positions."""

from __future__ import annotations

import math

import pytest
import torch
from lowering_against_eager import assert_as_eager

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("window", "places"), [((2, 3), (3, 2)), ((1, 1), (5, 1)), ((3, 2), (1, 4))])
def test_two_dimensions(window: tuple[int, int], places: tuple[int, int], dtype: torch.dtype) -> None:
    samples = torch.tensor([[[0.0, 0.99], [0.5, 0.3]], [[0.7, 0.1], [0.25, 0.75]]], dtype=dtype)
    image = torch.randn(2, 2, 7, 6).to(dtype)
    assert_as_eager(lambda x, r: aten.fractional_max_pool2d(x, window, places, r), image, samples)
    assert_as_eager(lambda x, r: aten.fractional_max_pool2d(x, window, places, r), image[0], samples[:1])


def test_three_dimensions() -> None:
    image, samples = torch.randn(2, 3, 5, 6, 7), torch.rand(2, 3, 3)
    assert_as_eager(lambda x, r: aten.fractional_max_pool3d(x, (2, 2, 2), (2, 3, 4), r), image, samples)


def test_the_last_that_is_no_number_wins() -> None:
    image, samples = torch.randn(1, 1, 6, 6), torch.full((1, 1, 2), 0.4)
    image[0, 0, 1, 1], image[0, 0, 2, 1], image[0, 0, 4, 4] = math.nan, math.nan, math.inf
    image[0, 0, 4:, :2] = -math.inf
    assert_as_eager(lambda x, r: aten.fractional_max_pool2d(x, (3, 3), (2, 2), r), image, samples)


def test_windows_that_are_large_or_nothing_are_left_to_aten() -> None:
    image, samples = torch.randn(1, 1, 9, 9), torch.rand(1, 1, 2)
    assert_as_eager(
        lambda x, r: aten.fractional_max_pool2d(x, (6, 6), (2, 2), r), image, samples, extern=True
    )
    none = torch.randn(0, 1, 9, 9)
    assert_as_eager(
        lambda x, r: aten.fractional_max_pool2d(x, (2, 2), (2, 2), r), none, samples[:0], extern=True
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_where_windows_begin_is_rounded(dtype: torch.dtype) -> None:
    image, samples = torch.randn(200, 1, 33, 33).to(dtype), torch.rand(200, 1, 2).to(dtype)
    assert_as_eager(lambda x, r: aten.fractional_max_pool2d(x, (2, 2), (16, 16), r), image, samples)
