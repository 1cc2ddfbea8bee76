"""Chebyshev polynomials of degrees from tensors are eager's, inside and outside [-1, 1]."""

from __future__ import annotations

import math

import pytest
import torch
from lowering_against_eager import assert_as_eager

NAMES = [f"{shifted}chebyshev_polynomial_{letter}" for letter in "tuvw" for shifted in ("", "shifted_")]
# none so close to an end that the rounding of a difference decides
POINTS = [-3.0, -1.7, -1.0, -0.9, -0.4, 0.0, 0.1, 0.5, 0.75, 1.0, 1.2, 2.5]


@pytest.mark.parametrize("name", NAMES)
def test_degrees(name: str) -> None:
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
    # of the second and fourth kind, eager's are made of memory that nothing was written to
    if name[-1] in "tv":
        assert_as_eager(lambda x: function(x, 3), torch.tensor([math.nan]))
    assert_as_eager(lambda x: function(x, 2), torch.ones(0, 2))
