"""Chebyshev polynomials of degrees from tensors are eager's, inside and outside [-1, 1]."""

from __future__ import annotations

import math

import loop_evaluator
import pytest
import torch
from lowering_against_eager import assert_as_eager, trace_and_lower

NAMES = [f"{shifted}chebyshev_polynomial_{letter}" for letter in "tuvw" for shifted in ("", "shifted_")]
# none so close to an end that the rounding of a difference decides
POINTS = [-3.0, -1.7, -1.0, -0.9, -0.4, 0.0, 0.1, 0.5, 0.75, 1.0, 1.2, 2.5]


@pytest.mark.parametrize("name", NAMES)
def test_polynomials_of_each_degree_are_those_of_eager(name: str) -> None:
    function = getattr(torch.special, name)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        points = torch.tensor(POINTS, dtype=dtype)[:, None]
        # degrees are truncated; below 0 a polynomial is 0
        degrees = torch.arange(-1, 12, dtype=dtype) + 0.3
        assert_as_eager(function, points, degrees, tolerance=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_as_operands(name: str) -> None:
    function = getattr(torch.special, name)
    assert_as_eager(lambda x: function(x, 5), torch.tensor(POINTS), tolerance=1e-5)
    assert_as_eager(lambda n: function(0.3, n), torch.arange(7), tolerance=1e-5)
    # eager's of NaN may be made of memory that nothing was written to
    nan = torch.tensor([math.nan])
    lowered = trace_and_lower(lambda x: function(x, 3), (nan,))
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [nan])
    assert found.isnan().all()
    assert_as_eager(lambda x: function(x, 2), torch.ones(0, 2))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_degrees_that_are_infinite(name: str) -> None:
    function = getattr(torch.special, name)
    edges = torch.tensor([-math.inf, math.inf])
    # what comes of degrees that are no integers is 0; with infinite numbers, the recurrence decides
    assert_as_eager(function, edges, torch.arange(-1.0, 6)[:, None])
    assert_as_eager(function, torch.tensor(POINTS)[:, None], torch.tensor([*edges.tolist(), math.nan, -1e30]))
