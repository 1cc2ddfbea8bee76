"""Pieces that fill the device, which results alone leave idle: as many for each result as there is room for
programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, extent_of
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.splitting.pieces import Cutting, cut_axes, merged_axes
from coilwork_scheduler.splitting.reduction_cost import POSITIONS, Family, Figures

# Neighbours in memory, of any type, that begin at multiples of 16 bytes if the first ones do.
_WHOLE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """`count` pieces for each result, and microseconds that one kernel for all takes and those of pieces and
    of their results do.

    `programs` are those of the one kernel. Pieces pay if they take less than the share `clear_win` of its
    time.
    """

    cutting: Cutting
    count: int
    programs: int
    whole_us: float
    split_us: float
    clear_win: float

    @property
    def pays(self) -> bool:
        """Tell if pieces are better than one kernel."""
        return self.split_us < self.clear_win * self.whole_us

    def note(self, journal: Journal, family: Family) -> None:
        """Record whether `family` is cut so, and why."""
        journal.note(
            "split",
            tuple(b.name for b in family.outputs),
            self.pays,
            "pieces fill the device" if self.pays else "a second kernel costs more than idle programs do",
            pieces=self.count,
            programs=self.programs,
            whole_us=round(self.whole_us, 3),
            split_us=round(self.split_us, 3),
        )


def filling_of(figures: Figures, family: Family) -> Filling | None:
    """The pieces of `family` that fill the device; `None` if its results do, or if its rows stay on chip."""
    shape = figures.shape(family)
    wanted, rows = figures.wanted(family, shape), figures.rows(family.members[0])
    if wanted < 2 or (not shape.across and rows.keeps(shape.length)):
        # a row that stays on chip is read once for all that needs it
        return None
    ordered = family.members[0].kind in POSITIONS
    order, refined = family.axes, dict[Expr, Expr]()
    if not ordered:
        order, refined = merged_axes(figures.by_memory(family), figures.offsets(family))
        crossing = figures.crossing(family, order, refined)
        if crossing is not None and figures.is_narrow(family, crossing.outer):
            # its few points are neighbours of each other: a piece has all of them
            order = (*(axis for axis in order if axis is not crossing.outer), crossing.outer)
    pieces = cut_axes(
        order if refined else family.axes,
        order,
        {axis: figures.sizes.value(extent_of(axis)) for axis in order},
        wanted=wanted,
        skip=not ordered,
        held=rows.kept_across if shape.across else rows.kept_points,
        unit=1 if shape.across else _WHOLE,
    )
    if pieces is None:
        return None
    count = max(figures.sizes.value(pieces.count), 1)
    target = figures.target(family.members[0])
    reductions = target.machine.reductions
    return Filling(
        cutting=Cutting(
            pieces=pieces,
            refined=tuple(refined.items()),
            apart=shape.across
            and count <= reductions.few_pieces
            and shape.read_bytes <= target.resident_bytes,
        ),
        count=count,
        programs=shape.programs,
        whole_us=figures.reduce_us(shape, 1),
        split_us=figures.reduce_us(shape, count) + figures.second_us(family, shape, count),
        clear_win=reductions.clear_win,
    )
