"""Reductions along the vectorised range: each unit's points are reduced by several lanes that are folded at
the end.

```
for a unit of work (a row)
  for each pass
    lanes = start                     // L partial results per reduction
    for r in steps of L: simd for l: lanes[l] = combine(lanes[l], element(r + l))
    total = fold(lanes)
  stores of the row
```
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coilwork_cpp.nests.lanes import (
    combine_point,
    declare_lane_arrays,
    drop_last,
    finish_point,
    is_independent,
    recall_point,
    write_lane_loops,
    write_peeled_points,
)
from coilwork_cpp.nests.loops import bind_ranges, close_loops, open_blocks, open_loops, whole_span
from coilwork_cpp.nests.row_sort import count_spare_records, group_sorts, record_type, sort_rows, spare_name
from coilwork_cpp.nests.tile_staging import write_staged_pass
from coilwork_cpp.planning.legality import check_passes
from coilwork_cpp.planning.pass_directives import PrefetchRow, list_prefetch_rows
from coilwork_cpp.planning.passes import Pass, passes_of
from coilwork_cpp.planning.plan import PassPlan, Plan
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.values.block import Block
from coilwork_cpp.values.element_types import declare_array, value_type
from coilwork_cpp.values.reductions import components, finish_reduction, merge_lanes
from coilwork_cpp.values.scans import scan_start, scan_states, step_scans
from coilwork_ir.index import Expr, as_int, extent_of, product
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Reduce, Scalar
from coilwork_ir.syntax.cpp import (
    Binary,
    Call,
    Declare,
    For,
    Literal,
    Name,
    is_atomic,
)

# Rows up to this size are kept on the stack between passes, longer ones (or of unknown length) on the heap.
_STACK_BYTES: Final = 32768


def write_row_body(unit: Block, region: Region, plan: Plan, kernel: Kernel) -> tuple[Declare, ...]:
    """The loops of one unit; what it returns must be declared once per thread, before the loop over units."""
    points = product(extent_of(r) for r in region.reduction)
    passes, outer_stores = passes_of(region, kernel, plan)
    check_passes(kernel, region, plan, passes)
    serial = [whole_span(unit, r) for r in plan.serial]
    block, chain = open_loops(unit, serial)
    before, kept = _declare_row_memory(block, passes, points)
    for number, step in enumerate(passes):
        asked = plan.walk(number).prefetch
        rows = list_prefetch_rows(plan, passes, number, region.reduction[-1]) if asked else ()
        ahead = tuple(row for row in rows if row.buffer in asked)
        _write_pass(block, region, step, kept, ahead, plan.walk(number), fixed=plan.fixed)
        sort_rows(block, step, kept, passes)
    block.store_all(outer_stores)
    close_loops(chain, serial)
    return before


def _declare_row_memory(
    block: Block, passes: tuple[Pass, ...], points: Expr
) -> tuple[tuple[Declare, ...], dict[Scalar, Name]]:
    before: list[Declare] = []
    kept: dict[Scalar, Name] = {}

    def memory(name: str, kind: str, count: Expr, size_bytes: int) -> None:
        known = as_int(count)
        if known is not None and known * size_bytes <= _STACK_BYTES:
            block.add(declare_array(kind, name, max(known, 1)))
            return
        owner = f"{name}_memory"
        before.append(
            Declare(f"const Workspace<{kind}>", owner, Call(f"Workspace<{kind}>", (block.index(count),)))
        )
        before.append(Declare(f"{kind}* const", name, Name(f"{owner}.memory")))

    for step in passes:
        for value in step.keeps:
            kept[value] = Name(block.names.numbered("row"))
            kind = "u8" if value.dtype.is_bool else value_type(value.dtype)
            memory(kept[value].text, kind, points, value.dtype.itemsize)
        for row in group_sorts(step.sorts):
            records, kind = Name(block.names.numbered("records")), record_type(row[0])
            kept.update(dict.fromkeys(row, records))
            memory(records.text, kind, points, int(kind[1:]) // 8)
            memory(spare_name(records).text, kind, count_spare_records(row[0], passes), int(kind[1:]) // 8)
    return tuple(before), kept


def _write_pass(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    ahead: tuple[PrefetchRow, ...],
    walk: PassPlan,
    *,
    fixed: bool,
) -> None:
    inner = frozenset(region.reduction)
    block.hoist(step.roots, inner)
    if not step.reduces and walk.transpose is None:
        _write_plain_pass(block, region, step, kept)
        return
    totals: dict[Reduce, tuple[Name, ...]] = {}
    for reduce in step.reduces:
        stem = block.names.numbered(reduce.kind)
        totals[reduce] = tuple(Name(stem + part.suffix) for part in components(reduce))
        for name, part in zip(totals[reduce], components(reduce), strict=True):
            block.add(Declare(part.total_type, name.text, part.total_start))
    if walk.transpose is not None:
        write_staged_pass(block, region, step, kept, totals, walk)
    elif walk.lanes == 1:
        _write_plain_pass(block, region, step, kept, totals)
    else:
        _write_lane_pass(block, region, step, kept, totals, walk, ahead, fixed=fixed)
    for reduce in step.reduces:
        result = finish_reduction(reduce, totals[reduce])
        block.known[reduce] = (
            result if is_atomic(result) else block.declare(reduce.dtype, f"{reduce.kind}_result", result)
        )


def _write_plain_pass(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    totals: dict[Reduce, tuple[Name, ...]] | None = None,
) -> None:
    """A pass whose points run in order, or, without reductions and scans, as one vector loop."""
    states = scan_states(step.scans, block.names)
    for scan, state in states.items():
        for kind, name, value in scan_start(scan, state, step.scans):
            block.add(Declare(kind, name, value))
    spans = [whole_span(block, r) for r in region.reduction]
    inner, chain = open_loops(block, spans[:-1])
    inner.hoist(step.roots, frozenset((region.reduction[-1],)))
    point = inner.inside()
    last = spans[-1] if step.first is None else replace(spans[-1], end=Literal(str(step.first)))
    variable = last.variable
    if any(scan.reverse for scan in step.scans):
        variable = f"{last.variable}_back"
        back = Binary("-", Binary("-", last.end, Literal("1")), Name(variable))
        point.add(Declare("const i64", last.variable, back))
    bind_ranges(point, last.symbol)
    position = recall_point(point, region, step, kept)
    step_scans(point, step.scans, states)
    for reduce, total in (totals or {}).items():
        combine_point(point, reduce, total, position)
    finish_point(point, step, kept, position)
    simd = not step.scans and not totals and is_independent(step)
    inner.add(For(variable, last.begin, last.end, point.body(), simd=simd))
    close_loops(chain, spans[:-1])


def _write_lane_pass(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    totals: dict[Reduce, tuple[Name, ...]],
    walk: PassPlan,
    ahead: tuple[PrefetchRow, ...],
    *,
    fixed: bool,
) -> None:
    shape, lanes, left = walk.cut(region.reduction), walk.lanes, walk.peel
    loops = open_blocks(block, shape)
    holder, spans = loops.block, loops.spans
    arrays = declare_lane_arrays(holder, totals, lanes)
    inner, chain = open_loops(holder, spans[:-1])
    inner.hoist(step.roots, frozenset((region.reduction[-1],)))
    if left:
        write_lane_loops(
            inner,
            region,
            step,
            kept,
            arrays,
            replace(spans[-1], end=drop_last(spans[-1].end, left)),
            lanes,
            ahead,
        )
        write_peeled_points(inner, region, step, kept, totals, spans[-1], left)
    else:
        write_lane_loops(inner, region, step, kept, arrays, spans[-1], lanes, ahead)
    close_loops(chain, spans[:-1])
    for reduce, names in arrays.items():
        # with `fixed`, NaN has the bits that columns give it
        alone = shape.is_whole and not left and not fixed
        holder.add(*merge_lanes(reduce, totals[reduce], names, lanes, alone=alone))
    loops.close()
