"""Nests without reductions: the loops of a unit of work around its points.

What is contiguous along another range than the vector would be gathered from as many cache lines as a vector
has elements. So a unit of work, a block of either range, transposes what it reads into tiles first, and reads
vectors of these. What is only moved goes where it is stored at once.
"""

from __future__ import annotations

from typing import Final

from coilwork_cpp.nests.loops import (
    Span,
    bind_ranges,
    close_loops,
    make_span_offset,
    make_whole_span,
    open_loops,
)
from coilwork_cpp.planning.parallelism import is_contiguous_across
from coilwork_cpp.planning.plan import Plan
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.values.block import Block, decode_element
from coilwork_cpp.values.element_types import declare_array, get_memory_type
from coilwork_ir.index import Expr, as_expr, find_stride, substitute
from coilwork_ir.scalar import Load, Scalar
from coilwork_ir.syntax.cpp import (
    ONE,
    ZERO,
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    Do,
    Element,
    For,
    If,
    Literal,
    Name,
    Unary,
)

# ---- tiles ----


# Lines of a tile begin at multiples of so many elements, for vectors to be whole cache lines.
_ALIGNED: Final = 16


def stage_tiles(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> dict[Scalar, Code]:
    """Fill a tile per load that lies along `plan.across`; what the values of these loads are then
    known by.
    """
    assert plan.across is not None and plan.vector is not None and plan.vector.block is not None
    rows, columns = spans[plan.vector.symbol], spans[plan.across]
    length = next(axis.block for axis in plan.threaded if axis.symbol is plan.across)
    assert length is not None
    size = plan.vector.block + -plan.vector.block % _ALIGNED
    staged = [
        v for v in region.values if isinstance(v, Load) and is_contiguous_across(v, plan.across, rows.symbol)
    ]
    values: dict[Scalar, Code] = {}
    for load in staged:
        tile = Name(block.names.make_suffixed("tile"))
        block.add(declare_array(get_memory_type(load.dtype), tile.text, size * length))
        _transpose(block, "transpose", load, (tile, Literal(str(size))), rows, columns)
        line = Binary("*", make_span_offset(columns), Literal(str(size)))
        values[load] = decode_element(Element(tile, Binary("+", line, make_span_offset(rows))), load.dtype)
    return values


def move_tiles(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    """Transpose what the stores of `region`, whose values are loads along `plan.across`, move."""
    assert plan.across is not None and plan.vector is not None
    rows, columns = spans[plan.vector.symbol], spans[plan.across]
    for store in region.stores:
        assert isinstance(store.value, Load)
        step = find_stride(store.index, columns.symbol)
        assert step is not None
        to = _start_address(block, store.buffer, store.index, rows, columns), block.index(step)
        _transpose(block, "transpose_far", store.value, to, rows, columns)


def _transpose(
    block: Block, function: str, load: Load, to: tuple[Code, Code], rows: Span, columns: Span
) -> None:
    """Call `function` on what `load` reads, whose neighbours lie along `columns`; `to`: a place, and how far
    apart its lines are.
    """
    index = load.index[0]
    step = find_stride(index, rows.symbol)
    assert step is not None
    start = _start_address(block, load.buffer, index, rows, columns)
    counts = (_span_length(rows), _span_length(columns))
    block.add(Do(Call(function, (start, block.index(step), *to, *counts))))


def _start_address(block: Block, buffer: str, index: Expr, *spans: Span) -> Code:
    """Address of the element of `buffer` where all of `spans` begin."""
    first = block.open_nested()
    first.symbols.update({span.symbol: span.begin for span in spans})
    at_zero = {span.symbol: as_expr(0) for span in spans if span.begin == ZERO}
    return Binary("+", Name(buffer), first.index(substitute(index, at_zero)))


def _span_length(span: Span) -> Code:
    return span.end if span.begin == ZERO else Binary("-", span.end, span.begin)


# ---- points ----


def write_pointwise_body(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    """Loops of a unit without reductions."""
    tiles: dict[Scalar, Code] = {}
    if plan.across is not None:
        if plan.moves:
            move_tiles(block, region, plan, spans)
            return
        tiles = stage_tiles(block, region, plan, spans)
    serial = [spans.get(r) or make_whole_span(block, r) for r in plan.serial]
    inner, chain = open_loops(block, serial)
    inner.known.update(tiles)
    if region.check is not None:
        _check_points(inner, region, plan, spans)
    else:
        _store_points(inner, region, plan, spans)
    close_loops(chain, serial)


def _store_points(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    if plan.vector is None:
        block.store_all(region.stores)
        return
    span = spans.get(plan.vector.symbol) or make_whole_span(block, plan.vector.symbol)
    block.hoist(region.roots, frozenset((span.symbol,)))
    point = block.open_nested()
    bind_ranges(point, span.symbol)
    point.store_all(region.stores)
    block.add(For(span.variable, span.begin, span.end, point.body(), simd=True))


def _check_points(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    assert region.check is not None
    number, check = region.check
    failed = Name("failed")
    # an integer: gcc leaves loops that gather a `bool` scalar
    block.add(Declare("i64", failed.text, ZERO))

    def test(point: Block, condition: Scalar) -> None:
        point.add(Assign(failed, Call("i64", (Unary("!", point.name_value(condition)),)), "|="))

    if plan.vector is None:
        test(block, check.condition)
    else:
        span = spans.get(plan.vector.symbol) or make_whole_span(block, plan.vector.symbol)
        point = block.open_nested()
        bind_ranges(point, span.symbol)
        test(point, check.condition)
        block.add(For(span.variable, span.begin, span.end, point.body()))
    block.add(If(failed, (Assign(Element(Name("failed_checks"), Literal(str(number))), ONE),)))
