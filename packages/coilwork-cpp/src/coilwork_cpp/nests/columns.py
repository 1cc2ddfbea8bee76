"""Reductions across the vector: a tile of neighbouring columns is reduced together, one lane per column.

```
for a unit of work (a tile of columns)
  for each pass
    partial[T] = start
    for r: simd for x in tile: partial[x] = combine(partial[x], element(r, x))
  simd for x in tile: stores of the column
```

What is contiguous along the rows is copied into tiles, block by block of rows.

With `batch_invariant` a column's bits must not depend on whether it is vectorised as a column or a row. So a
column has as many partial results as a row has lanes, and they are folded alike:

```
for blocks of r
  lanes[L][T] = start
  for r: simd for x in tile: lanes[r % L][x] = combine(lanes[r % L][x], element(r, x))
  for half = L/2 ... 1: for l < half:
    simd for x in tile: lanes[l][x] = combine(lanes[l][x], lanes[l + half][x])
  simd for x in tile: total[x] = combine(total[x], lanes[0][x])
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coilwork_cpp.nests.loops import (
    BlockLoops,
    Span,
    bind_ranges,
    close_loops,
    copy_tile,
    make_whole_span,
    open_blocks,
    open_loops,
)
from coilwork_cpp.nests.row_points import combine_point, make_flat_position
from coilwork_cpp.planning.legality import check_passes
from coilwork_cpp.planning.plan import FIXED_LANES, Cut, PassPlan, Plan
from coilwork_cpp.planning.reduction_directives import find_tiled_loads
from coilwork_cpp.planning.reduction_passes import Pass, list_passes
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.values.block import Block
from coilwork_cpp.values.element_types import declare_array, get_value_type
from coilwork_cpp.values.reductions import (
    add_block,
    finish_reduction,
    fold_pair,
    fold_total,
    is_positional,
    is_rounded,
    list_components,
)
from coilwork_cpp.values.scans import scan_start, scan_states, step_scans
from coilwork_ir.index import Expr
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.scalar import Const, IndexValue, Load, Reduce, Scalar, Scan
from coilwork_ir.syntax.cpp import (
    ZERO,
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    Element,
    For,
    Literal,
    Name,
    Statement,
)

# ---- one order of combination ----


def _write_ordered_pass(
    block: Block, region: Region, tile: int, step: Pass, columns: Span, lane: Code, shape: Cut
) -> None:
    """The loops of `step`, which has no scans, in `shape`; `lane` is the number of the current column in its
    tile of `tile`.
    """
    block.hoist(step.roots, frozenset((columns.symbol, *region.reduction)))
    totals: dict[Reduce, tuple[Name, ...]] = {}
    lanes: dict[Reduce, Name] = {}
    start: list[Statement] = []
    for reduce in step.reduces:
        stem = block.names.make_suffixed(reduce.kind)
        totals[reduce] = tuple(Name(stem + part.suffix) for part in list_components(reduce))
        for name, part in zip(totals[reduce], list_components(reduce), strict=True):
            block.add(declare_array(part.total_type, name.text, tile))
            start.append(Assign(Element(name, lane), part.total_start))
        if not is_positional(reduce):
            lanes[reduce] = Name(f"{stem}_lanes")
            block.add(declare_array(list_components(reduce)[0].type, lanes[reduce].text, FIXED_LANES * tile))
    if start:
        block.add(_columns_loop(columns, *start))

    loops = open_blocks(block, shape)
    for reduce, name in lanes.items():
        every = Binary("+", Binary("*", Name("l"), Literal(str(tile))), lane)
        reset = Assign(Element(name, every), list_components(reduce)[0].start)
        loops.block.add(For("l", ZERO, Literal(str(FIXED_LANES)), (_columns_loop(columns, reset),)))
    _reduce_points(loops, region, tile, step, columns, lane, totals, lanes)
    for reduce, name in lanes.items():
        loops.block.add(*_fold_lanes(reduce, totals[reduce][0], name, tile, columns, lane))
    loops.close()
    for reduce, names in totals.items():
        block.known[reduce] = finish_reduction(reduce, tuple(Element(name, lane) for name in names))


def _reduce_points(
    loops: BlockLoops,
    region: Region,
    tile: int,
    step: Pass,
    columns: Span,
    lane: Code,
    totals: dict[Reduce, tuple[Name, ...]],
    lanes: dict[Reduce, Name],
) -> None:
    inner, chain = open_loops(loops.block, loops.spans)
    inner.hoist(step.roots, frozenset((columns.symbol,)))
    own: Code = Binary("%", Name(region.reduction[-1].name), Literal(str(FIXED_LANES)))
    own = inner.declare_index("lane_first", Binary("*", own, Literal(str(tile))))
    point = inner.open_nested()
    bind_ranges(point, columns.symbol)
    position = make_flat_position(point, region.reduction)
    for reduce in step.reduces:
        if reduce in lanes:
            state: tuple[Code, ...] = (Element(lanes[reduce], Binary("+", own, lane)),)
        else:
            state = tuple(Element(name, lane) for name in totals[reduce])
        combine_point(point, reduce, state, position)
    point.store_all(step.stores)
    inner.add(_columns_loop(columns, *point.body()))
    close_loops(chain, loops.spans)


def _fold_lanes(
    reduce: Reduce, total: Name, lanes: Name, tile: int, columns: Span, lane: Code
) -> list[Statement]:
    """Lanes in pairs, as far apart as they can be, as the folds of rows do it; then into the total."""
    statements: list[Statement] = []
    half = FIXED_LANES // 2
    while half:
        low = Binary("+", Binary("*", Name("l"), Literal(str(tile))), lane)
        high = Binary("+", Binary("*", Binary("+", Name("l"), Literal(str(half))), Literal(str(tile))), lane)
        pair = fold_pair(reduce, Element(lanes, low), Element(lanes, high))
        statements.append(For("l", ZERO, Literal(str(half)), (_columns_loop(columns, *pair),)))
        half //= 2
    statements.append(_columns_loop(columns, fold_total(reduce, Element(total, lane), Element(lanes, lane))))
    return statements


# ---- columns ----


def write_column_body(
    unit: Block, region: Region, plan: Plan, kernel: Kernel, spans: dict[Expr, Span]
) -> None:
    """The loops of one unit. In a fixed order reductions combine as those of rows do then."""
    passes, outer_stores = list_passes(region, kernel, plan)
    check_passes(kernel, region, plan, passes)
    serial = [make_whole_span(unit, r) for r in plan.serial]
    block, chain = open_loops(unit, serial)
    assert plan.vector is not None
    columns = spans[plan.vector.symbol]
    for number, step in enumerate(passes):
        walk = plan.walk(number)
        _share_column_values(block, region, plan, step, columns)
        if plan.fixed and step.reduces and not step.scans:
            _write_ordered_pass(
                block, region, plan.tile, step, columns, _lane_index(columns), walk.cut(region.reduction)
            )
        else:
            _write_pass(block, region, plan, step, columns, walk)
    if outer_stores:
        roots = tuple(root for store in outer_stores for root in list_store_roots(store))
        block.hoist(roots, frozenset((columns.symbol, *region.reduction)))
        point = block.open_nested()
        bind_ranges(point, columns.symbol)
        point.store_all(outer_stores)
        block.add(_columns_loop(columns, *point.body()))
    close_loops(chain, serial)


def _lane_index(columns: Span) -> Code:
    """Return the index of the current column in the tile's arrays."""
    name = Name(columns.variable)
    return name if columns.begin == ZERO else Binary("-", name, columns.begin)


