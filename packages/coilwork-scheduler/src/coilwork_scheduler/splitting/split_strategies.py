"""Strategies for splitting a group of reductions: by occupancy, by two layouts, and by short runs of memory.

By occupancy: as many pieces for each result as there is room for programs, where results alone leave the
device idle.

By two layouts: some operands have their neighbours along one reduced axis, and others along another, as `x[n,
c, p]` channels last beside `y[n, c, p]` in planes. A program that goes along one axis looks up a line of
memory for each element of the other operand, about one line per cycle and multiprocessor: 67 million elements
take an H200 289 us so, where reading them takes 67. So each point of an axis becomes a piece. Neighbouring
pieces make blocks, which read whole lines of both.

By short runs: results have short runs of memory each, as the pixels of a small image or the channels of a
group. Threads load two bytes at a time of 98 that start anywhere, which takes an H200 more than twice as long
as loads of 16 bytes. So the points of a run are pieces first. The first reduction goes across runs, with wide
loads, and the second one adds up each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, find_stride, get_extent, substitute, symbol
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Load
from coilwork_scheduler.cost_model import KernelWork
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.splitting.pieces import Cut, Pieces, SplitPlan, cut_axes, merge_axes
from coilwork_scheduler.splitting.reduction_cost import (
    POSITIONS,
    ReductionCost,
    ReductionGroup,
    ReductionShape,
)

# ---- By occupancy ----


# Neighbours in memory, of any type, that begin at multiples of 16 bytes if the first ones do.
_WHOLE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupancySplit:
    """`count` pieces for each result, and microseconds that one kernel for all takes and those of pieces and
    of their results do.

    `programs` are those of the one kernel. Pieces pay if they take less than the share `clear_win` of its
    time.
    """

    plan: SplitPlan
    count: int
    programs: int
    whole_us: float
    split_us: float
    clear_win: float

    @property
    def pays(self) -> bool:
        """Tell if pieces are better than one kernel."""
        return self.split_us < self.clear_win * self.whole_us

    def note(self, remarks: Remarks, group: ReductionGroup) -> None:
        """Record whether `group` is cut so, and why."""
        remarks.note(
            "split",
            tuple(b.name for b in group.outputs),
            self.pays,
            "pieces fill the device" if self.pays else "a second kernel costs more than idle programs do",
            pieces=self.count,
            programs=self.programs,
            whole_us=round(self.whole_us, 3),
            split_us=round(self.split_us, 3),
        )


def find_occupancy_split(cost: ReductionCost, group: ReductionGroup) -> OccupancySplit | None:
    """Return the pieces of `group` that fill the device; `None` if its results do, or if its rows stay on
    chip.
    """
    shape = cost.shape(group)
    wanted, rows = cost.count_pieces(group, shape), cost.rows(group.members[0])
    if wanted < 2 or (not shape.across and rows.keeps(shape.length)):
        # a row that stays on chip is read once for all that needs it
        return None
    ordered = group.members[0].kind in POSITIONS
    order, refined = group.axes, dict[Expr, Expr]()
    if not ordered:
        order, refined = merge_axes(cost.order_axes(group), cost.offsets(group))
        crossing = cost.find_crossing(group, order, refined)
        if crossing is not None and cost.is_narrow(group, crossing.outer):
            # its few points are neighbours of each other: a piece has all of them
            order = (*(axis for axis in order if axis is not crossing.outer), crossing.outer)
    pieces = cut_axes(
        order if refined else group.axes,
        order,
        {axis: cost.sizes.value(get_extent(axis)) for axis in order},
        wanted=wanted,
        skip=not ordered,
        held=rows.kept_across if shape.across else rows.kept_points,
        unit=1 if shape.across else _WHOLE,
    )
    if pieces is None:
        return None
    count = max(cost.sizes.value(pieces.count), 1)
    target = cost.target(group.members[0])
    reductions = target.machine.reductions
    return OccupancySplit(
        plan=SplitPlan(
            pieces=pieces,
            refined=tuple(refined.items()),
            apart=shape.across
            and count <= reductions.few_pieces
            and shape.read_bytes <= target.resident_bytes,
        ),
        count=count,
        programs=shape.programs,
        whole_us=cost.reduce_us(shape, 1),
        split_us=cost.reduce_us(shape, count) + cost.second_us(group, shape, count),
        clear_win=reductions.clear_win,
    )


# ---- By two layouts ----


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLayoutSplit:
    """`count` pieces for each result, and microseconds that kernels along one axis and those of pieces take.

    Pieces pay if they take less than the share `clear_win` of the others' time.
    """

    plan: SplitPlan
    count: int
    along_us: float
    split_us: float
    clear_win: float

    @property
    def pays(self) -> bool:
        """Tell if blocks are better than looking up a line for each element."""
        return self.split_us < self.clear_win * self.along_us

    def note(self, remarks: Remarks, group: ReductionGroup) -> None:
        """Record whether `group` is cut so, and why."""
        remarks.note(
            "split-crossed",
            tuple(b.name for b in group.outputs),
            self.pays,
            "blocks read whole lines of both layouts"
            if self.pays
            else "a second kernel costs more than looking lines up",
            pieces=self.count,
            along_us=round(self.along_us, 3),
            split_us=round(self.split_us, 3),
        )


def find_mixed_layout_split(
    cost: ReductionCost, group: ReductionGroup, filling: OccupancySplit | None
) -> MixedLayoutSplit | None:
    """Return the pieces of `group` whose blocks read whole lines; `None` if its operands lie alike, or if its
    rows stay on chip. `filling` are pieces that go along one axis, if there are any.
    """
    shape, rows = cost.shape(group), cost.rows(group.members[0])
    if shape.across or rows.keeps(shape.length) or group.members[0].kind in POSITIONS:
        return None
    order, refined = merge_axes(cost.order_axes(group), cost.offsets(group))
    crossing = cost.find_crossing(group, order, refined)
    if crossing is None or any(cost.is_narrow(group, one) for one in (crossing.outer, crossing.inner)):
        return None
    target = cost.target(group.members[0])
    reductions = target.machine.reductions
    # either will do: of fewer pieces less is stored
    size = {axis: max(cost.sizes.value(get_extent(axis)), 1) for axis in (crossing.outer, crossing.inner)}
    axis = min(crossing.inner, crossing.outer, key=lambda one: size[one])
    points = size[axis]
    if points > reductions.most_pieces:
        divided = _split_axis(axis, least=reductions.block_results, most=reductions.most_pieces)
        if divided is None:
            return None
        high, low = divided
        over = {axis: high * get_extent(low) + low}
        refined = over | {one: substitute(whole, over) for one, whole in refined.items()}
        order = tuple(high if one is axis else one for one in (*order, low))
        axis, points = low, cost.sizes.value(get_extent(low))
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
    pieces = _cut_blocks(cost, group, blocks, [one for one in order if one is not axis], axis)
    count = max(cost.sizes.value(pieces.count), 1)
    along_us = cost.reduce_us(shape, 1) if filling is None else filling.split_us
    lookups_us = crossing.elements / (target.multiprocessors * reductions.lines_per_us)
    return MixedLayoutSplit(
        plan=SplitPlan(pieces=pieces, refined=tuple(refined.items())),
        count=count,
        along_us=max(along_us, target.launch_us + lookups_us),
        split_us=cost.reduce_us(blocks, count // points) + cost.second_us(group, shape, count),
        clear_win=reductions.clear_win,
    )


def _cut_blocks(
    cost: ReductionCost, group: ReductionGroup, blocks: ReductionShape, rest: Sequence[Expr], axis: Expr
) -> Pieces:
    """Return a piece for each point of `axis`, and as many of them along the `rest` as fill the device with
    `blocks`.
    """
    most = cost.target(group.members[0]).machine.reductions.most_pieces
    sizes = {one: cost.sizes.value(get_extent(one)) for one in (*rest, axis)}
    within = cut_axes(
        rest,
        rest,
        sizes,
        wanted=min(cost.count_pieces(group, blocks), most / max(sizes[axis], 1)),
        held=cost.rows(group.members[0]).kept_across,
    )
    # neighbours in memory of what pieces come to are those of the blocks
    whole = Cut(axis=axis, count=get_extent(axis), length=as_expr(1), even=True)
    return Pieces(axes=(*rest, axis), cuts=(*(() if within is None else within.cuts), whole))


def _split_axis(axis: Expr, *, least: int, most: int) -> tuple[Expr, Expr] | None:
    """Split `axis` into higher and lower digits, the lower ones from `least` to `most`.

    `None` if no number in between divides it, or if its size is unknown.
    """
    extent = as_int(get_extent(axis))
    if extent is None:
        return None
    low = max(divisor for divisor in range(1, most + 1) if extent % divisor == 0)
    if low < least:
        return None
    high = symbol(f"{axis.name}_high", extent=as_expr(extent // low))
    return high, symbol(f"{axis.name}_low", extent=as_expr(low))


# ---- By short runs ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRunSplit:
    """Pieces that begin with the points of runs, how many they are, and microseconds that this saves and
    costs.
    """

    plan: SplitPlan
    count: int
    saved_us: float
    costs_us: float

    @property
    def pays(self) -> bool:
        """Tell if wide loads save more than another kernel costs."""
        return self.saved_us > self.costs_us

    def note(self, remarks: Remarks, group: ReductionGroup) -> None:
        """Record whether `group` is cut so, and why."""
        remarks.note(
            "split-runs",
            tuple(b.name for b in group.outputs),
            self.pays,
            "wide loads go across short runs"
            if self.pays
            else "another kernel costs more than narrow loads do",
            pieces=self.count,
            saved_us=round(self.saved_us, 3),
            costs_us=round(self.costs_us, 3),
        )


def find_short_run_split(
    cost: ReductionCost, group: ReductionGroup, *, on_chip: bool
) -> ShortRunSplit | None:
    """Return how to reduce across short runs first, if `group` reads memory by them. Rows `on_chip` are read
    once for all that needs them.
    """
    if any(member.kind not in SELF_COMBINING | {"welford"} for member in group.members):
        return None
    reductions = cost.target(group.members[0]).machine.reductions
    axes = cost.order_axes(group)
    order, refined = merge_axes(axes, cost.offsets(group))
    *outer, run = order
    points = as_int(get_extent(run))
    if points is None or points < 2 or cost.length(outer) < reductions.least_across:
        return None
    if not group.rows or not all(
        _is_short_run(cost, group, access, axes[-1], points) for access in group.rows
    ):
        return None
    pieces = _run_pieces(cost, group, tuple(order), run, points)
    if pieces is None:
        return None
    shape = cost.shape(group)
    read = KernelWork(
        read_bytes=shape.read_bytes,
        write_bytes=0,
        operations=0,
        rows=shape.results,
        row_length=shape.length,
        programs=shape.programs,
    )
    read_us = cost.model.kernel_us(read)
    count = cost.sizes.value(pieces.count)
    second_us = cost.second_us(group, shape, max(count, 1))
    # what keeps rows on chip writes by such runs, too
    passes = 2 if on_chip else 1
    vain = sum(cost.access_bytes(a) * (_estimate_sector_overhead(cost, a, points) - 1) for a in group.rows)
    vain_us = passes * read_us * vain / max(shape.read_bytes, 1)
    is_narrow = any(_is_narrow_run(cost, group, access, points) for access in group.rows)
    return ShortRunSplit(
        plan=SplitPlan(pieces=pieces, refined=tuple(refined.items())),
        count=count,
        saved_us=((reductions.narrow_slowdown - 1) * read_us if is_narrow else 0.0) + vain_us,
        costs_us=second_us + (read_us if on_chip else 0.0),
    )


def _is_short_run(
    cost: ReductionCost, group: ReductionGroup, access: Load, innermost: Expr, points: int
) -> bool:
    """Tell if `access` goes through short runs of results that lie side by side: wide loads do not fit them,
    or a sector has several.
    """
    buffer = cost.facts.buffers[access.buffer]
    target = cost.target(group.members[0])
    reductions, wide = target.machine.reductions, target.vector_bytes
    length = points * buffer.dtype.itemsize
    if (
        not _is_narrow_run(cost, group, access, points)
        and _estimate_sector_overhead(cost, access, points) <= 1
    ):
        return False
    offset = buffer.offset_of(access.index)
    if _stride(offset, innermost) != 1:
        return False
    beside = [r for r in group.ranges if _stride(offset, r) == points]
    together = length
    for r in beside:
        together *= cost.sizes.value(get_extent(r))
    return together >= 2 * reductions.short_run_bytes and together % wide == 0


def _is_narrow_run(cost: ReductionCost, group: ReductionGroup, access: Load, points: int) -> bool:
    """Tell if wide loads do not fit the runs of `access`."""
    target = cost.target(group.members[0])
    reductions, size = target.machine.reductions, cost.facts.buffers[access.buffer].dtype.itemsize
    length = points * size
    is_short = size <= reductions.narrow_bytes and length <= reductions.short_run_bytes
    return is_short and length % target.vector_bytes != 0


def _estimate_sector_overhead(cost: ReductionCost, access: Load, points: int) -> float:
    """Return the bytes that are fetched for a run over its own bytes; 1 at least."""
    buffer = cost.facts.buffers[access.buffer]
    fetched = cost.targets.of(buffer.device).machine.memory.fetched_bytes
    return max(1.0, fetched / (points * buffer.dtype.itemsize))


def _stride(offset: Expr, axis: Expr) -> int | None:
    step = find_stride(offset, axis)
    return None if step is None else as_int(step)


def _run_pieces(
    cost: ReductionCost, group: ReductionGroup, order: tuple[Expr, ...], run: Expr, points: int
) -> Pieces | None:
    """Return the points of the run, and as many pieces of what is outside as fill the device."""
    outer = tuple(axis for axis in order if axis is not run)
    sizes = {axis: cost.sizes.value(get_extent(axis)) for axis in outer}
    length = cost.length(outer)
    target = cost.target(group.members[0])
    reductions = target.machine.reductions
    blocks = cost.shape(group).results * points / reductions.block_results
    wanted = target.multiprocessors * reductions.programs / blocks
    if any(member.kind == "welford" for member in group.members):
        wanted = max(wanted, length / reductions.resident_across)
    wanted = min(wanted, length / reductions.least_across)
    rest = cut_axes(outer, outer, sizes, wanted=wanted, held=cost.rows(group.members[0]).kept_across)
    whole = Cut(axis=run, count=get_extent(run), length=as_expr(1), even=True)
    cuts = (*(rest.cuts if rest is not None else ()), whole)
    if rest is None and wanted >= 2:
        return None
    return Pieces(axes=order, cuts=cuts)
