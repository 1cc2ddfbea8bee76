"""Loops around points: units of work, blocks of a reduction, and the copies of blocks in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coilwork_cpp.planning.plan import Axis, Cut, Plan
from coilwork_cpp.values.block import Block
from coilwork_cpp.values.element_types import declare_array, get_value_type
from coilwork_ir.index import (
    Expr,
    add_all,
    as_expr,
    as_int,
    find_bounds,
    get_extent,
    multiply_all,
    provably_divisible,
)
from coilwork_ir.scalar import Load
from coilwork_ir.syntax.cpp import ONE, ZERO, Assign, Binary, Call, Code, Declare, Element, For, Literal, Name

# ---- units of work ----


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


def make_whole_span(block: Block, symbol: Expr) -> Span:
    """Return all points of `symbol`."""
    return Span(symbol, ZERO, block.index(get_extent(symbol)))


def make_span_offset(span: Span) -> Code:
    """Return the number of the current point, counted from where `span` begins."""
    name = Name(span.variable)
    return name if span.begin == ZERO else Binary("-", name, span.begin)


def bind_ranges(block: Block, *symbols: Expr) -> None:
    """Give range symbols their C++ names in `block`."""
    for symbol in symbols:
        block.symbols[symbol] = Name(symbol.name)


def decode_unit(block: Block, plan: Plan, unit: Code) -> dict[Expr, Span]:
    """Declare what unit number `unit` fixes; the spans of blocked axes."""
    spans: dict[Expr, Span] = {}
    last = len(plan.threaded) - 1
    for position, axis in enumerate(plan.threaded):
        inner = multiply_all(a.units for a in plan.threaded[position + 1 :])
        number = unit
        if position < last:
            number = Binary("/", number, block.index(inner))
        if position > 0:
            number = Binary("%", number, block.index(axis.units))
        if axis.block is None:
            block.add(Declare("const i64", axis.symbol.name, number))
            bind_ranges(block, axis.symbol)
        else:
            spans[axis.symbol] = _block_span(block, axis, number)
    return spans


def declare_units_span(block: Block, axis: Axis, begin: Code, end: Code) -> Span:
    """Declare the points of all units from number `begin` to `end` of the one axis there is."""
    assert axis.block is not None
    size = Literal(str(axis.block))
    return _declare_span(block, axis, axis.block, Binary("*", begin, size), Binary("*", end, size))


def _block_span(block: Block, axis: Axis, number: Code) -> Span:
    assert axis.block is not None
    size = Literal(str(axis.block))
    if as_int(get_extent(axis.symbol)) == axis.block:
        return Span(axis.symbol, ZERO, size)
    begin = Name(f"{axis.symbol.name}_begin")
    return _declare_span(block, axis, axis.block, Binary("*", number, size), Binary("+", begin, size))


def _declare_span(block: Block, axis: Axis, size: int, first: Code, end: Code) -> Span:
    """Declare where a span begins and ends; where blocks of `size` do not fill the range, it ends
    with that.
    """
    name, extent = axis.symbol.name, get_extent(axis.symbol)
    begin = Name(f"{name}_begin")
    block.add(Declare("const i64", begin.text, first))
    if not provably_divisible(extent, size):
        end = Call("min_i64", (end, block.index(extent)))
    block.add(Declare("const i64", f"{name}_end", end))
    return Span(axis.symbol, begin, Name(f"{name}_end"))


def open_loops(block: Block, spans: Sequence[Span]) -> tuple[Block, list[Block]]:
    """Open one loop per span; the innermost block, and the chain of blocks to close from the inside."""
    chain = [block]
    for span in spans:
        inner = chain[-1].open_nested()
        bind_ranges(inner, span.symbol)
        chain.append(inner)
    return chain[-1], chain


def close_loops(chain: Sequence[Block], spans: Sequence[Span]) -> None:
    """Put each loop into the block around it."""
    for outer, inner, span in reversed(list(zip(chain[:-1], chain[1:], spans, strict=True))):
        outer.add(For(span.variable, span.begin, span.end, inner.body()))


def count_unit_points(plan: Plan) -> Expr:
    """Number of points in a unit of work, the last unit of a blocked axis taken as full."""
    blocked = {a.symbol: a.block for a in plan.threaded if a.block is not None}
    inside = [r for r in (*plan.serial, *plan.reduction) if r not in blocked]
    if plan.vector is not None and plan.vector.symbol not in blocked:
        inside.append(plan.vector.symbol)
    return multiply_all([*(_find_longest_extent(r) for r in inside), *(size for size in blocked.values())])


def _find_longest_extent(symbol: Expr) -> Expr:
    """Return the extent of a range; where that depends on other ranges (the last piece is short), the
    largest one.
    """
    extent = get_extent(symbol)
    high = find_bounds(extent).hi
    depends = any(size.extent is not None for size in extent.free_symbols)
    return as_expr(high) if depends and high is not None else extent


def count_units(plan: Plan) -> Expr:
    """Number of units of work."""
    return multiply_all(axis.units for axis in plan.threaded)


def compute_thread_grain(plans: Sequence[Plan], block: Block) -> Code:
    """Units that are worth a thread; a unit does what each of `plans` says."""
    per_unit = add_all([count_unit_points(plan) * plan.weight for plan in plans])
    known = as_int(per_unit)
    instructions = plans[0].grain
    if known is not None:
        return Literal(str(max(1, instructions // max(known, 1))))
    size = Call("max_i64", (block.index(per_unit), ONE))
    return Call("max_i64", (Binary("/", Literal(str(instructions)), size), ONE))


# ---- blocks ----


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLoops:
    """Loops that are open.

    Attributes:
        cut: which ranges they walk.
        block: where one block of points begins and ends: what is set before it, and folded after it, goes
            here.
        spans: what a block walks, to be nested in `block`. The first is the block's part of `cut.middle`, if
            there is one.
    """

    cut: Cut
    block: Block
    spans: tuple[Span, ...]
    chain: tuple[Block, ...]
    outer: tuple[Span, ...]

    @property
    def rows(self) -> Span:
        """The block's part of `cut.middle`."""
        assert self.cut.middle is not None
        return self.spans[0]

    def close(self) -> None:
        """Put each loop into what is around it."""
        around, middle = self.chain[-1], self.cut.middle
        if middle is not None:
            limit = around.index(get_extent(middle))
            around.add(For(f"{middle.name}_begin", ZERO, limit, self.block.body(), step=self.cut.size))
        close_loops(self.chain, self.outer)


