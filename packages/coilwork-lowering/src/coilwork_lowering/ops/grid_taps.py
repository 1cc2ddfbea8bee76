"""Which elements of an image a sampling point reads, and how much each of them counts: one dimension at a
time.

A grid holds coordinates from -1 to 1. Along each dimension such a coordinate becomes a position between
elements, which padding brings into the image or leaves outside; an interpolation then names one, two or four
elements around it, its taps. Derivatives are of the same formulas: those of weights by the position, and of
the position by the coordinate.

Sizes and positions are floats here, so that what lies far outside, or is no number, is compared before it
becomes an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.scalar_math import (
    add,
    both,
    div,
    either,
    eq,
    ge,
    gt,
    index,
    le,
    like,
    lt,
    mul,
    neg,
    select,
    sub,
)

# Of the cubic convolution (Keys 1981), as ATen.
_CUBIC: Final = -0.75


class Interpolation(Enum):
    """As ATen numbers them."""

    LINEAR = 0
    NEAREST = 1
    CUBIC = 2

    @property
    def taps(self) -> int:
        """Elements per dimension."""
        return {Interpolation.LINEAR: 2, Interpolation.NEAREST: 1, Interpolation.CUBIC: 4}[self]


class Padding(Enum):
    """As ATen numbers them."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


class Kernel(Enum):
    """Kernels of ATen's, which differ in rounding, and in what becomes of coordinates that are no numbers."""

    # scales by half the size; without padding, NaN makes NaN
    VECTORISED = "two dimensions on a CPU"
    # doubles the size; without padding, nothing is read at NaN, with padding the last element
    SCALAR = "three dimensions on a CPU"
    # as the latter, but with padding the first element
    DEVICE = "accelerators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a grid samples an image.

    Attributes:
        corners: -1 and 1 are the centres of the outermost elements, not their edges.
        kernel: which of ATen's kernels to follow where positions lie exactly between elements, or are no
            numbers.
    """

    interpolation: Interpolation
    padding: Padding
    corners: bool
    kernel: Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """An element along one dimension.

    Attributes:
        at: its coordinate, in `i64`; 0 where it is not inside.
        inside: whether it lies in the image.
        weight: how much it counts.
        slope: the derivative of `weight` by the coordinate in the grid.
    """

    at: Scalar
    inside: Scalar
    weight: Scalar
    slope: Scalar


def taps_of(coordinate: Scalar, size: Expr, sampling: Sampling) -> tuple[Tap, ...]:
    """The taps of a coordinate in the grid, along a dimension of `size` elements."""
    extent = cast(index(size), coordinate.dtype)
    raw = _position(coordinate, extent, sampling)
    one = like(1, raw)
    scale = div(sub(extent, one) if sampling.corners else extent, like(2, raw))
    if sampling.interpolation is Interpolation.CUBIC:
        return _cubic(raw, scale, extent, sampling)
    position, slope = _pad_position(raw, extent, sampling)
    if sampling.interpolation is Interpolation.NEAREST:
        return (_tap(op("round", position), extent, one, like(0, raw)),)
    low = op("floor", position)
    above = sub(position, low)
    scale = mul(scale, slope)
    return (_tap(low, extent, sub(one, above), neg(scale)), _tap(add(low, one), extent, above, scale))


def choose_tap(taps: Sequence[Tap], number: Scalar) -> Tap:
    """Tap `number`, an `i64` known at run time only."""
    found = taps[-1]
    for k in reversed(range(len(taps) - 1)):
        mine, tap = eq(number, const(k, DType.I64)), taps[k]
        found = Tap(
            at=select(mine, tap.at, found.at),
            inside=select(mine, tap.inside, found.inside),
            weight=select(mine, tap.weight, found.weight),
            slope=select(mine, tap.slope, found.slope),
        )
    return found


def _position(coordinate: Scalar, extent: Scalar, sampling: Sampling) -> Scalar:
    """0 is the first element's centre."""
    one, two, half = (like(x, coordinate) for x in (1, 2, 0.5))
    shifted = add(coordinate, one)
    if sampling.corners:
        last = sub(extent, one)
        return (
            mul(shifted, div(last, two))
            if sampling.kernel is Kernel.VECTORISED
            else mul(div(shifted, two), last)
        )
    if sampling.kernel is Kernel.VECTORISED:
        return sub(mul(shifted, div(extent, two)), half)
    return div(sub(mul(shifted, extent), one), two)


