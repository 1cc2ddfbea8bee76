"""Reductions whose results have short runs of memory each: the pixels of a small image, the channels of a
group.

Of 98 bytes that start anywhere, threads load two at a time, which takes an H200 more than twice as long as
loads of 16 bytes. So the points of a run are pieces first: memory has neighbours along results and runs
together, the first reduction goes across them, and the second one adds up each run. Batch norm's statistics
of 256 by 2,048 channels of 7 by 7 pixels and group norm's of 10 channels, channels last, are such.
"""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.index import Expr, as_expr, as_int, extent_of, stride_of
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Load
from coilwork_scheduler.cost_model import KernelWork
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.splitting.pieces import Cut, Cutting, Pieces, cut_axes, merged_axes
from coilwork_scheduler.splitting.reduction_cost import Family, Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Pieces that begin with the points of runs, how many they are, and microseconds that this saves and
    costs.
    """

    cutting: Cutting
    count: int
    saved_us: float
    costs_us: float

    @property
    def pays(self) -> bool:
        """Tell if wide loads save more than another kernel costs."""
        return self.saved_us > self.costs_us

    def note(self, journal: Journal, family: Family) -> None:
        """Record whether `family` is cut so, and why."""
        journal.note(
            "split-runs",
            tuple(b.name for b in family.outputs),
            self.pays,
            "wide loads go across short runs"
            if self.pays
            else "another kernel costs more than narrow loads do",
            pieces=self.count,
            saved_us=round(self.saved_us, 3),
            costs_us=round(self.costs_us, 3),
        )


def runs_of(figures: Figures, family: Family, *, on_chip: bool) -> Runs | None:
    """How to reduce across short runs first, if `family` reads memory by them. Rows `on_chip` are read once
    for all that needs them.
    """
    if any(member.kind not in SELF_COMBINING | {"welford"} for member in family.members):
        return None
    reductions = figures.target(family.members[0]).machine.reductions
    axes = figures.by_memory(family)
    order, refined = merged_axes(axes, figures.offsets(family))
    *outer, run = order
    points = as_int(extent_of(run))
    if points is None or points < 2 or figures.length(outer) < reductions.least_across:
        return None
    if not family.rows or not all(
        _short(figures, family, access, axes[-1], points) for access in family.rows
    ):
        return None
    pieces = _pieces(figures, family, tuple(order), run, points)
    if pieces is None:
        return None
    shape = figures.shape(family)
    read = KernelWork(
        read_bytes=shape.read_bytes,
        write_bytes=0,
        operations=0,
        rows=shape.results,
        row_length=shape.length,
        programs=shape.programs,
    )
    read_us = figures.model.kernel_us(read)
    count = figures.sizes.value(pieces.count)
    second_us = figures.second_us(family, shape, max(count, 1))
    return Runs(
        cutting=Cutting(pieces=pieces, refined=tuple(refined.items())),
        count=count,
        saved_us=(reductions.narrow_slowdown - 1) * read_us,
        costs_us=second_us + (read_us if on_chip else 0.0),
    )


def _short(figures: Figures, family: Family, access: Load, innermost: Expr, points: int) -> bool:
    """Tell if `access` goes through short runs, which wide loads do not fit, of results that lie side by
    side.
    """
    buffer = figures.facts.buffers[access.buffer]
    target = figures.target(family.members[0])
    reductions, wide = target.machine.reductions, target.vector_bytes
    size = buffer.dtype.itemsize
    length = points * size
    if size > reductions.narrow_bytes or length > reductions.short_run_bytes or length % wide == 0:
        return False
    offset = buffer.offset_of(access.index)
    if _stride(offset, innermost) != 1:
        return False
    beside = [r for r in family.ranges if _stride(offset, r) == points]
    together = length
    for r in beside:
        together *= figures.sizes.value(extent_of(r))
    return together >= 2 * reductions.short_run_bytes and together % wide == 0


def _stride(offset: Expr, axis: Expr) -> int | None:
    step = stride_of(offset, axis)
    return None if step is None else as_int(step)


def _pieces(
    figures: Figures, family: Family, order: tuple[Expr, ...], run: Expr, points: int
) -> Pieces | None:
    """The points of the run, and as many pieces of what is outside as fill the device."""
    outer = tuple(axis for axis in order if axis is not run)
    sizes = {axis: figures.sizes.value(extent_of(axis)) for axis in outer}
    length = figures.length(outer)
    target = figures.target(family.members[0])
    reductions = target.machine.reductions
    blocks = figures.shape(family).results * points / reductions.block_results
    wanted = target.multiprocessors * reductions.programs / blocks
    if any(member.kind == "welford" for member in family.members):
        wanted = max(wanted, length / reductions.resident_across)
    wanted = min(wanted, length / reductions.least_across)
    rest = cut_axes(outer, outer, sizes, wanted=wanted, held=figures.rows(family.members[0]).kept_across)
    whole = Cut(axis=run, count=extent_of(run), length=as_expr(1), even=True)
    cuts = (*(rest.cuts if rest is not None else ()), whole)
    if rest is None and wanted >= 2:
        return None
    return Pieces(axes=order, cuts=cuts)
