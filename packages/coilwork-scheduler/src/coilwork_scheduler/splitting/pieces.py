"""Cut the axes of a reduction into pieces: index arithmetic, no nodes.

Axes are cut from the outside inwards, in the order of memory: whole outer axes become ranges of pieces, then
one more axis is divided, evenly where it has a fitting divisor. A program then walks memory that lies
together. Pieces depend on extents and on the device, never on what runs when, so that results are the same
from run to run.

Axes that lie in memory like one are merged before, since there are more ways to cut them evenly: 256 images
of 49 points, channels last, are cut in 49 pieces of 256 points, which fill blocks of a power of two; by
images alone they could be cut in 32 pieces of 392.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    Mul,
    as_expr,
    as_int,
    ceildiv,
    floordiv,
    get_extent,
    get_node,
    mod,
    multiply_all,
    symbol,
)
from coilwork_ir.loops import Reduce
from coilwork_ir.scalar import Scalar, cast, const, index_value, op, substitute_ranges
from coilwork_scheduler.kernels.tile import join_ranges

# ---- Cutting axes ----


# A whole axis may give this many times the pieces asked for.
_EXCESS: Final = 1.5
# See `cut_axes`.
_MISS: Final = 2.0
# So many times the pieces asked for cost less than that others, who have two ranges, read everything again.
_MANY: Final = 8.0
# What a share of idle lanes counts beside as large a share of too many or too few pieces, and the shortest
# blocks that should be full.
_PADDING: Final = 2.0
_FILLED: Final = 128
# Pieces of unequal size that are longer have a multiple of so many points, by which loops walk them: blocks
# then need no mask of their own.
_LONG: Final = 512
_BLOCK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`axis` in `count` pieces of `length` points; the last ones have fewer, or none, unless the cut is
    `even`.
    """

    axis: Expr
    count: Expr
    length: Expr
    even: bool

    @property
    def outer(self) -> Expr:
        """The range of pieces."""
        return symbol(f"{self.axis.name}_piece", extent=self.count)

    @property
    def inner(self) -> Expr:
        """The points of a piece."""
        return symbol(f"{self.axis.name}_point", extent=self.length)

    @property
    def whole(self) -> bool:
        """Every point is a piece."""
        return as_int(self.length) == 1

    @property
    def position(self) -> Expr:
        """The point of `axis` that `outer` and `inner` say."""
        return self.outer if self.whole else self.outer * self.length + self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The axes of a reduction in pieces: `cuts` are of different `axes`, in their order; at most one is
    uneven.
    """

    axes: tuple[Expr, ...]
    cuts: tuple[Cut, ...]

    @property
    def outer(self) -> tuple[Expr, ...]:
        """Ranges of pieces."""
        return tuple(cut.outer for cut in self.cuts)

    @property
    def inner(self) -> tuple[Expr, ...]:
        """Axes of one piece, in the order of the axes."""
        cuts = {cut.axis: cut for cut in self.cuts}
        found = (cuts[axis].inner if axis in cuts else axis for axis in self.axes)
        return tuple(axis for axis in found if as_int(get_extent(axis)) != 1)

    @property
    def count(self) -> Expr:
        """Pieces per result."""
        return multiply_all(cut.count for cut in self.cuts)

    @property
    def mapping(self) -> Mapping[Expr, Expr]:
        """The axes over `outer` and `inner`."""
        ones = {axis: as_expr(0) for axis in self.axes if as_int(get_extent(axis)) == 1}
        return ones | {cut.axis: cut.position for cut in self.cuts}

    @property
    def uneven(self) -> Cut | None:
        """The cut whose last pieces are short."""
        return next((cut for cut in self.cuts if not cut.even), None)

    @property
    def valid(self) -> Scalar | None:
        """True at the points of a piece that exist; `None` where all of them do."""
        cut = self.uneven
        if cut is None:
            return None
        return op("lt", index_value(cut.position), index_value(get_extent(cut.axis)))

    def points_in(self, dtype: DType) -> Scalar:
        """Return the number of points of the piece at `outer`."""
        cut = self.uneven
        if cut is None:
            return cast(index_value(multiply_all(get_extent(axis) for axis in self.inner)), dtype)
        others = multiply_all(get_extent(axis) for axis in self.inner if axis is not cut.inner)
        left = index_value(get_extent(cut.axis) - cut.outer * cut.length)
        inside = op("maximum", op("minimum", left, index_value(cut.length)), const(0, DType.I64))
        return cast(op("mul", inside, index_value(others)), dtype)


def cut_axes(
    axes: Sequence[Expr],
    order: Sequence[Expr],
    sizes: Mapping[Expr, int],
    *,
    wanted: float,
    skip: bool = True,
    miss: float = _MISS,
    held: int = 0,
    unit: int = 1,
) -> Pieces | None:
    """About `wanted` pieces of `axes`; `None` if that leaves nothing to cut, or nothing inside the pieces.

    Args:
        axes: the axes of a reduction.
        order: the same ones, outermost in memory first.
        sizes: their likely extents.
        wanted: likely number of pieces.
        skip: an axis of unknown size may stay whole in each piece if the axes inside it have enough points.
            Without it the cut axes are the first ones of `order`.
        miss: a divisor may miss the number of pieces by this factor, before pieces of unequal size are
            better.
        held: pieces of up to so many points are held on chip, in blocks of a power of two: they should fill
            them.
        unit: pieces of an axis of unknown size, the last of `order`, have a multiple of so many points.
    """
    cuts: dict[Expr, Cut] = {}
    need = wanted
    for place, axis in enumerate(order):
        if need < _EXCESS:
            break
        extent, size = get_extent(axis), sizes[axis]
        if as_int(extent) == 1:
            continue
        if size <= need * _EXCESS:
            cuts[axis] = Cut(axis=axis, count=extent, length=as_expr(1), even=True)
            need /= max(size, 1)
            continue
        known = as_int(extent)
        if known is None and skip and _count_static_points(order[place + 1 :]) >= need:
            continue
        within = 1
        for inner in order[place + 1 :]:
            within *= max(sizes[inner], 1)
        points = unit if axis is order[-1] else 1
        cuts[axis] = _divide(axis, known, need, miss, size=size, within=within, held=held, unit=points)
        break
    pieces = Pieces(axes=tuple(axes), cuts=tuple(cuts[axis] for axis in axes if axis in cuts))
    return pieces if cuts and pieces.inner else None


def _count_static_points(axes: Sequence[Expr]) -> int:
    """Points of the innermost axes whose extents are known."""
    count = 1
    for axis in axes:
        count *= as_int(get_extent(axis)) or 1
    return count


def _divide(
    axis: Expr, known: int | None, need: float, miss: float, *, size: int, within: int, held: int, unit: int
) -> Cut:
    """`axis`, likely of `size` points with so many `within` each, in about `need` pieces, two at least.

    Those of up to `held` points fill a power of two as far as they can. Of an axis of unknown size they have
    a multiple of `unit` points.
    """
    extent = get_extent(axis)
    count = max(2, round(need))
    if known is None:
        even = _divide_by_factor(axis, size, need, miss)
        if even is not None:
            return even
        points = ceildiv(extent, as_expr(count * unit)) * unit
        return Cut(axis=axis, count=as_expr(count), length=points, even=False)

    def badness(divisor: int) -> tuple[float, int]:
        return abs(log(divisor / need)) + _PADDING * log(
            _estimate_block_overhead(known // divisor * within, held)
        ), divisor

    best = min(_divisors(known), key=badness)
    if 1 < best < known and need / miss <= best <= need * miss:
        return Cut(axis=axis, count=as_expr(best), length=as_expr(known // best), even=True)
    length = -(-known // count)
    if within == 1 and length > _FILLED and _estimate_block_overhead(length, held) > 1:
        length = 1 << (length.bit_length() - 1)
    elif length > _LONG:
        length = -(-length // _BLOCK) * _BLOCK
    return Cut(axis=axis, count=as_expr(-(-known // length)), length=as_expr(length), even=False)


def _divide_by_factor(axis: Expr, size: int, need: float, miss: float) -> Cut | None:
    """`axis`, whose extent is a number times open ones, in about `need` pieces of one length; `None` if that
    number does not do it.

    An axis that two ranges were merged to, of pictures and the points of each, say, is cut within each
    picture where there are not too many: then those who have two ranges can share the kernel.
    """
    extent = get_extent(axis)
    match get_node(extent):
        case Mul((first, *others)) if first.is_const and first.value > 1:
            factor, rest = first.value, multiply_all(others)
        case _:
            return None
    likely = max(1, size // factor)
    for outer, count in ((rest, likely), (as_expr(1), 1)):
        best = min(_divisors(factor), key=lambda d: (abs(log(d * count / need)), d))
        length = floordiv(extent, outer * best)
        if (
            need / miss <= best * count <= need * _MANY
            and (best > 1 or outer is rest)
            and as_int(length) != 1
        ):
            return Cut(axis=axis, count=outer * best, length=length, even=True)
    return None


def _estimate_block_overhead(length: int, held: int) -> float:
    """Return the length of the block of a piece, over the piece's own `length`."""
    return (1 << (length - 1).bit_length()) / length if 1 < length <= held else 1.0


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