def _pad_position(position: Scalar, extent: Scalar, sampling: Sampling) -> tuple[Scalar, Scalar]:
    """A position brought into the image, and the derivative of that."""
    one = like(1, position)
    if sampling.padding is Padding.ZEROS:
        return position, one
    if sampling.padding is Padding.BORDER:
        return _clip_position(position, extent, sampling)
    reflected, sign = _reflect_position(position, extent, sampling)
    inside, slope = _clip_position(reflected, extent, sampling)
    return inside, mul(sign, slope)


def _clip_position(position: Scalar, extent: Scalar, sampling: Sampling) -> tuple[Scalar, Scalar]:
    """Between the outermost elements; what is no number is one of them."""
    zero, one = like(0, position), like(1, position)
    last = sub(extent, one)
    if sampling.kernel is Kernel.SCALAR:
        inside = select(le(position, zero), zero, select(lt(position, last), position, last))
    else:
        inside = select(gt(position, zero), select(lt(position, last), position, last), zero)
    slope = select(either(le(position, zero), ge(position, last)), zero, one)
    return inside, slope


def _reflect_position(position: Scalar, extent: Scalar, sampling: Sampling) -> tuple[Scalar, Scalar]:
    """Reflected, as often as it takes, by the outermost elements' centres or edges."""
    zero, one, two = (like(x, position) for x in (0, 1, 2))
    low = zero if sampling.corners else like(-0.5, position)
    span = sub(extent, one) if sampling.corners else extent
    from_low = sub(position, low)
    distance = op("abs", from_low)
    rest = op("fmod", distance, span)
    flips = op("floor", div(distance, span))
    is_even = eq(op("fmod", flips, two), zero)
    found = add(select(is_even, rest, sub(span, rest)), low)
    turned = select(is_even, one, neg(one))
    sign = select(lt(from_low, zero), neg(turned), turned)
    nothing = eq(span, zero)
    return select(nothing, zero, found), select(nothing, zero, sign)


def _tap(position: Scalar, extent: Scalar, weight: Scalar, slope: Scalar) -> Tap:
    zero = like(0, position)
    inside = both(ge(position, zero), lt(position, extent))
    return Tap(at=cast(select(inside, position, zero), DType.I64), inside=inside, weight=weight, slope=slope)


def _cubic(raw: Scalar, scale: Scalar, extent: Scalar, sampling: Sampling) -> tuple[Tap, ...]:
    """Four taps, each padded by itself."""
    one, two = like(1, raw), like(2, raw)
    low = op("floor", raw)
    above = sub(raw, low)
    below = sub(one, above)
    weights = (
        (_outer(add(above, one)), _outer_slope(add(above, one))),
        (_inner(above), _inner_slope(above)),
        (_inner(below), neg(_inner_slope(below))),
        (_outer(sub(two, above)), neg(_outer_slope(sub(two, above)))),
    )
    found = []
    for k, (weight, slope) in enumerate(weights):
        position, _ = _pad_position(add(low, like(k - 1, raw)), extent, sampling)
        # reflected by edges, whole numbers stay whole but for rounding
        found.append(_tap(op("trunc", position), extent, weight, mul(slope, scale)))
    return tuple(found)


def _inner(x: Scalar) -> Scalar:
    """Of taps up to 1 away."""
    slanted = sub(mul(like(_CUBIC + 2, x), x), like(_CUBIC + 3, x))
    return add(mul(mul(slanted, x), x), like(1, x))


def _inner_slope(x: Scalar) -> Scalar:
    return mul(sub(mul(like(3 * (_CUBIC + 2), x), x), like(2 * (_CUBIC + 3), x)), x)


def _outer(x: Scalar) -> Scalar:
    """Of taps 1 to 2 away."""
    inner = add(mul(sub(mul(like(_CUBIC, x), x), like(5 * _CUBIC, x)), x), like(8 * _CUBIC, x))
    return sub(mul(inner, x), like(4 * _CUBIC, x))


def _outer_slope(x: Scalar) -> Scalar:
    return add(mul(sub(mul(like(3 * _CUBIC, x), x), like(10 * _CUBIC, x)), x), like(8 * _CUBIC, x))


def spread(number: Scalar, each: int, dims: int) -> tuple[Scalar, ...]:
    """The numbers of the taps of each dimension, of which there are `each`, from the number of a combination
    of them.
    """
    found = []
    for _ in range(dims):
        found.append(op("mod", number, const(each, DType.I64)))
        number = op("floordiv", number, const(each, DType.I64))
    return tuple(reversed(found))


def combinations(interpolation: Interpolation, dims: int) -> Expr:
    """How many elements a point reads."""
    return as_expr(interpolation.taps**dims)
