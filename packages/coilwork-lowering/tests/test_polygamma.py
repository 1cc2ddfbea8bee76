"""Derivatives of digamma are eager's, on both sides of 0, and between its poles."""

from __future__ import annotations

import math

import pytest
import torch
from lowering_against_eager import assert_as_eager, externs, trace_and_lower

POINTS = torch.cat(
    [
        torch.linspace(-4.7, 4.6, 33, dtype=torch.float64),
        torch.tensor([1e-3, 20.0, 1e5, math.inf, 0.0, math.nan]),
    ]
)


@pytest.mark.parametrize("order", range(6))
def test_orders(order: int) -> None:
    assert_as_eager(lambda x: torch.polygamma(order, x), POINTS, tolerance=1e-9)
    assert_as_eager(lambda x: torch.polygamma(order, x), POINTS.float(), tolerance=2e-5)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_poles(order: int) -> None:
    assert_as_eager(lambda x: torch.polygamma(order, x), torch.tensor([0.0, -0.0, -1.0, -2.0, -30.0]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_other_types(dtype: torch.dtype) -> None:
    assert_as_eager(lambda x: torch.polygamma(1, x), torch.tensor([1, 2, 3]).to(dtype))
    assert_as_eager(lambda x: torch.polygamma(2, x), torch.ones(0, 3, dtype=dtype))


def test_high_orders_are_left_to_aten() -> None:
    lowered = trace_and_lower(lambda x: torch.polygamma(30, x), (torch.ones(3),))
    assert externs(lowered.graph) == ["aten.polygamma.default"]


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.float64])
def test_first_derivative_at_its_poles(dtype: torch.dtype) -> None:
    """Eager's sine of a multiple of pi is not 0, nor is its inverse infinite."""
    poles = torch.tensor([0, -1, -2, -7, -30]).to(dtype)
    assert_as_eager(lambda x: torch.polygamma(1, x), poles, tolerance=1e-5)
