"""Reductions across the vectorised range in the order of rows: what `batch_invariant` makes of a pass of
`columns`.

Whether a reduction is vectorised along its elements or across its results depends on strides and extents,
hence on how many rows there are. So that its bits do not, a column has as many partial results here as a row
has lanes, and they are folded alike:

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

from coilwork_cpp.nests.lanes import combine_point, flat_position
from coilwork_cpp.nests.loops import BlockLoops, Span, bind, close, nested, open_blocks
from coilwork_cpp.planning.passes import Pass
from coilwork_cpp.planning.plan import FIXED_LANES, Cut
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.values.elements import aligned_array
from coilwork_cpp.values.reductions import (
    components,
    finish,
    fold_pair,
    fold_total,
    is_positional,
)
from coilwork_cpp.values.values import Block
from coilwork_ir.scalar import Reduce
from coilwork_ir.syntax.cpp import (
    ZERO,
    Assign,
    Binary,
    Code,
    Element,
    For,
    Literal,
    Name,
    Statement,
)


def fixed_pass(
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
        stem = block.names.numbered(reduce.kind)
        totals[reduce] = tuple(Name(stem + part.suffix) for part in components(reduce))
        for name, part in zip(totals[reduce], components(reduce), strict=True):
            block.add(aligned_array(part.total_type, name.text, tile))
            start.append(Assign(Element(name, lane), part.total_start))
        if not is_positional(reduce):
            lanes[reduce] = Name(f"{stem}_lanes")
            block.add(aligned_array(components(reduce)[0].type, lanes[reduce].text, FIXED_LANES * tile))
    if start:
        block.add(_over(columns, *start))

    loops = open_blocks(block, shape)
    for reduce, name in lanes.items():
        every = Binary("+", Binary("*", Name("l"), Literal(str(tile))), lane)
        reset = Assign(Element(name, every), components(reduce)[0].start)
        loops.block.add(For("l", ZERO, Literal(str(FIXED_LANES)), (_over(columns, reset),)))
    _points(loops, region, tile, step, columns, lane, totals, lanes)
    for reduce, name in lanes.items():
        loops.block.add(*_folded(reduce, totals[reduce][0], name, tile, columns, lane))
    loops.close()
    for reduce, names in totals.items():
        block.known[reduce] = finish(reduce, tuple(Element(name, lane) for name in names))


def _points(
    loops: BlockLoops,
    region: Region,
    tile: int,
    step: Pass,
    columns: Span,
    lane: Code,
    totals: dict[Reduce, tuple[Name, ...]],
    lanes: dict[Reduce, Name],
) -> None:
    inner, chain = nested(loops.block, loops.spans)
    inner.hoist(step.roots, frozenset((columns.symbol,)))
    own: Code = Binary("%", Name(region.reduction[-1].name), Literal(str(FIXED_LANES)))
    own = inner.declare_index("lane_first", Binary("*", own, Literal(str(tile))))
    point = inner.inside()
    bind(point, columns.symbol)
    position = flat_position(point, region.reduction)
    for reduce in step.reduces:
        if reduce in lanes:
            state: tuple[Code, ...] = (Element(lanes[reduce], Binary("+", own, lane)),)
        else:
            state = tuple(Element(name, lane) for name in totals[reduce])
        combine_point(point, reduce, state, position)
    point.store_all(step.stores)
    inner.add(_over(columns, *point.body()))
    close(chain, loops.spans)


def _folded(
    reduce: Reduce, total: Name, lanes: Name, tile: int, columns: Span, lane: Code
) -> list[Statement]:
    """Lanes in pairs, as far apart as they can be, as the folds of rows do it; then into the total."""
    found: list[Statement] = []
    half = FIXED_LANES // 2
    while half:
        low = Binary("+", Binary("*", Name("l"), Literal(str(tile))), lane)
        high = Binary("+", Binary("*", Binary("+", Name("l"), Literal(str(half))), Literal(str(tile))), lane)
        pair = fold_pair(reduce, Element(lanes, low), Element(lanes, high))
        found.append(For("l", ZERO, Literal(str(half)), (_over(columns, *pair),)))
        half //= 2
    found.append(_over(columns, fold_total(reduce, Element(total, lane), Element(lanes, lane))))
    return found


def _over(columns: Span, *body: Statement) -> For:
    return For(columns.variable, columns.begin, columns.end, body, simd=True)
