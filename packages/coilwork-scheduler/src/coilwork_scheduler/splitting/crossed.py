"""Reductions along two axes, of which some operands have their neighbours along one, and some along the
other.

    x[n, c, p]   channels last: neighbours along c
    y[n, c, p]   in planes: neighbours along p

A program that goes along one axis finds a line of memory for each element of what lies along the other one,
and a multiprocessor looks up about one line in a cycle: 67 million elements take an H200 289 us so, where
reading them takes 67. So each point of an axis becomes a piece. Neighbouring pieces make blocks, as
neighbouring results do, and blocks read whole lines of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coilwork_ir.index import Expr, as_expr, as_int, extent_of, substitute, symbol
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.splitting.filling import Filling
from coilwork_scheduler.splitting.pieces import Cut, Cutting, Pieces, cut_axes, merged_axes
from coilwork_scheduler.splitting.reduction_cost import POSITIONS, Family, Figures, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """`count` pieces for each result, and microseconds that kernels along one axis and those of pieces take.

    Pieces pay if they take less than the share `clear_win` of the others' time.
    """

    cutting: Cutting
    count: int
    along_us: float
    split_us: float
    clear_win: float

    @property
    def pays(self) -> bool:
        """Tell if blocks are better than looking up a line for each element."""
        return self.split_us < self.clear_win * self.along_us

    def note(self, journal: Journal, family: Family) -> None:
        """Record whether `family` is cut so, and why."""
        journal.note(
            "split-crossed",
            tuple(b.name for b in family.outputs),
            self.pays,
            "blocks read whole lines of both layouts"
            if self.pays
            else "a second kernel costs more than looking lines up",
            pieces=self.count,
            along_us=round(self.along_us, 3),
            split_us=round(self.split_us, 3),
        )


def crossed_of(figures: Figures, family: Family, filling: Filling | None) -> Crossed | None:
    """The pieces of `family` whose blocks read whole lines; `None` if its operands lie alike, or if its rows
    stay on chip. `filling` are pieces that go along one axis, if there are any.
    """
    shape, rows = figures.shape(family), figures.rows(family.members[0])
    if shape.across or rows.keeps(shape.length) or family.members[0].kind in POSITIONS:
        return None
    order, refined = merged_axes(figures.by_memory(family), figures.offsets(family))
    crossing = figures.crossing(family, order, refined)
    if crossing is None or any(figures.is_narrow(family, one) for one in (crossing.outer, crossing.inner)):
        return None
    target = figures.target(family.members[0])
    reductions = target.machine.reductions
    # either will do: of fewer pieces less is stored
    size = {axis: max(figures.sizes.value(extent_of(axis)), 1) for axis in (crossing.outer, crossing.inner)}
    axis = min(crossing.inner, crossing.outer, key=lambda one: size[one])
    points = size[axis]
    if points > reductions.most_pieces:
        divided = _digits(axis, least=reductions.block_results, most=reductions.most_pieces)
        if divided is None:
            return None
        high, low = divided
        over = {axis: high * extent_of(low) + low}
        refined = over | {one: substitute(whole, over) for one, whole in refined.items()}
        order = tuple(high if one is axis else one for one in (*order, low))
        axis, points = low, figures.sizes.value(extent_of(low))
    if shape.length // points < reductions.least_across:
        return None
    blocks = replace(
        shape,
        results=shape.results * points,
        length=shape.length // points,
        across=True,
        crossed=True,
        programs=rows.count_programs(shape.results * points, across=True),
    )
    pieces = _pieces(figures, family, blocks, [one for one in order if one is not axis], axis)
    count = max(figures.sizes.value(pieces.count), 1)
    along_us = figures.reduce_us(shape, 1) if filling is None else filling.split_us
    lookups_us = crossing.elements / (target.multiprocessors * reductions.lines_per_us)
    return Crossed(
        cutting=Cutting(pieces=pieces, refined=tuple(refined.items())),
        count=count,
        along_us=max(along_us, target.launch_us + lookups_us),
        split_us=figures.reduce_us(blocks, count // points) + figures.second_us(family, shape, count),
        clear_win=reductions.clear_win,
    )


def _pieces(figures: Figures, family: Family, blocks: Shape, rest: Sequence[Expr], axis: Expr) -> Pieces:
    """A piece for each point of `axis`, and as many of them along the `rest` as fill the device with
    `blocks`.
    """
    most = figures.target(family.members[0]).machine.reductions.most_pieces
    sizes = {one: figures.sizes.value(extent_of(one)) for one in (*rest, axis)}
    within = cut_axes(
        rest,
        rest,
        sizes,
        wanted=min(figures.wanted(family, blocks), most / max(sizes[axis], 1)),
        held=figures.rows(family.members[0]).kept_across,
    )
    # neighbours in memory of what pieces come to are those of the blocks
    whole = Cut(axis=axis, count=extent_of(axis), length=as_expr(1), even=True)
    return Pieces(axes=(*rest, axis), cuts=(*(() if within is None else within.cuts), whole))


def _digits(axis: Expr, *, least: int, most: int) -> tuple[Expr, Expr] | None:
    """The higher and the lower digits of `axis`, the lower ones from `least` to `most`; `None` if no such
    number divides it, or if its size is unknown.
    """
    extent = as_int(extent_of(axis))
    if extent is None:
        return None
    low = max(divisor for divisor in range(1, most + 1) if extent % divisor == 0)
    if low < least:
        return None
    high = symbol(f"{axis.name}_high", extent=as_expr(extent // low))
    return high, symbol(f"{axis.name}_low", extent=as_expr(low))
