"""Decisions about the passes of a nest along reduced ranges: what is kept between them, in how many lanes,
and in what pieces.

Four mapping passes, in this order: `save_values`, `select_first_points`, `choose_lanes` and `prefetch_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_cpp.facts import count_instructions
from coilwork_cpp.planning.parallelism import is_contiguous_along
from coilwork_cpp.planning.plan import (
    FIXED_BLOCK,
    FIXED_LANES,
    Cut,
    Plan,
    Proposal,
    cut_innermost,
    cut_ranges,
    plan_of,
)
from coilwork_cpp.planning.reduction_passes import Pass, choose_saves, count_first_points, list_passes
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.values.reductions import is_positional, is_rounded
from coilwork_ir.index import Expr, as_int, find_bounds, find_stride, get_extent, multiply_all, substitute
from coilwork_ir.kernels.rewrite import index_values
from coilwork_ir.machine.model import Loops
from coilwork_ir.mapping import (
    Accumulators,
    Directive,
    Fold,
    Peel,
    Prefetch,
    Save,
    Select,
    Transpose,
)
from coilwork_ir.scalar import Load, Reduce, Scalar, Scan, Sort, iterate_postorder

_KEEP_LIMIT: Final = 1 << 22
MOST_LEFT: Final = 16
# Points of a row that are added up in f32 before they are folded into f64 totals; and rows of a column.
_BLOCK: Final = 4096
_COLUMN_BLOCK: Final = 64
# Points of the innermost range in a block that is copied, and of a block altogether: as many as f32 partial
# sums may take.
_INNER: Final = 64
_POINTS: Final = 4096
_LONGEST: Final = 256
# Of a shorter range there is too little to copy.
_SHORTEST: Final = 16
_WIDEST_ELEMENT: Final = 16


def save_values(proposal: Proposal) -> tuple[Directive, ...]:
    """Keep costly values that several passes along a row need, where rows are not too long."""
    if proposal.vector is not None or not proposal.region.reduction:
        return ()
    high = find_bounds(multiply_all(get_extent(r) for r in proposal.region.reduction)).hi
    if high is not None and high > _KEEP_LIMIT:
        return ()
    saves = choose_saves(proposal.region, proposal.kernel)
    if not saves:
        return ()
    names = {value: name for name, value in index_values(proposal.kernel).items()}
    return tuple(
        Save(values=tuple(names[value] for value in values), step=number) for number, values in saves.items()
    )


def select_first_points(proposal: Proposal) -> tuple[Directive, ...]:
    """Return a pass over rows in order that does something at their first points alone walks no others."""
    if proposal.vector is not None or not proposal.region.reduction:
        return ()
    if not any(isinstance(value, Sort) for value in proposal.region.values):
        return ()
    axis = proposal.region.reduction[-1]
    directives: list[Directive] = []
    for number, step in enumerate(_list_passes(proposal)):
        count = count_first_points(step, axis) if step.finished_sorts else None
        if count is not None:
            directives.append(Select(range=axis.name, first=count, step=number))
    return tuple(directives)


def choose_lanes(proposal: Proposal) -> tuple[Directive, ...]:
    """Neighbours are reduced in lanes, which are folded before they lose precision; what lies across is
    copied in tiles.
    """
    if not proposal.region.reduction:
        return ()
    directives: list[Directive] = []
    for number, step in enumerate(_list_passes(proposal)):
        if proposal.vector is not None:
            directives += _column_directives(proposal, step, number, proposal.vector)
        else:
            directives += _row_directives(proposal, step, number)
    return tuple(directives)


def prefetch_rows(proposal: Proposal) -> tuple[Directive, ...]:
    """Return a pass that computes little, over what an earlier one has read, asks for the lines that come
    next.
    """
    region = proposal.region
    if proposal.vector is not None or len(region.reduction) != 1:
        return ()
    inner = region.reduction[0]
    count = as_int(get_extent(inner))
    if (
        count is None
        or not count * _WIDEST_ELEMENT >= proposal.loops.shortest_ahead_bytes
        or count > proposal.loops.longest_ahead_bytes
    ):
        return ()
    passes = _list_passes(proposal)
    number = len(passes) - 2
    if number < 1:
        return ()
    step = passes[number]
    if step.scans or step.keeps or step.recalls or count_instructions(step.roots) >= proposal.loops.costly:
        return ()
    plan = plan_of(proposal.kernel, region, proposal.nest, proposal.common)
    if _has_no_lanes(proposal, step):
        # only what is walked in lanes asks
        return ()
    rows = list_prefetch_rows(plan, passes, number, inner)
    asked = tuple(dict.fromkeys(row.buffer for row in rows if _is_worth_it(row, count, proposal.loops)))
    return (Prefetch(args=asked, step=number),) if asked else ()


def _list_passes(proposal: Proposal) -> tuple[Pass, ...]:
    plan = plan_of(proposal.kernel, proposal.region, proposal.nest, proposal.common)
    passes, _ = list_passes(proposal.region, proposal.kernel, plan)
    return passes


def _has_no_lanes(proposal: Proposal, step: Pass) -> bool:
    """Tell if the points of `step` come one by one, without lanes."""
    lanes = 1 if step.scans else _count_lanes(proposal, step)
    crossing = choose_staged_range(proposal.region, step) if lanes > 1 and not proposal.fixed else None
    return lanes == 1 or not step.reduces or crossing is not None


def _count_lanes(proposal: Proposal, step: Pass) -> int:
    return (
        FIXED_LANES
        if proposal.fixed
        else choose_lane_count(proposal.region.reduction[-1], step, proposal.loops)
    )


def choose_lane_count(innermost: Expr, step: Pass, loops: Loops) -> int:
    """Return a power of two; fewer lanes for wide elements and short rows."""
    widest = max(
        (8 if is_positional(r) else r.operands[0].dtype.compute.itemsize for r in step.reduces), default=4
    )
    most = loops.lanes * 4 // max(widest, 4)
    extent = as_int(get_extent(innermost))
    if extent is None:
        return most
    if extent < 8:
        return 1
    if extent < loops.short_row:
        # one vector: of a short row, more lanes would leave much over, and take longer to fold
        most //= 4
    while most > extent or (most > MOST_LEFT and extent % most > MOST_LEFT):
        most //= 2
    return most


def _row_directives(proposal: Proposal, step: Pass, number: int) -> list[Directive]:
    ranges = proposal.region.reduction
    lanes = 1 if step.scans else _count_lanes(proposal, step)
    crossing = choose_staged_range(proposal.region, step) if lanes > 1 and not proposal.fixed else None
    if lanes == 1 or (not step.reduces and crossing is None):
        return []
    directives: list[Directive] = [Accumulators(count=lanes, step=number)]
    if crossing is not None:
        extent = as_int(get_extent(ranges[-1]))
        size = _INNER if extent is None else min(_INNER, max(extent, 1))
        by = (min(_LONGEST, _POINTS // size), _INNER)
        return [*directives, Transpose(ranges=(crossing.name, ranges[-1].name), by=by, step=number)]
    rounded = any(is_rounded(reduce) for reduce in step.reduces)
    if proposal.fixed:
        shape = cut_innermost(ranges, FIXED_BLOCK, rounded=rounded)
    else:
        shape = cut_ranges(ranges, _BLOCK, rounded=rounded)
    directives += _fold_directives(shape, number)
    left = (as_int(get_extent(ranges[-1])) or 0) % lanes
    whole = shape.middle is not ranges[-1]
    apart = 0 < left <= MOST_LEFT and whole and not proposal.fixed
    if apart and not any(map(is_positional, step.reduces)):
        directives.append(Peel(range=ranges[-1].name, count=left, step=number))
    return directives


def _column_directives(proposal: Proposal, step: Pass, number: int, vector: Expr) -> list[Directive]:
    ranges = proposal.region.reduction
    rounded = any(is_rounded(reduce) for reduce in step.reduces)
    if proposal.fixed and step.reduces and not step.scans:
        return _fold_directives(cut_innermost(ranges, FIXED_BLOCK, rounded=rounded), number)
    rounded = rounded and not step.scans
    directives: list[Directive] = []
    tiled = bool(find_tiled_loads(proposal.region, step, vector))
    if tiled:
        by = (_COLUMN_BLOCK, proposal.tile)
        directives.append(Transpose(ranges=(ranges[-1].name, vector.name), by=by, step=number))
    shape = (cut_innermost if tiled else cut_ranges)(ranges, _COLUMN_BLOCK, rounded=rounded or tiled)
    return [*directives, *_fold_directives(shape, number)]


def _fold_directives(shape: Cut, number: int) -> list[Directive]:
    return [] if shape.middle is None else [Fold(range=shape.middle.name, by=shape.size, step=number)]


# Lines that a pass asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchRow:
    """A row of `buffer`: elements of `itemsize` bytes at `index`, to read or to write."""

    buffer: str
    index: Expr
    itemsize: int
    write: bool


def list_prefetch_rows(
    plan: Plan, passes: Sequence[Pass], number: int, inner: Expr
) -> tuple[PrefetchRow, ...]:
    """Return the lines that pass `number` along `inner` can ask for: the next row of what it reads, and what
    the last pass writes.

    A pass that walks what an earlier one has read leaves memory idle, and a row is about as long as what
    processors fetch ahead by themselves.
    """
    loops = (*(axis.symbol for axis in plan.threaded), *plan.serial)
    if not loops:
        return ()
    rows: dict[PrefetchRow, None] = {}
    for value in iterate_postorder(passes[number].roots):
        if isinstance(value, Load) and not value.operands and loops[-1] in value.index[0].free_symbols:
            after = substitute(value.index[0], {loops[-1]: loops[-1] + 1})
            size = value.dtype.itemsize
            rows[PrefetchRow(buffer=value.buffer, index=after, itemsize=size, write=False)] = None
    for store in passes[-1].stores:
        if store.mode == "store" and not store.indirect:
            size = store.value.dtype.itemsize
            rows[PrefetchRow(buffer=store.buffer, index=store.index, itemsize=size, write=True)] = None
    return tuple(row for row in rows if _has_unit_step(row, inner))


def _has_unit_step(row: PrefetchRow, inner: Expr) -> bool:
    step = find_stride(row.index, inner)
    return step is not None and as_int(step) == 1


def _is_worth_it(row: PrefetchRow, count: int, loops: Loops) -> bool:
    return loops.shortest_ahead_bytes <= count * row.itemsize <= loops.longest_ahead_bytes


# What lies across


def choose_staged_range(region: Region, step: Pass) -> Expr | None:
    """Return the reduction range, other than the innermost, along which most reads of `step` lie that are
    strided along that.
    """
    if step.scans or any(is_positional(reduce) for reduce in step.reduces):
        # their points must come in order
        return None
    counts = {r: len(find_staged_loads(region, step, r)) for r in region.reduction[:-1]}
    best = max(counts, key=lambda r: counts[r], default=None)
    return best if best is not None and counts[best] else None


def find_staged_loads(region: Region, step: Pass, across: Expr) -> list[Load]:
    """Return the loads of `step` that lie along `across` instead of the innermost reduction range."""
    extent = as_int(get_extent(across))
    if extent is not None and extent < _SHORTEST:
        return []
    staged: list[Load] = []
    for value in _list_values(step):
        if not isinstance(value, Load) or value.indirect or not _has_index_guard(value):
            continue
        if is_contiguous_along(value.index[0], across, region.reduction[-1]):
            staged.append(value)
    return staged


def find_tiled_loads(region: Region, step: Pass, columns: Expr) -> list[Load]:
    """Return the loads of `step`, over columns, that lie along the innermost reduction range: columns would
    gather them.
    """
    inner = region.reduction[-1]
    extent = as_int(get_extent(inner))
    if step.scans or (extent is not None and extent < _SHORTEST):
        return []
    loads = [v for v in _list_values(step) if isinstance(v, Load) and not v.indirect and _has_index_guard(v)]
    return [load for load in loads if is_contiguous_along(load.index[0], inner, columns)]


def _list_values(step: Pass) -> list[Scalar]:
    """Values that `step` computes, in order; what an earlier pass kept or reduced ends the search."""
    values: dict[Scalar, None] = {}
    stack = list(reversed(step.roots))
    while stack:
        value = stack.pop()
        if value in values or value in step.recalls or isinstance(value, Reduce):
            continue
        values[value] = None
        stack.extend(reversed(value.operands))
    return list(values)


def _has_index_guard(load: Load) -> bool:
    """Tell if the guard of `load`, if any, depends on positions alone."""
    return not any(
        isinstance(v, Load | Reduce | Scan) for o in load.operands for v in iterate_postorder((o,))
    )
