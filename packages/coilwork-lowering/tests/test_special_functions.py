"""Special functions made of series agree with mpmath's, in every type at least as well as eager does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import loop_evaluator
import mpmath
import pytest
import torch
from lowering_against_eager import assert_as_eager, externs, trace_and_lower

special = torch.special
aten = torch.ops.aten

FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Any], Any], float, float]] = {
    "i0": (torch.i0, lambda x: mpmath.besseli(0, x), -60, 60),
    "i0e": (special.i0e, lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x), -200, 200),
    "i1": (special.i1, lambda x: mpmath.besseli(1, x), -60, 60),
    "i1e": (special.i1e, lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x), -200, 200),
    "modified_i0": (special.modified_bessel_i0, lambda x: mpmath.besseli(0, x), -9, 9),
    "modified_i1": (special.modified_bessel_i1, lambda x: mpmath.besseli(1, x), -9, 9),
    "k0": (special.modified_bessel_k0, lambda x: mpmath.besselk(0, x), 1e-6, 60),
    "k1": (special.modified_bessel_k1, lambda x: mpmath.besselk(1, x), 1e-6, 60),
    "scaled_k0": (
        special.scaled_modified_bessel_k0,
        lambda x: mpmath.exp(x) * mpmath.besselk(0, x),
        1e-6,
        300,
    ),
    "scaled_k1": (
        special.scaled_modified_bessel_k1,
        lambda x: mpmath.exp(x) * mpmath.besselk(1, x),
        1e-6,
        300,
    ),
    "j0": (special.bessel_j0, lambda x: mpmath.besselj(0, x), -40, 40),
    "j1": (special.bessel_j1, lambda x: mpmath.besselj(1, x), -40, 40),
    "y0": (special.bessel_y0, lambda x: mpmath.bessely(0, x), 1e-6, 40),
    "y1": (special.bessel_y1, lambda x: mpmath.bessely(1, x), 1e-6, 40),
    "spherical_j0": (
        special.spherical_bessel_j0,
        lambda x: mpmath.mpf(1) if x == 0 else mpmath.sin(x) / x,
        -40,
        40,
    ),
    "airy_ai": (special.airy_ai, mpmath.airyai, -30, 30),
    "erfcx": (special.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), -5, 60),
    "ndtri": (special.ndtri, lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1), 0.001, 0.999),
}
CYLINDRICAL = (special.bessel_j0, special.bessel_j1, special.bessel_y0, special.bessel_y1)
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 8.0, -8.0, 1e-30, math.inf, -math.inf, math.nan])


def computed(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    lowered = trace_and_lower(function, (x,))
    if externs(lowered.graph):
        # eager's own is coarse
        assert x.dtype is torch.float64
        assert function in CYLINDRICAL
    found: torch.Tensor
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [x])
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_eager(name: str) -> None:
    function, exact, low, high = FUNCTIONS[name]
    steps = torch.linspace(low, high, 61, dtype=torch.float64)
    near = torch.linspace(max(low, -2.5), min(high, 2.5), 20, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        x = torch.cat([steps, near]).to(dtype)
        with mpmath.workdps(30):
            wanted = torch.tensor([float(exact(mpmath.mpf(v))) for v in x.tolist()], dtype=torch.float64)
        scale = wanted.abs() + 1e-300
        mine = float(((computed(function, x).double() - wanted).abs() / scale).max())
        theirs = float(((function(x).double() - wanted).abs() / scale).max())
        assert mine <= max(2 * theirs, 8 * torch.finfo(dtype).eps), (dtype, mine, theirs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions_at_their_edges_are_those_of_eager(name: str) -> None:
    function = FUNCTIONS[name][0]
    assert_as_eager(function, EDGES, tolerance=2e-6)
    if function not in CYLINDRICAL:
        assert_as_eager(function, EDGES.double(), tolerance=1e-12)


@pytest.mark.parametrize("name", ["i0", "j0", "airy_ai", "erfcx"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint8])
def test_integers_become_floats(name: str, dtype: torch.dtype) -> None:
    assert_as_eager(FUNCTIONS[name][0], torch.tensor([0, 1, 2, 3]).to(dtype), tolerance=2e-6)


@pytest.mark.parametrize("shape", [(0,), (1,), (0, 3)])
def test_special_functions_take_empty_and_single_numbers(shape: tuple[int, ...]) -> None:
    assert_as_eager(torch.i0, torch.ones(shape))


def test_rows_across_memory() -> None:
    assert_as_eager(special.bessel_j0, torch.randn(5, 4).t(), tolerance=2e-6)
    assert_as_eager(torch.i0, torch.randn(5, 4, dtype=torch.bfloat16))


def test_quantiles_in_the_tails() -> None:
    for dtype in (torch.float64, torch.float32):
        tiny = torch.logspace(-37, -1, 60, dtype=torch.float64).to(dtype)
        assert_as_eager(special.ndtri, tiny, tolerance=1e-5 if dtype is torch.float32 else 1e-13)
    least = torch.tensor([5e-324, 1e-310, 1e-308, 1e-300], dtype=torch.float64)
    assert_as_eager(special.ndtri, least, tolerance=1e-12)


def test_special_functions_of_large_operands_are_those_of_eager() -> None:
    assert_as_eager(special.erfcx, torch.tensor([100.0, 1e8, 1e30], dtype=torch.float64), tolerance=1e-12)
    assert_as_eager(special.airy_ai, torch.tensor([50.0, 103.0, 104.0], dtype=torch.float64), tolerance=1e-12)
