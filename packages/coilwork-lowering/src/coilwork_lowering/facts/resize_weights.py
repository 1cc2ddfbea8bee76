"""Windows and weights of a resized image, seen from the image: the transpose of interpolation.

An element of the result is a weighted sum of image elements next to it: two along each dimension for linear
resizing, four for cubic. Seen from the image, an element counts for a window of results that moves evenly,
`(factor * i + offset) // divisor`, as wide as the widest. All of it is known at compile time, as sizes are.
Weights are computed in the program's type. Enlarging by a whole factor has the same weights for all elements
but the first and the last, so they are numbers and nothing is left to compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import torch
from torch import Tensor

from coilwork_lowering.torch_compat.graphs import use_real_tensors

# Of eager's cubic polynomials, where they do not antialias.
CUBIC: Final = -0.75
_LARGEST_DIVISOR: Final = 4096
# Of an image that stands for longer ones: more elements than have borders in their windows.
_SHORT: Final = 8
# By how much the weights of eager may be off, rounded as they are, for exact ones to stand for them.
_ROUNDED: Final = 1e-4
# Of a weight in `f64`: what is left of 0 by rounding.
_NOTHING: Final = 1e-13


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """One dimension of `size` elements that becomes one of `count`.

    Attributes:
        scale: elements of the image per element of the result.
        corners: the first and last elements of both lie upon each other, not the edges of them.
        cubic: resized by cubic polynomials, not linearly.
    """

    size: int
    count: int
    scale: float
    corners: bool
    cubic: bool

    def places(self, dtype: torch.dtype) -> Tensor:
        """Positions in the image of the result's elements, as the program computes them."""
        at = torch.arange(self.count).to(dtype)
        places = at * self.scale if self.corners else (at + 0.5) * self.scale - 0.5
        low, high = self.bounds
        return places.clamp(low, high)

    @property
    def bounds(self) -> tuple[int, int]:
        """Limits of places: beyond them only the border element counts."""
        return (-1, self.size) if self.cubic else (0, self.size - 1)

    def taps(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the elements of the image that each element of the result reads, and their weights: `(taps,
        count)`.
        """
        places = self.places(dtype)
        first = places.floor()
        t = places - first
        if self.cubic:
            weights = torch.stack([_cubic_far(t + 1), _cubic_near(t), _cubic_near(1 - t), _cubic_far(2 - t)])
            steps = torch.arange(-1, 3)[:, None]
        else:
            weights, steps = torch.stack([1 - t, t]), torch.arange(2)[:, None]
        return (first.to(torch.int64) + steps).clamp(0, self.size - 1), weights


def _cubic_near(x: Tensor) -> Tensor:
    return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1


def _cubic_far(x: Tensor) -> Tensor:
    return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The weights in the window of every element: `inner`, but of the `first` and the `last` one.

    Where the window reaches over the result's border, weights are as in the middle: nothing is read there.
    """

    first: tuple[float, ...]
    inner: tuple[float, ...]
    last: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWindow:
    """The results that element `i` counts for: `width` ones from `(factor * i + offset) // divisor` on, some
    of which may not exist.

    Attributes:
        weights: where they repeat.
        bounded: whether places have to be limited to their bounds, below and above.
    """

    factor: int
    offset: int
    divisor: int
    width: int
    weights: Repeated | None
    bounded: tuple[bool, bool]


def find_resize_window(side: Resizing, dtype: torch.dtype, *, exact: bool = True) -> ResizeWindow:
    """Return the window of `side`, with weights computed in `dtype`; with `exact`, exact ones instead where
    rounding does little.
    """
    with use_real_tensors():
        return _compute_window(side, dtype, exact)


def _compute_window(side: Resizing, dtype: torch.dtype, exact: bool) -> ResizeWindow:
    many = _find_whole_factor(side)
    if many and (many & (many - 1) == 0 or (exact and side.size * torch.finfo(dtype).eps <= _ROUNDED)):
        # a longer image has more of what is in the middle of this one, where places are hardly rounded
        short = min(side.size, _SHORT)
        side = replace(side, size=short, count=many * short, scale=1 / many)
        dtype = torch.float64
    elements, weights = side.taps(dtype)
    counts = weights.abs() > _NOTHING if dtype is torch.float64 else weights != 0
    element, weight = elements[counts], weights[counts]
    result = torch.arange(side.count).expand_as(elements)[counts]
    low = torch.full((side.size,), side.count).scatter_reduce(0, element, result, "amin")
    high = torch.full((side.size,), -1).scatter_reduce(0, element, result, "amax")
    used = torch.nonzero(high >= 0)[:, 0]
    slope = _slope(side)
    factor, divisor = slope.numerator, slope.denominator
    offset = int((divisor * (low[used] + 1) - 1 - factor * used).min())
    start = torch.div(torch.arange(side.size) * factor + offset, divisor, rounding_mode="floor")
    width = int((high[used] - start[used]).max()) + 1
    repeated = None
    if side.size * width <= 1 << 22:
        table = torch.zeros(side.size, width, dtype=dtype)
        table.index_put_((element, result - start[element]), weight, accumulate=True)
        repeated = _read_repeats(table, start[:, None] + torch.arange(width), side.count)
    places = side.scale * (torch.tensor([0, side.count - 1]) + (0.0 if side.corners else 0.5))
    places = places - (0.0 if side.corners else 0.5)
    bounds = side.bounds
    return ResizeWindow(
        factor=factor,
        offset=offset,
        divisor=divisor,
        width=width,
        weights=repeated,
        # a little too early: places are rounded
        bounded=(float(places[0]) < bounds[0] + 0.01, float(places[1]) > bounds[1] - 0.01),
    )


def _find_whole_factor(side: Resizing) -> int:
    """Return the factor by which the image grows; 0 if it is no whole number, or if corners are aligned."""
    many = round(1 / side.scale) if side.scale > 0 else 0
    is_whole = side.count == many * side.size and math.isclose(side.scale * many, 1, rel_tol=1e-9)
    return many if is_whole and not side.corners else 0


def _slope(side: Resizing) -> Fraction:
    """Elements of the result by which windows move on, about."""
    return Fraction(1 / side.scale).limit_denominator(_LARGEST_DIVISOR) if side.scale > 0 else Fraction(0)


def _read_repeats(table: Tensor, results: Tensor, count: int) -> Repeated | None:
    exists = (results >= 0) & (results < count)
    size = len(table)
    inner = table[size // 2]
    rows = torch.where(exists, table, inner)
    near = _NOTHING if table.dtype is torch.float64 else 0.0
    if bool(((rows[1:-1] - inner).abs() > near).any()):
        return None
    return Repeated(first=_numbers(rows[0]), inner=_numbers(inner), last=_numbers(rows[-1]))


def _numbers(row: Tensor) -> tuple[float, ...]:
    return tuple(float(weight) for weight in row)
