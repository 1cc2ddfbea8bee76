"""Points that are computed one by one: the loops of a unit of work without reductions."""

from __future__ import annotations

from coilwork_cpp.nests.nest import Span, bind, close, nested, whole
from coilwork_cpp.nests.tiles import move_tiles, stage_tiles
from coilwork_cpp.planning.plan import Plan
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.values.values import Block
from coilwork_ir.index import Expr
from coilwork_ir.scalar import Scalar
from coilwork_ir.syntax.cpp import (
    ONE,
    ZERO,
    Assign,
    Call,
    Code,
    Declare,
    Element,
    For,
    If,
    Literal,
    Name,
    Unary,
)


def pointwise_body(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    """Loops of a unit without reductions."""
    tiles: dict[Scalar, Code] = {}
    if plan.across is not None:
        if plan.moves:
            move_tiles(block, region, plan, spans)
            return
        tiles = stage_tiles(block, region, plan, spans)
    serial = [spans.get(r) or whole(block, r) for r in plan.serial]
    inner, chain = nested(block, serial)
    inner.known.update(tiles)
    if region.check is not None:
        _check_points(inner, region, plan, spans)
    else:
        _store_points(inner, region, plan, spans)
    close(chain, serial)


def _store_points(block: Block, region: Region, plan: Plan, spans: dict[Expr, Span]) -> None:
    if plan.vector is None:
        block.store_all(region.stores)
        return
    span = spans.get(plan.vector.symbol) or whole(block, plan.vector.symbol)
    block.hoist(region.roots, frozenset((span.symbol,)))
    point = block.inside()
    bind(point, span.symbol)
    point.store_all(region.stores)
    block.add(For(span.variable, span.begin, span.end, point.body(), simd=True))


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
