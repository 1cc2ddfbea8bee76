"""Passes over two reduction ranges of which some reads are contiguous along one, and some along the other.

Such is the group norm of the sum of a channels-first and a channels-last image. Walked in one order, the other half of the reads
gathers from as many cache lines as there are lanes, which lie a power of two apart at worst. So both ranges are walked in blocks, and
what lies across is copied into a tile, line by line, before a block is reduced:

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
from typing import Final

from coilwork_cpp.nests.lanes import lane_arrays, lane_loops
from coilwork_cpp.nests.nest import Span, bind, close, nested, whole
from coilwork_cpp.planning.passes import Pass
from coilwork_cpp.planning.plan import lies_along
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.text.elements import value_type
from coilwork_cpp.text.tree import (
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
)
from coilwork_cpp.values.reductions import is_positional, merge
from coilwork_cpp.values.values import Block
from coilwork_ir.index import Expr, as_int, extent_of
from coilwork_ir.scalar import Load, Reduce, Scalar, Scan, postorder

# Points of the innermost range in a block, and of a block altogether: as many as f32 partial sums may take.
_INNER: Final = 64
_POINTS: Final = 4096
_LONGEST: Final = 256
# Of a shorter range there is too little to copy.
_SHORTEST: Final = 16


def crossing_range(region: Region, step: Pass) -> Expr | None:
    """The reduction range, other than the innermost, along which most reads of `step` lie that are strided along that."""
    if step.scans or any(is_positional(reduce) for reduce in step.reduces):
        # their points must come in order
        return None
    counts = {r: len(_crossing_loads(region, step, r)) for r in region.reduction[:-1]}
    best = max(counts, key=lambda r: counts[r], default=None)
    return best if best is not None and counts[best] else None


def _crossing_loads(region: Region, step: Pass, across: Expr) -> list[Load]:
    extent = as_int(extent_of(across))
    if extent is not None and extent < _SHORTEST:
        return []
    found: list[Load] = []
    for value in _needed(step):
        if not isinstance(value, Load) or value.indirect or not _is_positioned(value):
            continue
        if lies_along(value.index[0], across, region.reduction[-1]):
            found.append(value)
    return found


def tiled_loads(region: Region, step: Pass, columns: Expr) -> list[Load]:
    """What `step`, over columns, reads that lies along the innermost reduction range: columns would gather it."""
    inner = region.reduction[-1]
    extent = as_int(extent_of(inner))
    if step.scans or (extent is not None and extent < _SHORTEST):
        return []
    found = [v for v in _needed(step) if isinstance(v, Load) and not v.indirect and _is_positioned(v)]
    return [load for load in found if lies_along(load.index[0], inner, columns)]


def _needed(step: Pass) -> list[Scalar]:
    """Values that `step` computes, in order: what was kept by an earlier pass, or reduced, ends the search."""
    found: dict[Scalar, None] = {}
    stack = list(reversed(step.roots))
    while stack:
        value = stack.pop()
        if value in found or value in step.recalls or isinstance(value, Reduce):
            continue
        found[value] = None
        stack.extend(reversed(value.operands))
    return list(found)


def _is_positioned(load: Load) -> bool:
    """Whether the guard of `load`, if any, depends on positions alone."""
    return not any(isinstance(v, Load | Reduce | Scan) for o in load.operands for v in postorder((o,)))


def crossing_pass(
    block: Block,
    region: Region,
    step: Pass,
    kept: dict[Scalar, Name],
    totals: Mapping[Reduce, tuple[Name, ...]],
    across: Expr,
    lanes: int,
) -> None:
    """The loops of a pass, in blocks of `across` and of the innermost range."""
    inner = region.reduction[-1]
    others = [whole(block, r) for r in region.reduction[:-1] if r is not across]
    holder, chain = nested(block, others)
    size = _block_size(inner)
    outer_block = holder.inside()
    rows = _block_span(outer_block, across, min(_LONGEST, _POINTS // size))
    body = outer_block.inside()
    columns = _block_span(body, inner, _INNER)
    width = min(_LONGEST, _POINTS // size) + 1
    for load in _crossing_loads(region, step, across):
        copy_tile(body, load, rows, columns, size * width, width)
    arrays = lane_arrays(body, totals, lanes)
    line = body.inside()
    bind(line, across)
    line.hoist(step.roots, frozenset((inner,)))
    lane_loops(line, region, step, kept, arrays, columns, lanes)
    body.add(For(rows.variable, rows.begin, rows.end, line.body()))
    for reduce, names in arrays.items():
        body.add(*merge(reduce, totals[reduce], names, lanes))
    _close_block(outer_block, body, inner, columns, _INNER)
    _close_block(holder, outer_block, across, rows, min(_LONGEST, _POINTS // size))
    close(chain, others)


def _block_size(inner: Expr) -> int:
    extent = as_int(extent_of(inner))
    return _INNER if extent is None else min(_INNER, max(extent, 1))


def _block_span(block: Block, symbol: Expr, size: int) -> Span:
    """The points of one block, whose loop `_close_block` puts around `block`; all points, if one block has them all."""
    extent = as_int(extent_of(symbol))
    if extent is not None and extent <= size:
        return whole(block, symbol)
    begin, end = Name(f"{symbol.name}_begin"), Name(f"{symbol.name}_end")
    behind: Code = Binary("+", begin, Literal(str(size)))
    if extent is None or extent % size:
        behind = Call("min_i64", (behind, block.index(extent_of(symbol))))
    block.add(Declare("const i64", end.text, behind))
    return Span(symbol, begin, end)


def _close_block(around: Block, block: Block, symbol: Expr, span: Span, size: int) -> None:
    if span.begin == ZERO:
        around.add(*block.body())
    else:
        limit = around.index(extent_of(symbol))
        around.add(For(f"{symbol.name}_begin", ZERO, limit, block.body(), step=size))


def _inside(span: Span) -> Code:
    name = Name(span.variable)
    return name if span.begin == ZERO else Binary("-", name, span.begin)


def copy_tile(block: Block, load: Load, rows: Span, columns: Span, elements: int, width: int) -> None:
    """Fill a tile of `elements` with what `load` reads, its lines along `rows`, and make it what the load's value is known by.

    Lines are `width` elements apart, padded against cache set conflicts.
    """
    dtype, array = load.dtype, Name(block.names.fresh("tile"))
    block.add(DeclareArray("u8" if dtype.is_bool else value_type(dtype), array.text, elements))
    offset = Binary("+", Binary("*", _inside(columns), Literal(str(width))), _inside(rows))
    element = Element(array, offset)
    line = block.inside()
    bind(line, columns.symbol)
    line.hoist((load,), frozenset((rows.symbol,)))
    point = line.inside()
    bind(point, rows.symbol)
    code = point.value(load)
    point.add(Assign(element, Call("u8", (code,)) if dtype.is_bool else code))
    line.add(For(rows.variable, rows.begin, rows.end, point.body(), simd=True))
    block.add(For(columns.variable, columns.begin, columns.end, line.body()))
    block.known[load] = Binary("!=", element, ZERO) if dtype.is_bool else element
