"""Loops over the units of work of a region, down to where points are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coilwork_cpp.elements import memory_type
from coilwork_cpp.plan import Axis, Plan, lies_along
from coilwork_cpp.ranges import extent_of
from coilwork_cpp.regions import Region
from coilwork_cpp.tree import (
    ONE,
    ZERO,
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    DeclareArray,
    Element,
    For,
    If,
    Literal,
    Name,
    Unary,
)
from coilwork_cpp.values import Block, from_memory
from coilwork_ir.index import Expr, as_expr, as_int, bounds, product, total
from coilwork_ir.scalar import Load, Scalar, postorder


@dataclass(frozen=True, slots=True)
class Span:
    """The points of a range that a loop walks."""

    symbol: Expr
    begin: Code
    end: Code

    @property
    def variable(self) -> str:
        """The loop's variable."""
        return self.symbol.name


def whole(block: Block, symbol: Expr) -> Span:
    """All points of `symbol`."""
    return Span(symbol, ZERO, block.index(extent_of(symbol)))


def bind(block: Block, *symbols: Expr) -> None:
    """Give range symbols their C++ names in `block`."""
    for symbol in symbols:
        block.symbols[symbol] = Name(symbol.name)


def decode_unit(block: Block, plan: Plan, unit: Code) -> dict[Expr, Span]:
    """Declare what unit number `unit` fixes; the spans of blocked axes."""
    spans: dict[Expr, Span] = {}
    last = len(plan.threaded) - 1
    for position, axis in enumerate(plan.threaded):
        inner = product(a.units for a in plan.threaded[position + 1 :])
        number = unit
        if position < last:
            number = Binary("/", number, block.index(inner))
        if position > 0:
            number = Binary("%", number, block.index(axis.units))
        if axis.block is None:
            block.add(Declare("const i64", axis.symbol.name, number))
            bind(block, axis.symbol)
        else:
            spans[axis.symbol] = _block_span(block, axis, number)
    return spans


def units_span(block: Block, axis: Axis, begin: Code, end: Code) -> Span:
    """Declare the points of all units from number `begin` to `end` of the one axis there is."""
    assert axis.block is not None
    size = Literal(str(axis.block))
    return _bounded_span(block, axis, Binary("*", begin, size), Binary("*", end, size))


def _block_span(block: Block, axis: Axis, number: Code) -> Span:
    assert axis.block is not None
    size = Literal(str(axis.block))
    if as_int(extent_of(axis.symbol)) == axis.block:
        return Span(axis.symbol, ZERO, size)
    begin = Name(f"{axis.symbol.name}_begin")
    return _bounded_span(block, axis, Binary("*", number, size), Binary("+", begin, size))


def _bounded_span(block: Block, axis: Axis, first: Code, end: Code) -> Span:
    """Declare where a span begins and ends; where blocks do not fill the range, it ends with that."""
    name, extent = axis.symbol.name, extent_of(axis.symbol)
    begin, known = Name(f"{name}_begin"), as_int(extent)
    block.add(Declare("const i64", begin.text, first))
    if known is None or axis.block is None or known % axis.block:
        end = Call("min_i64", (end, block.index(extent)))
    block.add(Declare("const i64", f"{name}_end", end))
    return Span(axis.symbol, begin, Name(f"{name}_end"))


def nested(block: Block, spans: Sequence[Span]) -> tuple[Block, list[Block]]:
    """Open one loop per span; the innermost block, and the chain of blocks to close from the inside."""
    chain = [block]
    for span in spans:
        inner = chain[-1].inside()
        bind(inner, span.symbol)
        chain.append(inner)
    return chain[-1], chain


def close(chain: Sequence[Block], spans: Sequence[Span]) -> None:
    """Put each loop into the block around it."""
    for outer, inner, span in reversed(list(zip(chain[:-1], chain[1:], spans, strict=True))):
        outer.add(For(span.variable, span.begin, span.end, inner.body()))


