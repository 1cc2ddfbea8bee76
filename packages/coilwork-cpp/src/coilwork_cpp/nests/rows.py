"""Reductions along the vector: the points of a row are reduced in several lanes, which are folded at the end.

```
for a unit of work (a row)
  for each pass
    lanes = start                     // L partial results per reduction
    for r in steps of L: simd for l: lanes[l] = combine(lanes[l], element(r + l))
    total = fold(lanes)
  stores of the row
```

Of two reduction ranges some reads may be contiguous along one, and some along the other, as in the group norm
of the sum of a channels-first and a channels-last image. In one order, half of the reads would gather from as
many cache lines as there are lanes. So both ranges are walked in blocks, and reads that lie across are copied
into a tile, line by line, before a block is reduced:

```
for blocks of a, for blocks of r
  for r: simd for a: tile[r][a] = in[a + r*n]
  lanes = start
  for a: for r in steps of L: simd for l: lanes[l] = combine(lanes[l], element(a, r + l, tile[r + l][a]))
  total = fold(total, lanes)
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from coilwork_cpp.nests.loops import (
    Span,
    bind_ranges,
    close_loops,
    copy_tile,
    make_whole_span,
    open_blocks,
    open_loops,
)
from coilwork_cpp.nests.row_points import (
    combine_point,
    declare_lane_arrays,
    drop_last,
    finish_point,
    is_independent,
    recall_point,
    write_lane_loops,
    write_peeled_points,
)
from coilwork_cpp.nests.row_sort import (
    count_spare_records,
    get_spare_name,
    group_sorts,
    record_type,
    sort_rows,
)
from coilwork_cpp.planning.legality import check_passes
from coilwork_cpp.planning.plan import PassPlan, Plan
from coilwork_cpp.planning.reduction_directives import PrefetchRow, find_staged_loads, list_prefetch_rows
from coilwork_cpp.planning.reduction_passes import Pass, list_passes
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.values.block import Block
from coilwork_cpp.values.element_types import declare_array, get_value_type
from coilwork_cpp.values.reductions import finish_reduction, list_components, merge_lanes
from coilwork_cpp.values.scans import scan_start, scan_states, step_scans
from coilwork_ir.index import Expr, as_int, get_extent, multiply_all
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Reduce, Scalar
from coilwork_ir.syntax.cpp import (
    ZERO,
    Binary,
    Call,
    Code,
    Declare,
    For,
    Literal,
    Name,
    is_atomic,
)

# ---- staged passes ----


def write_staged_pass(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    totals: Mapping[Reduce, tuple[Name, ...]],
    walk: PassPlan,
) -> None:
    """The loops of a pass, in blocks of the two ranges that `walk` transposes."""
    assert walk.transpose is not None
    across, inner = walk.transpose.across, walk.transpose.along
    lines, points = walk.transpose.lines, walk.transpose.points
    others = [make_whole_span(block, r) for r in region.reduction[:-1] if r is not across]
    holder, chain = open_loops(block, others)
    outer_block = holder.open_nested()
    rows = _block_span(outer_block, across, lines)
    body = outer_block.open_nested()
    columns = _block_span(body, inner, points)
    width = lines + 1
    for load in find_staged_loads(region, step, across):
        copy_tile(body, load, rows, columns, _block_size(inner, points) * width, width)
    arrays = declare_lane_arrays(body, totals, walk.lanes)
    line = body.open_nested()
    bind_ranges(line, across)
    line.hoist(step.roots, frozenset((inner,)))
    write_lane_loops(line, region, step, kept, arrays, columns, walk.lanes)
    body.add(For(rows.variable, rows.begin, rows.end, line.body()))
    for reduce, names in arrays.items():
        body.add(*merge_lanes(reduce, totals[reduce], names, walk.lanes))
    _close_block(outer_block, body, inner, columns, points)
    _close_block(holder, outer_block, across, rows, lines)
    close_loops(chain, others)


def _block_size(inner: Expr, points: int) -> int:
    extent = as_int(get_extent(inner))
    return points if extent is None else min(points, max(extent, 1))


def _block_span(block: Block, symbol: Expr, size: int) -> Span:
    """Return the points of one block, whose loop `_close_block` puts around `block`; all points, if one block
    has them all.
    """
    extent = as_int(get_extent(symbol))
    if extent is not None and extent <= size:
        return make_whole_span(block, symbol)
    begin, end = Name(f"{symbol.name}_begin"), Name(f"{symbol.name}_end")
    behind: Code = Binary("+", begin, Literal(str(size)))
    if extent is None or extent % size:
        behind = Call("min_i64", (behind, block.index(get_extent(symbol))))
    block.add(Declare("const i64", end.text, behind))
    return Span(symbol, begin, end)


def _close_block(around: Block, block: Block, symbol: Expr, span: Span, size: int) -> None:
    if span.begin == ZERO:
        around.add(*block.body())
    else:
        limit = around.index(get_extent(symbol))
        around.add(For(f"{symbol.name}_begin", ZERO, limit, block.body(), step=size))


# ---- rows ----


# Rows up to this size are kept on the stack between passes, longer ones (or of unknown length) on the heap.
_STACK_BYTES: Final = 32768


def write_row_body(unit: Block, region: Region, plan: Plan, kernel: Kernel) -> tuple[Declare, ...]:
    """Return the loops of one unit; what it returns must be declared once per thread, before the loop over
    units.
    """
    points = multiply_all(get_extent(r) for r in region.reduction)
    passes, outer_stores = list_passes(region, kernel, plan)
    check_passes(kernel, region, plan, passes)
    serial = [make_whole_span(unit, r) for r in plan.serial]
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
            kept[value] = Name(block.names.make_suffixed("row"))
            kind = "u8" if value.dtype.is_bool else get_value_type(value.dtype)
            memory(kept[value].text, kind, points, value.dtype.itemsize)
        for row in group_sorts(step.sorts):
            records, kind = Name(block.names.make_suffixed("records")), record_type(row[0])
            kept.update(dict.fromkeys(row, records))
            memory(records.text, kind, points, int(kind[1:]) // 8)
            memory(
                get_spare_name(records).text, kind, count_spare_records(row[0], passes), int(kind[1:]) // 8
            )
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
        stem = block.names.make_suffixed(reduce.kind)
        totals[reduce] = tuple(Name(stem + part.suffix) for part in list_components(reduce))
        for name, part in zip(totals[reduce], list_components(reduce), strict=True):
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
    spans = [make_whole_span(block, r) for r in region.reduction]
    inner, chain = open_loops(block, spans[:-1])
    inner.hoist(step.roots, frozenset((region.reduction[-1],)))
    point = inner.open_nested()
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
