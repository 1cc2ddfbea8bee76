"""Special functions by formulas and by loops, against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_against_eager import assert_as_eager, externs, trace_and_lower

special = torch.special
TWO = {
    "igamma": torch.igamma,
    "igammac": torch.igammac,
    "zeta": special.zeta,
    "hermite_h": special.hermite_polynomial_h,
    "hermite_he": special.hermite_polynomial_he,
    "laguerre": special.laguerre_polynomial_l,
    "legendre": special.legendre_polynomial_p,
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("function", [torch.gcd, torch.lcm])
def test_divisors_and_multiples(function: Callable[..., Any], dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    line = torch.tensor([0, 1, 2, 6, 35, 49, 120, info.max, info.max - 1], dtype=dtype)
    line = torch.cat([line, -line])
    if function is torch.gcd:
        # with some of the others eager's lcm of it divides it by -1, which stops the process
        line = torch.cat([line, torch.tensor([info.min], dtype=dtype)])
    assert_as_eager(function, line[:, None], line[None, :])
    assert_as_eager(function, line[::2], line[3])
    assert_as_eager(function, line[:18].view(3, 6).t(), line[:3])
    assert_as_eager(function, line[:0], line[:0])


def test_divisors_of_unlike_types() -> None:
    assert_as_eager(torch.gcd, torch.tensor([12, 18, -30]), torch.tensor([8, 27, 45], dtype=torch.int8))


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_two_operands_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    a = (torch.rand(6, 5, dtype=dtype) * 6 + 1.01).t()
    b = torch.rand(5, 6, dtype=dtype) * 6 + 0.01
    assert_as_eager(TWO[name], a, b, tolerance=1e-10 if dtype is torch.float64 else 2e-4)
    assert_as_eager(TWO[name], a, b[0, 0], tolerance=1e-10 if dtype is torch.float64 else 2e-4)
    assert_as_eager(TWO[name], a[:, :1], b[:1, :0], tolerance=0)


@pytest.mark.parametrize("name", [name for name in TWO if name not in ("igamma", "igammac")])
def test_numbers_for_operands(name: str) -> None:
    x = torch.linspace(1.1, 3.0, 7)
    assert_as_eager(lambda x: TWO[name](x, 3), x, tolerance=1e-4)
    assert_as_eager(lambda x: TWO[name](2.5, x), x, tolerance=1e-4)


def test_integers_become_floats() -> None:
    assert_as_eager(special.zeta, torch.arange(2, 8), torch.arange(1, 7), tolerance=1e-5)
    assert_as_eager(special.legendre_polynomial_p, torch.arange(-3, 3), torch.arange(6), tolerance=1e-5)


def test_zeta_of_negative_shifts_and_edges() -> None:
    inf, nan = math.inf, math.nan
    s = torch.tensor([2.0, 3.0, 2.0, 2.5, 1.0, 0.5, inf, 2.0, nan, 2.0, 40.0])
    q = torch.tensor([-2.5, -7.25, -3.0, -1.5, 2.0, 2.0, 1.0, nan, 2.0, 0.0, 9.5])
    assert_as_eager(special.zeta, s, q, tolerance=2e-6)
    assert_as_eager(special.zeta, s.double(), q.double(), tolerance=1e-13)


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
def test_edges_of_incomplete_gamma(function: Callable[..., Any]) -> None:
    line = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 50.0, math.inf, -math.inf, math.nan])
    assert_as_eager(function, line[:, None], line[None, :], tolerance=2e-6)
    assert_as_eager(function, line.double()[:, None], line.double()[None, :], tolerance=1e-12)


POINTS = torch.cat(
    [
        torch.linspace(-4.7, 4.6, 33, dtype=torch.float64),
        torch.tensor([1e-3, 20.0, 1e5, math.inf, 0.0, math.nan]),
    ]
)


@pytest.mark.parametrize("order", range(6))
def test_polygamma_of_each_order_is_eagers(order: int) -> None:
    assert_as_eager(lambda x: torch.polygamma(order, x), POINTS, tolerance=1e-9)
    assert_as_eager(lambda x: torch.polygamma(order, x), POINTS.float(), tolerance=2e-5)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_polygamma_at_its_poles_is_eagers(order: int) -> None:
    assert_as_eager(lambda x: torch.polygamma(order, x), torch.tensor([0.0, -0.0, -1.0, -2.0, -30.0]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_polygamma_takes_integers_and_empty_tensors(dtype: torch.dtype) -> None:
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