def _share_column_values(block: Block, region: Region, plan: Plan, step: Pass, columns: Span) -> None:
    """Compute once per column what a pass needs at each of its points and earlier passes determine."""
    inner = frozenset(region.reduction)
    facts = region.facts
    wanted: dict[Scalar, None] = {}
    for value in sorted(step.computed_values, key=_VisitOrder(step)):
        if facts.varies[value] & inner:
            for operand in value.operands:
                if not facts.varies[operand] & inner and columns.symbol in facts.varies[operand]:
                    wanted.setdefault(operand)
    costly = [
        v for v in wanted if not isinstance(v, Const | IndexValue | Load | Reduce) and v not in block.known
    ]
    costly += [v for v in wanted if isinstance(v, Reduce) and not isinstance(block.known[v], Element)]
    if not costly:
        return
    point = block.open_nested()
    bind_ranges(point, columns.symbol)
    shared: dict[Scalar, Code] = {}
    for value in costly:
        name = block.names.make_suffixed("column")
        kind = "u8" if value.dtype.is_bool else get_value_type(value.dtype)
        block.add(declare_array(kind, name, plan.tile))
        element = Element(Name(name), _lane_index(columns))
        code = point.value(value)
        point.add(Assign(element, Call("u8", (code,)) if value.dtype.is_bool else code))
        shared[value] = Binary("!=", element, ZERO) if value.dtype.is_bool else element
    block.add(_columns_loop(columns, *point.body()))
    block.known.update(shared)


class _VisitOrder:
    """A deterministic order of a pass's values: that of their first visit."""

    def __init__(self, step: Pass) -> None:
        self._place: dict[Scalar, int] = {}
        stack = list(reversed(step.roots))
        while stack:
            value = stack.pop()
            if value not in self._place:
                self._place[value] = len(self._place)
                if not isinstance(value, Reduce):
                    stack.extend(reversed(value.operands))

    def __call__(self, value: Scalar) -> int:
        return self._place[value]


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """Arrays of what one pass keeps for each column of the tile.

    Attributes:
        parts: of each reduction, its components: of the rows so far or, where it has a total, of the current
            block of rows.
        totals: of reductions whose blocks are folded into something wider.
        scans: of each scan; of one by a function for all its results.
    """

    parts: Mapping[Reduce, tuple[Name, ...]]
    totals: Mapping[Reduce, Name]
    scans: Mapping[Scan, tuple[Name, ...]]


