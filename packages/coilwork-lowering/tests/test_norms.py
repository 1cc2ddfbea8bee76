"""Distances of rows and their gradients are eager's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lowering_against_eager import assert_as_eager

aten = torch.ops.aten
ORDERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)
NEVER_BY_PRODUCT = 2


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    value = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)
    # rows that are equal, and elements that are
    value[..., 1, :] = value[..., 0, :]
    value[..., -1, 0] = value[..., 0, 0]
    return value.to(dtype)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_between_two_sets_of_rows_are_those_of_eager(order: float, dtype: torch.dtype) -> None:
    left, right = rows(2, 4, 3, dtype=dtype), rows(2, 5, 3, dtype=dtype)
    right[:, 0] = left[:, 0]
    assert_as_eager(lambda a, b: aten._cdist_forward(a, b, order, NEVER_BY_PRODUCT), left, right)


@pytest.mark.parametrize("order", ORDERS)
def test_gradient_of_those_between_two(order: float) -> None:
    left, right = rows(4, 3), rows(5, 3)
    right[0] = left[0]
    distances = torch.cdist(left, right, order)

    def function(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, found: torch.Tensor) -> Any:
        return aten._cdist_backward(grad, a, b, order, found)

    assert_as_eager(function, torch.randn(4, 5), left, right, distances)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [2, 3, 17])
def test_distances_within_a_set_of_rows_are_those_of_eager(order: float, count: int) -> None:
    assert_as_eager(lambda a: aten._pdist_forward(a, order), rows(count, 3))


@pytest.mark.parametrize("order", ORDERS)
def test_gradient_of_those_within_one(order: float) -> None:
    value = rows(5, 3)
    distances = torch.nn.functional.pdist(value, order)

    def function(grad: torch.Tensor, a: torch.Tensor, found: torch.Tensor) -> Any:
        return aten._pdist_backward(grad, a, order, found)

    assert_as_eager(function, torch.randn(10), value, distances)


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_what_is_no_number_spreads(order: float) -> None:
    left, right = rows(3, 4), rows(4, 4)
    left[0, 1], right[2, 3] = math.nan, math.inf
    assert_as_eager(lambda a, b: aten._cdist_forward(a, b, order, NEVER_BY_PRODUCT), left, right)


def test_columns_of_one_element_and_rows_across_memory() -> None:
    left, right = rows(3, 4).t(), rows(3, 5).t()
    assert_as_eager(lambda a, b: aten._cdist_forward(a, b, 1.0, None), left, right)
    assert_as_eager(lambda a, b: aten._cdist_forward(a, b, 2.0, None), rows(2, 1), rows(2, 1))


@pytest.mark.parametrize("shapes", [((0, 3), (2, 3)), ((2, 0), (3, 0)), ((2, 3), (0, 3))])
def test_distances_of_nothing(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    left, right = (torch.ones(shape) for shape in shapes)
    assert_as_eager(lambda a, b: aten._cdist_forward(a, b, 2.0, None), left, right)
    distances = torch.cdist(left, right)
    assert_as_eager(
        lambda g, a, b, d: aten._cdist_backward(g, a, b, 2.0, d), distances, left, right, distances
    )


def test_one_row_has_no_pairs() -> None:
    # eager's gradient of it takes the process down
    assert_as_eager(lambda a: aten._pdist_forward(a, 1.0), torch.ones(1, 3))
    assert_as_eager(lambda a: aten._pdist_forward(a, 1.0), torch.ones(0, 3))


def test_many_euclidean_distances_are_left_to_a_product() -> None:
    left, right = torch.randn(30, 3), torch.randn(4, 3)
    assert_as_eager(lambda a, b: aten._cdist_forward(a, b, 2.0, None), left, right, extern=True)
    assert_as_eager(lambda a, b: aten._cdist_forward(a, b, 2.0, NEVER_BY_PRODUCT), left, right)


def test_the_pair_of_a_number() -> None:
    # where the root of the number is rounded most
    value = torch.arange(3001.0).view(-1, 1)
    assert_as_eager(lambda a: aten._pdist_forward(a, 1.0), value)
