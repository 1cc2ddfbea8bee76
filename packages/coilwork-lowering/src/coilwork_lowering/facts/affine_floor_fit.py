"""Integers that lie on a straight line, but for rounding down, and stop at its ends: `(factor * i + offset)
// divisor`.

The slope is searched for along the Stern-Brocot tree, which has every fraction in it, the simplest first.
Where a slope does not fit, two of the values tell whether it is too small or too large, and by how much at
least.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import torch
from torch import Tensor

# Simplest fractions come first: what is not found by then is hardly a scale that somebody wrote down.
_LARGEST_DIVISOR: Final = 4096


@dataclass(frozen=True, slots=True)
class Line:
    """`(factor * i + offset) // divisor`."""

    factor: int
    offset: int
    divisor: int


def line_through(values: Tensor) -> Line | None:
    """The line of the simplest slope that gives `values`, `i64`, once it is bounded by the first and the last
    of them.

    None if they do not increase, or if no simple slope fits.
    """
    if len(values) < 2 or bool((values[1:] < values[:-1]).any()) or bool(values[0] == values[-1]):
        return None
    # What is equal to the first value or the last one may have been stopped there: of either, one element
    # counts, and in one direction.
    start = int((values == values[0]).sum()) - 1
    end = len(values) - int((values == values[-1]).sum())
    at, inner = torch.arange(start, end + 1), values[start : end + 1]
    whole = _mean_slope(inner[1:-1] if len(inner) > 3 else inner)
    least_slope, largest_slope = Fraction(whole), Fraction(whole + 1)
    # of slope - whole, which is between 0 and 1: a fraction below and one above
    below, above = (0, 1), (1, 1)
    numerator, divisor = below
    while divisor <= _LARGEST_DIVISOR and least_slope < largest_slope:
        factor = whole * divisor + numerator
        # the offset is no less than this, and less than that and a divisor
        bounds = inner * divisor - at * factor
        low, high = int(bounds[1:].argmax()) + 1, int(bounds[:-1].argmin())
        if int(bounds[low]) < int(bounds[high]) + divisor:
            return Line(factor, int(bounds[low]), divisor)
        rise, run = int(inner[low] - inner[high]), low - high
        if run > 0:
            below, least_slope = (numerator, divisor), max(least_slope, Fraction(rise - 1, run))
        else:
            above, largest_slope = (numerator, divisor), min(largest_slope, Fraction(rise - 1, run))
        numerator, divisor = below[0] + above[0], below[1] + above[1]
    return None


def _mean_slope(values: Tensor) -> int:
    """Rounded down."""
    return int(values[-1] - values[0]) // (len(values) - 1)
