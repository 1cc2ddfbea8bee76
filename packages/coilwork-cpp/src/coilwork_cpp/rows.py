"""Reductions along the vectorised range: each unit's points are reduced by several lanes that are folded at the end.

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

from coilwork_cpp.blocking import Cut, cut
from coilwork_cpp.elements import convert, value_type
from coilwork_cpp.nest import Span, bind, close, nested, whole
from coilwork_cpp.passes import Pass, passes_of
from coilwork_cpp.plan import Plan
from coilwork_cpp.ranges import extent_of
from coilwork_cpp.rebuild import store_roots
from coilwork_cpp.reductions import (
    components,
    finish,
    is_positional,
    is_rounded,
    masked_element,
    masked_position,
    merge,
    update,
)
from coilwork_cpp.regions import Region
from coilwork_cpp.scans import scan_start, scan_state, scan_step
from coilwork_cpp.tree import (
    ZERO,
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    DeclareArray,
    Element,
    For,
    Literal,
    Name,
    Scope,
    Statement,
    is_atomic,
)
from coilwork_cpp.values import Block
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, bounds, product
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Reduce, Scalar

_LANES: Final = 64
_SHORT: Final = 128
_MOST_LEFT: Final = 16
_BLOCK: Final = 4096
# Rows up to this size are kept on the stack between passes, longer ones (or of unknown length) on the heap.
_STACK_BYTES: Final = 32768
_KEEP_LIMIT: Final = 1 << 22


def row_body(unit: Block, region: Region, plan: Plan, kernel: Kernel) -> tuple[Declare, ...]:
    """The loops of one unit; what it returns must be declared once per thread, before the loop over units."""
    points = product(extent_of(r) for r in region.reduction)
    high = bounds(points).hi
    passes, outer_stores = passes_of(region, kernel, keep=high is None or high <= _KEEP_LIMIT)
    serial = [whole(unit, r) for r in plan.serial]
    block, chain = nested(unit, serial)
    before, kept = _keep_memory(block, passes, points)
    for step in passes:
        _pass(block, region, step, kept)
    for root in (r for s in outer_stores for r in store_roots(s)):
        block.value(root)
    for store in outer_stores:
        block.store(store)
    close(chain, serial)
    return before


def _keep_memory(
    block: Block, passes: tuple[Pass, ...], points: Expr
) -> tuple[tuple[Declare, ...], dict[Scalar, Name]]:
    before: list[Declare] = []
    kept: dict[Scalar, Name] = {}
    count = as_int(points)
    for value in (v for step in passes for v in step.keeps):
        name = block.names.fresh("row")
        kind = "u8" if value.dtype.is_bool else value_type(value.dtype)
        kept[value] = Name(name)
        if count is not None and count * value.dtype.itemsize <= _STACK_BYTES:
            block.add(DeclareArray(kind, name, max(count, 1)))
        else:
            owner = f"{name}_memory"
            size = block.index(points)
            before.append(Declare(f"const Workspace<{kind}>", owner, Call(f"Workspace<{kind}>", (size,))))
            before.append(Declare(f"{kind}* const", name, Name(f"{owner}.memory")))
    return tuple(before), kept


def flat_position(block: Block, ranges: tuple[Expr, ...]) -> Code:
    """The flat, row-major position of a point along the reduction ranges."""
    at: Expr | None = None
    for r in ranges:
        at = r if at is None else at * extent_of(r) + r
    assert at is not None
    return block.index(at)


def _pass(block: Block, region: Region, step: Pass, kept: dict[Scalar, Name]) -> None:
    inner = frozenset(region.reduction)
    block.hoist(step.roots, inner)
    rounded = any(is_rounded(reduce) for reduce in step.reduces)
    lanes = 1 if step.scans else _lane_count(region.reduction[-1], step)
    if not step.reduces:
        _plain_pass(block, region, step, kept)
        return
    shape = cut(region.reduction, _BLOCK, rounded=rounded and lanes > 1)
    totals: dict[Reduce, tuple[Name, ...]] = {}
    for reduce in step.reduces:
        stem = block.names.fresh(reduce.kind)
        totals[reduce] = tuple(Name(stem + part.suffix) for part in components(reduce))
        for name, part in zip(totals[reduce], components(reduce), strict=True):
            block.add(Declare(part.total_type, name.text, part.total_start))
    if lanes == 1:
        _plain_pass(block, region, step, kept, totals)
    else:
        _laned_pass(block, region, step, kept, totals, shape, lanes)
    for reduce in step.reduces:
        result = finish(reduce, totals[reduce])
        block.known[reduce] = (
            result if is_atomic(result) else block.declare(reduce.dtype, f"{reduce.kind}_result", result)
        )


def _lane_count(innermost: Expr, step: Pass) -> int:
    """A power of two; fewer lanes for wide elements and short rows."""
    widest = max(
        (8 if is_positional(r) else r.operands[0].dtype.compute.itemsize for r in step.reduces), default=4
    )
    most = _LANES * 4 // max(widest, 4)
    extent = as_int(extent_of(innermost))
    if extent is None:
        return most
    if extent < 8:
        return 1
    if extent < _SHORT:
        # one vector: of a short row, much would be left over from more lanes, and folding them would take longer
        most //= 4
    while most > extent or (most > _MOST_LEFT and extent % most > _MOST_LEFT):
        most //= 2
    return most


def _point(point: Block, region: Region, step: Pass, kept: dict[Scalar, Name]) -> Code:
    """Make what was kept known; the flat position."""
    position = flat_position(point, region.reduction)
    for value in step.recalls:
        element: Code = Element(kept[value], position)
        point.known[value] = Binary("!=", element, ZERO) if value.dtype.is_bool else element
    return position


def _finish_point(point: Block, step: Pass, kept: dict[Scalar, Name], position: Code) -> None:
    for value in step.keeps:
        code = point.named(value)
        point.add(
            Assign(Element(kept[value], position), Call("u8", (code,)) if value.dtype.is_bool else code)
        )
    for root in (root for store in step.stores for root in store_roots(store)):
        point.value(root)
    for store in step.stores:
        point.store(store)


def _element(point: Block, reduce: Reduce) -> Code:
    """What `reduce` combines at this point: the neutral element where its mask is false."""
    source = reduce.operands[0]
    element = convert(point.value(source), source.dtype, source.dtype.compute)
    if not is_atomic(element):
        element = point.declare(source.dtype.compute, "element", element)
    if len(reduce.operands) > 1:
        mask = point.named(reduce.operands[1])
        element = point.declare(source.dtype.compute, "element", masked_element(reduce, element, mask))
    return element


def combine_point(point: Block, reduce: Reduce, state: tuple[Code, ...], position: Code) -> None:
    element = _element(point, reduce)
    if len(reduce.operands) > 1 and is_positional(reduce):
        mask = point.named(reduce.operands[1])
        position = point.declare(DType.I64, "position", masked_position(position, mask))
    statements = update(reduce, state, element, position)
    point.add(Scope(statements) if len(statements) > 1 else statements[0])


def _plain_pass(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    totals: dict[Reduce, tuple[Name, ...]] | None = None,
) -> None:
    """A pass whose points run in order, or, without reductions and scans, as one vector loop."""
    states = {scan: scan_state(scan, block.names) for scan in step.scans}
    for scan, state in states.items():
        for kind, name, value in scan_start(scan, state):
            block.add(Declare(kind, name, value))
    spans = [whole(block, r) for r in region.reduction]
    inner, chain = nested(block, spans[:-1])
    inner.hoist(step.roots, frozenset((region.reduction[-1],)))
    point = inner.inside()
    last = spans[-1]
    variable = last.variable
    if any(scan.reverse for scan in step.scans):
        variable = f"{last.variable}_back"
        back = Binary("-", Binary("-", last.end, Literal("1")), Name(variable))
        point.add(Declare("const i64", last.variable, back))
    bind(point, last.symbol)
    position = _point(point, region, step, kept)
    for scan, running in states.items():
        if scan not in point.known:
            point.known[scan] = scan_step(point, scan, running)
    for reduce, total in (totals or {}).items():
        combine_point(point, reduce, total, position)
    _finish_point(point, step, kept, position)
    simd = not step.scans and not totals and _independent(step)
    inner.add(For(variable, last.begin, last.end, point.body(), simd=simd))
    close(chain, spans[:-1])


def _independent(step: Pass) -> bool:
    """Whether no two points of a pass may write one element."""
    return all(store.mode == "store" and not store.indirect for store in step.stores)


def _laned_pass(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    totals: dict[Reduce, tuple[Name, ...]],
    shape: Cut,
    lanes: int,
) -> None:
    outer_spans = [whole(block, r) for r in shape.outer]
    outer, outer_chain = nested(block, outer_spans)
    spans = [whole(outer, r) for r in shape.inner]
    holder = outer
    if shape.middle is not None:
        # The block loop: its variable is where the block begins.
        holder = outer.inside()
        begin, end = Name(f"{shape.middle.name}_begin"), Name(f"{shape.middle.name}_end")
        limit = outer.index(extent_of(shape.middle))
        next_block = Binary("+", begin, Literal(str(shape.size)))
        holder.add(Declare("const i64", end.text, Call("min_i64", (next_block, limit))))
        spans = [Span(shape.middle, begin, end), *spans]
    arrays = {r: tuple(Name(f"{n.text}_lanes") for n in names) for r, names in totals.items()}
    reset = []
    for reduce, names in arrays.items():
        for name, part in zip(names, components(reduce), strict=True):
            holder.add(DeclareArray(part.type, name.text, lanes))
            reset.append(Assign(Element(name, Name("l")), part.start))
    count = Literal(str(lanes))
    holder.add(For("l", ZERO, count, tuple(reset), simd=True))
    inner, chain = nested(holder, spans[:-1])
    inner.hoist(step.roots, frozenset((region.reduction[-1],)))
    left = (as_int(extent_of(spans[-1].symbol)) or 0) % lanes
    if left and left <= _MOST_LEFT and spans[-1].begin == ZERO and not any(map(is_positional, totals)):
        _lane_loops(
            inner, region, step, kept, arrays, replace(spans[-1], end=_less(spans[-1].end, left)), lanes
        )
        _left_over(inner, region, step, kept, totals, spans[-1], left)
    else:
        _lane_loops(inner, region, step, kept, arrays, spans[-1], lanes)
    close(chain, spans[:-1])
    for reduce, names in arrays.items():
        holder.add(*merge(reduce, totals[reduce], names, lanes))
    if shape.middle is not None:
        limit = outer.index(extent_of(shape.middle))
        outer.add(For(f"{shape.middle.name}_begin", ZERO, limit, holder.body(), step=shape.size))
    close(outer_chain, outer_spans)


def _less(end: Code, left: int) -> Code:
    return Binary("-", end, Literal(str(left)))


def _left_over(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    totals: dict[Reduce, tuple[Name, ...]],
    span: Span,
    left: int,
) -> None:
    """The last `left` points of a row go to the totals one by one, in order.

    In the lanes they would be in the way: processors stall where a whole vector is read after parts of it were
    written. Measured on rows of 49 elements: 3.2 of 22 ns per row are left without that stall.
    """
    lane = Name("l")
    point = block.inside()
    point.add(Declare("const i64", span.variable, Binary("+", _less(span.end, left), lane)))
    bind(point, span.symbol)
    position = _point(point, region, step, kept)
    found: list[Statement] = []
    for reduce, total in totals.items():
        if left == 1:
            combine_point(point, reduce, total, position)
            continue
        array = Name(f"{total[0].text}_left")
        block.add(DeclareArray(components(reduce)[0].type, array.text, left))
        element = _element(point, reduce)
        is_bool = reduce.operands[0].dtype.is_bool
        point.add(Assign(Element(array, lane), Call("u8", (element,)) if is_bool else element))
        found += update(reduce, total, Element(array, lane), position)
    _finish_point(point, step, kept, position)
    count = Literal(str(left))
    block.add(For("l", ZERO, count, point.body(), simd=left > 1 and _independent(step)))
    if found:
        block.add(For("l", ZERO, count, tuple(found)))


def _lane_loops(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    arrays: dict[Reduce, tuple[Name, ...]],
    span: Span,
    lanes: int,
) -> None:
    """Full groups of lanes, whose constant count keeps the lanes in registers, then the rest."""
    lane = Name("l")

    def body(first: Name) -> Block:
        point = block.inside()
        point.add(Declare("const i64", span.variable, Binary("+", first, lane)))
        bind(point, span.symbol)
        position = _point(point, region, step, kept)
        for reduce, names in arrays.items():
            combine_point(point, reduce, tuple(Element(name, lane) for name in names), position)
        _finish_point(point, step, kept, position)
        return point

    first = Name(f"{span.variable}_first")
    known = as_int(extent_of(span.symbol))
    cut_short = span.begin == ZERO and span.end != block.index(extent_of(span.symbol))
    exact = cut_short or (known is not None and known % lanes == 0)
    simd = _independent(step)
    full = For("l", ZERO, Literal(str(lanes)), body(first).body(), simd=simd)
    if exact:
        block.add(For(first.text, span.begin, span.end, (full,), step=lanes))
        return
    rest = Name(f"{span.variable}_rest")
    length = Binary("-", span.end, span.begin)
    whole_groups = Binary("-", length, Binary("%", length, Literal(str(lanes))))
    beginning = whole_groups if span.begin == ZERO else Binary("+", span.begin, whole_groups)
    block.add(
        Scope(
            (
                Declare("const i64", rest.text, beginning),
                For(first.text, span.begin, rest, (full,), step=lanes),
                For("l", ZERO, Binary("-", span.end, rest), body(rest).body(), simd=simd),
            )
        )
    )
