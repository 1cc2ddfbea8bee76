"""Passes over two reduction ranges of which some reads are contiguous along one, and some along the other.

Such is the group norm of the sum of a channels-first and a channels-last image. Walked in one order, the
other half of the reads gathers from as many cache lines as there are lanes, which lie a power of two apart at
worst. So both ranges are walked in blocks, and what lies across is copied into a tile, line by line, before a
block is reduced:

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

from coilwork_cpp.nests.lanes import declare_lane_arrays, write_lane_loops
from coilwork_cpp.nests.loops import (
    Span,
    bind_ranges,
    close_loops,
    copy_tile,
    open_loops,
    whole_span,
)
from coilwork_cpp.planning.pass_directives import find_staged_loads
from coilwork_cpp.planning.passes import Pass
from coilwork_cpp.planning.plan import PassPlan
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.values.block import Block
from coilwork_cpp.values.reductions import merge_lanes
from coilwork_ir.index import Expr, as_int, extent_of
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
)


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
    others = [whole_span(block, r) for r in region.reduction[:-1] if r is not across]
    holder, chain = open_loops(block, others)
    outer_block = holder.inside()
    rows = _block_span(outer_block, across, lines)
    body = outer_block.inside()
    columns = _block_span(body, inner, points)
    width = lines + 1
    for load in find_staged_loads(region, step, across):
        copy_tile(body, load, rows, columns, _block_size(inner, points) * width, width)
    arrays = declare_lane_arrays(body, totals, walk.lanes)
    line = body.inside()
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
    extent = as_int(extent_of(inner))
    return points if extent is None else min(points, max(extent, 1))


def _block_span(block: Block, symbol: Expr, size: int) -> Span:
    """The points of one block, whose loop `_close_block` puts around `block`; all points, if one block has
    them all.
    """
    extent = as_int(extent_of(symbol))
    if extent is not None and extent <= size:
        return whole_span(block, symbol)
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