def _write_pass(block: Block, region: Region, plan: Plan, step: Pass, columns: Span, walk: PassPlan) -> None:
    block.hoist(step.roots, frozenset((columns.symbol, *region.reduction)))
    lane = _lane_index(columns)
    tiled = () if walk.transpose is None else find_tiled_loads(region, step, columns.symbol)
    shape = walk.cut(region.reduction)
    state = _declare_state(block, plan, step, columns, folded=not shape.is_whole, fixed=plan.fixed)

    loops = open_blocks(block, shape)
    for load in tiled:
        copy_tile(loops.block, load, loops.rows, columns, plan.tile * (shape.size + 1), shape.size + 1)
    if state.totals:
        reset = tuple(
            Assign(Element(state.parts[r][0], lane), list_components(r)[0].start) for r in state.totals
        )
        loops.block.add(_columns_loop(columns, *reset))
    inner, chain = open_loops(loops.block, loops.spans)
    backward = any(scan.reverse for scan in step.scans)
    if backward:
        _reverse_last_loop(inner, loops.spans)
    inner.hoist(step.roots, frozenset((columns.symbol,)))
    _combine_row(inner, region, step, columns, state)
    _close_backward(chain, loops.spans) if backward else close_loops(chain, loops.spans)
    if state.totals:
        fold = tuple(
            add_block(r, Element(t, lane), Element(state.parts[r][0], lane)) for r, t in state.totals.items()
        )
        loops.block.add(_columns_loop(columns, *fold))
    loops.close()

    for reduce, names in state.parts.items():
        kept = (state.totals[reduce],) if reduce in state.totals else names
        block.known[reduce] = finish_reduction(reduce, tuple(Element(name, lane) for name in kept))


def _declare_state(
    block: Block, plan: Plan, step: Pass, columns: Span, *, folded: bool, fixed: bool
) -> _State:
    """Arrays for the reductions and scans of `step`, set to what they start from; `folded` if rows come in
    blocks.
    """
    lane = _lane_index(columns)
    parts: dict[Reduce, tuple[Name, ...]] = {}
    totals: dict[Reduce, Name] = {}
    for reduce in step.reduces:
        stem = block.names.make_suffixed(reduce.kind)
        parts[reduce] = tuple(Name(stem + part.suffix) for part in list_components(reduce))
        if folded and is_rounded(reduce):
            totals[reduce] = Name(f"{stem}_total")
            block.add(declare_array(list_components(reduce)[0].total_type, totals[reduce].text, plan.tile))
        for name, part in zip(parts[reduce], list_components(reduce), strict=True):
            block.add(declare_array(part.total_type if fixed else part.type, name.text, plan.tile))
    scans = scan_states(step.scans, block.names)
    start: list[Assign] = []
    for scan, kept in scans.items():
        for kind, variable, value in scan_start(scan, kept, step.scans):
            block.add(declare_array(kind, variable, plan.tile))
            start.append(Assign(Element(Name(variable), lane), value))
    for reduce, names in parts.items():
        if reduce in totals:
            start.append(Assign(Element(totals[reduce], lane), list_components(reduce)[0].total_start))
        else:
            for name, part in zip(names, list_components(reduce), strict=True):
                start.append(Assign(Element(name, lane), part.total_start if fixed else part.start))
    block.add(_columns_loop(columns, *start))
    return _State(parts=parts, totals=totals, scans=scans)


def _combine_row(inner: Block, region: Region, step: Pass, columns: Span, state: _State) -> None:
    """One row, column by column: combined with what is kept, and stored where the pass stores elements."""
    lane = _lane_index(columns)
    point = inner.open_nested()
    bind_ranges(point, columns.symbol)
    position = make_flat_position(point, region.reduction)
    carried = {scan: [Element(name, lane) for name in kept] for scan, kept in state.scans.items()}
    step_scans(point, step.scans, carried)
    for reduce, names in state.parts.items():
        combine_point(point, reduce, tuple(Element(name, lane) for name in names), position)
    point.store_all(step.stores)
    inner.add(_columns_loop(columns, *point.body()))


def _columns_loop(columns: Span, *body: Statement) -> For:
    return For(columns.variable, columns.begin, columns.end, body, simd=True)


def _reverse_last_loop(inner: Block, spans: Sequence[Span]) -> None:
    """Walk the last of `spans` from its end."""
    last = spans[-1]
    back = Binary("-", Binary("-", last.end, Literal("1")), Name(f"{last.variable}_back"))
    inner.add(Declare("const i64", last.variable, back))


def _close_backward(chain: Sequence[Block], spans: Sequence[Span]) -> None:
    last = spans[-1]
    chain[-2].add(For(f"{last.variable}_back", last.begin, last.end, chain[-1].body()))
    close_loops(chain[:-1], spans[:-1])