def open_blocks(block: Block, cut: Cut) -> BlockLoops:
    """Return the loops of `cut` in `block`."""
    outer = tuple(make_whole_span(block, r) for r in cut.outer)
    around, chain = open_loops(block, outer)
    spans = tuple(make_whole_span(around, r) for r in cut.inner)
    holder = around
    if cut.middle is not None:
        # the loop over blocks: its variable is where the block begins
        holder = around.open_nested()
        begin, end = Name(f"{cut.middle.name}_begin"), Name(f"{cut.middle.name}_end")
        limit = around.index(get_extent(cut.middle))
        next_block = Binary("+", begin, Literal(str(cut.size)))
        holder.add(Declare("const i64", end.text, Call("min_i64", (next_block, limit))))
        spans = (Span(cut.middle, begin, end), *spans)
    return BlockLoops(cut=cut, block=holder, spans=spans, chain=tuple(chain), outer=outer)


# ---- tiles ----


def copy_tile(block: Block, load: Load, rows: Span, columns: Span, elements: int, width: int) -> None:
    """Fill a tile of `elements` with what `load` reads, its lines along `rows`, and make it what the load's
    value is known by.

    Lines are `width` elements apart, padded against cache set conflicts.
    """
    dtype, array = load.dtype, Name(block.names.make_suffixed("tile"))
    block.add(declare_array("u8" if dtype.is_bool else get_value_type(dtype), array.text, elements))
    offset = Binary("+", Binary("*", make_span_offset(columns), Literal(str(width))), make_span_offset(rows))
    element = Element(array, offset)
    line = block.open_nested()
    bind_ranges(line, columns.symbol)
    line.hoist((load,), frozenset((rows.symbol,)))
    point = line.open_nested()
    bind_ranges(point, rows.symbol)
    code = point.value(load)
    point.add(Assign(element, Call("u8", (code,)) if dtype.is_bool else code))
    line.add(For(rows.variable, rows.begin, rows.end, point.body(), simd=True))
    block.add(For(columns.variable, columns.begin, columns.end, line.body()))
    block.known[load] = Binary("!=", element, ZERO) if dtype.is_bool else element
