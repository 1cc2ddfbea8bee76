"""Pieces of columns, as many as programs walk rows with: each sums its columns of what it reduces rows of,
from one read.

Which reductions of rows may have columns beside them, `beside_rows.py` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coilwork_ir.index import Expr, bounds, extent_of, product
from coilwork_ir.loops import Reduce
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Load
from coilwork_scheduler.cost import KernelWork
from coilwork_scheduler.fusion.alignment import refine, split_over, symbols_over
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.splitting.beside_rows import RowReductions
from coilwork_scheduler.splitting.pieces import Cutting, cut_axes
from coilwork_scheduler.splitting.reduction_cost import Family, Figures, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """`count` pieces, bytes that the rows' kernel has read already, and microseconds that a kernel of its own
    and a share of that take.

    Pieces pay if they take less than the share `clear_win` of the other's time.
    """

    cutting: Cutting
    count: int
    shared_read_bytes: int
    apart_us: float
    walked_us: float
    clear_win: float

    @property
    def pays(self) -> bool:
        """Tell if the reading saved outweighs the pieces' results."""
        return self.walked_us < self.clear_win * self.apart_us

    def note(self, journal: Journal, family: Family) -> None:
        """Record whether `family` is cut so, and why."""
        journal.note(
            "split-walked",
            tuple(b.name for b in family.outputs),
            self.pays,
            "columns are summed where rows are reduced"
            if self.pays
            else "pieces cost more than a second reading",
            pieces=self.count,
            shared_read_bytes=self.shared_read_bytes,
            apart_us=round(self.apart_us, 3),
            walked_us=round(self.walked_us, 3),
        )


def walked_of(
    figures: Figures, family: Family, rows: RowReductions, *, otherwise_us: float | None
) -> Walked | None:
    """Pieces of `family` for a kernel of `rows` that reads the same; `None` if none has room for its sums.

    In pieces that fill the device it takes `otherwise_us`, if it can be cut so.
    """
    shape = figures.shape(family)
    if (
        not shape.across
        or shape.crossed
        or any(member.kind not in SELF_COMBINING for member in family.members)
    ):
        return None
    if not figures.rows(family.members[0]).keeps_beside_sums(1, sums=len(family.outputs), reads=1):
        return None
    owners = {access: member for member in family.members for access in rows_of(member)}
    partners = {access: _partner(figures, family, rows, owners[access], access) for access in family.rows}
    beside = [access for access, found in partners.items() if found is not None]
    if not beside:
        return None
    axes, refined = _refined(family.axes, [found for found in partners.values() if found is not None])
    target = figures.target(family.members[0])
    pieces = cut_axes(
        axes,
        axes,
        {axis: figures.sizes.value(extent_of(axis)) for axis in axes},
        wanted=target.multiprocessors * target.machine.launches.full_programs,
        skip=False,
        miss=target.machine.reductions.walked_miss,
    )
    if pieces is None:
        return None
    count = max(figures.sizes.value(pieces.count), 1)
    shared = sum(figures.touched(access) for access in beside)
    apart_us = figures.reduce_us(shape, 1)
    return Walked(
        cutting=Cutting(pieces=pieces, refined=tuple(refined.items()), apart=True),
        count=count,
        shared_read_bytes=shared,
        apart_us=apart_us if otherwise_us is None else min(apart_us, otherwise_us),
        walked_us=_walked_us(figures, family, count, shared),
        clear_win=target.machine.reductions.clear_win,
    )


def _walked_us(figures: Figures, family: Family, count: int, shared: int) -> float:
    """Return what `count` pieces add to the time of a kernel that reads `shared` bytes of them anyhow, and
    the time to reduce their results.
    """
    shape = figures.shape(family)
    alone = KernelWork(
        read_bytes=shared,
        write_bytes=0,
        operations=0,
        rows=shape.length,
        row_length=shape.results,
        programs=count,
    )
    moved = figures.moved(family, shape, count)
    more = replace(alone, read_bytes=max(shape.read_bytes, shared), write_bytes=moved)
    added_us = figures.model.kernel_us(more) - figures.model.kernel_us(alone)
    return added_us + figures.second_us(family, shape, count, across=True)


def _partner(
    figures: Figures, family: Family, rows: RowReductions, member: Reduce, access: Load
) -> Reduce | None:
    """A reduction of rows of what `member` loads by `access` whose kernel has room for the sums
    of `family`.
    """
    found = rows.partner(member, access)
    if found is None:
        return None
    longest = bounds(product(extent_of(axis) for axis in found.axes)).hi
    reads = {load.buffer for load in (*family.rows, *rows_of(found))}
    if longest is None:
        return None
    walks = figures.rows(found)
    return found if walks.keeps_beside_sums(longest, sums=len(family.outputs), reads=len(reads)) else None


def _refined(
    axes: tuple[Expr, ...], partners: Sequence[Reduce]
) -> tuple[tuple[Expr, ...], Mapping[Expr, Expr]]:
    """`axes` in as many parts as some of `partners` goes through rows with, and what they are over the parts.

    So that all that joins one kernel is cut alike, though it sums `[batch * tokens]` here and `[batch,
    tokens]` there.
    """
    extents = tuple(extent_of(axis) for axis in axes)
    best: tuple[tuple[Expr, ...], Mapping[Expr, Expr]] = (axes, {})
    for rows in partners:
        common = refine(extents, tuple(extent_of(r) for r in rows.ranges))
        if common is not None and len(common.pieces) > len(best[0]):
            parts = symbols_over(axes, common.first, common.pieces, "row")
            best = (parts, split_over(axes, common.first, parts))
    return best