def pointwise_body(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    """Loops of a unit without reductions."""
    if plan.across is not None:
        stage_tiles(block, region, plan, spans)
    serial = [spans.get(r) or whole(block, r) for r in plan.serial]
    inner, chain = nested(block, serial)
    if region.check is not None:
        _check_points(inner, region, plan, spans)
    else:
        _store_points(inner, region, plan, spans)
    close(chain, serial)


def _store_points(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    if plan.vector is None:
        perform(block, region)
        return
    span = spans.get(plan.vector.symbol) or whole(block, plan.vector.symbol)
    block.hoist(region.roots, frozenset((span.symbol,)))
    point = block.inside()
    bind(point, span.symbol)
    if plan.across is not None:
        for load, tile in staged_loads(region, plan).items():
            point.known[load] = from_memory(Element(Name(tile), _tile_offset(plan, spans)), load.dtype)
    perform(point, region)
    block.add(For(span.variable, span.begin, span.end, point.body(), simd=True))


def perform(point: Block, region: Region) -> None:
    """All stores of a region at one point. Values come first: a store may overwrite what another one reads."""
    for root in region.roots:
        point.value(root)
    for store in region.stores:
        point.store(store)


def staged_loads(region: Region, plan: Plan) -> dict[Load, str]:
    """Loads whose neighbours lie along `plan.across`, and the arrays that hold a tile of each."""
    assert plan.across is not None and plan.vector is not None
    found: dict[Load, str] = {}
    for value in postorder(region.roots):
        if isinstance(value, Load) and not value.operands:
            if lies_along(value.index[0], plan.across, plan.vector.symbol):
                found[value] = f"tile_{len(found)}"
    return found


def _tile_offset(plan: Plan, spans: dict[Expr, Span]) -> Code:
    """Where a point lies in a tile: rows run along `across`, and are padded against cache set conflicts."""
    assert plan.across is not None and plan.vector is not None and plan.vector.block is not None
    row, column = (_inside(spans[s]) for s in (plan.vector.symbol, plan.across))
    return Binary("+", Binary("*", row, Literal(str(plan.vector.block + 1))), column)


def _inside(span: Span) -> Code:
    name = Name(span.variable)
    return name if span.begin == ZERO else Binary("-", name, span.begin)


def stage_tiles(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    """Copy what the unit reads along `across` into tiles, line by line.

    Read directly, every vector of the main loop would gather from as many cache lines as it has elements.
    """
    assert plan.across is not None and plan.vector is not None and plan.vector.block is not None
    size = plan.vector.block
    for load, tile in staged_loads(region, plan).items():
        block.add(DeclareArray(memory_type(load.dtype), tile, size * (size + 1)))
        rows, columns = spans[plan.vector.symbol], spans[plan.across]
        point = block.inside()
        bind(point, rows.symbol, columns.symbol)
        source = Element(Name(load.buffer), point.index(load.index[0]))
        point.add(Assign(Element(Name(tile), _tile_offset(plan, spans)), source))
        line = For(columns.variable, columns.begin, columns.end, point.body(), simd=True)
        block.add(For(rows.variable, rows.begin, rows.end, (line,)))


def _check_points(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    assert region.check is not None
    number, check = region.check
    failed = Name("failed")
    # an integer: gcc leaves loops that gather a `bool` scalar
    block.add(Declare("i64", failed.text, ZERO))

    def test(point: Block, condition: Scalar) -> None:
        point.add(Assign(failed, Call("i64", (Unary("!", point.named(condition)),)), "|="))

    if plan.vector is None:
        test(block, check.condition)
    else:
        span = spans.get(plan.vector.symbol) or whole(block, plan.vector.symbol)
        point = block.inside()
        bind(point, span.symbol)
        test(point, check.condition)
        block.add(For(span.variable, span.begin, span.end, point.body()))
    block.add(If(failed, (Assign(Element(Name("failed_checks"), Literal(str(number))), ONE),)))


def points_per_unit(plan: Plan) -> Expr:
    """Number of points in a unit of work, the last unit of a blocked axis taken as full."""
    blocked = {a.symbol: a.block for a in plan.threaded if a.block is not None}
    inside = [r for r in (*plan.serial, *plan.reduction) if r not in blocked]
    if plan.vector is not None and plan.vector.symbol not in blocked:
        inside.append(plan.vector.symbol)
    return product([*(_longest(r) for r in inside), *(size for size in blocked.values())])


def _longest(symbol: Expr) -> Expr:
    """The extent of a range; where that depends on other ranges (the last piece is short), the largest one."""
    extent = extent_of(symbol)
    high = bounds(extent).hi
    depends = any(size.extent is not None for size in extent.free_symbols)
    return as_expr(high) if depends and high is not None else extent


def unit_count(plan: Plan) -> Expr:
    """Number of units of work."""
    return product(axis.units for axis in plan.threaded)


def grain(plans: Sequence[Plan], block: Block) -> Code:
    """Units that are worth a thread; a unit does what each of `plans` says."""
    per_unit = total([points_per_unit(plan) * plan.weight for plan in plans])
    known = as_int(per_unit)
    instructions = plans[0].grain_instructions
    if known is not None:
        return Literal(str(max(1, instructions // max(known, 1))))
    size = Call("max_i64", (block.index(per_unit), ONE))
    return Call("max_i64", (Binary("/", Literal(str(instructions)), size), ONE))