# ---- Merging axes ----


def merge_axes(order: Sequence[Expr], offsets: Sequence[Expr]) -> tuple[tuple[Expr, ...], dict[Expr, Expr]]:
    """`order`, outermost first, with neighbours merged that all `offsets` see as one, and what those are over
    the merged ones.
    """
    runs: list[list[Expr]] = []
    wholes: list[Expr] = []
    seen = tuple(offsets)
    for axis in order:
        found = join_ranges(wholes[-1], axis, seen) if runs else None
        if found is None:
            runs.append([axis])
            wholes.append(axis)
        else:
            wholes[-1], seen = found
            runs[-1].append(axis)
    mapping: dict[Expr, Expr] = {}
    for run, whole in zip(runs, wholes, strict=True):
        if len(run) > 1:
            mapping.update(_parts(run, whole))
    return tuple(wholes), mapping


def _parts(run: Sequence[Expr], whole: Expr) -> dict[Expr, Expr]:
    """Return the axes of `run` over `whole`, of which they are the digits."""
    found: dict[Expr, Expr] = {}
    for place, axis in enumerate(run):
        quotient = floordiv(whole, multiply_all(get_extent(inner) for inner in run[place + 1 :]))
        found[axis] = quotient if place == 0 else mod(quotient, get_extent(axis))
    return found


# ---- Split plans ----


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """Pieces of a group.

    Its axes are `refined` first, into the axes of the pieces, where that says something. Pieces are `apart`
    in memory, each with all of its results, where a program has all of these, or where storing them is much
    of its time.
    """

    pieces: Pieces
    refined: tuple[tuple[Expr, Expr], ...] = ()
    apart: bool = False

    def apply(self, node: Reduce) -> Reduce:
        """`node`, of the group, along the axes of the pieces."""
        if not self.refined:
            return node
        (body,) = substitute_ranges((node.body,), dict(self.refined))
        return replace(node, axes=self.pieces.axes, body=body)
