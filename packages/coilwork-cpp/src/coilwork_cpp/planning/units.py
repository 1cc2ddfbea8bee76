"""Decisions about units of work: which ranges threads share, in what blocks, and which a unit walks.

Four mapping passes, in this order: `vectorize`, `transpose_tiles`, `share_units` and `weigh_units`; and
`join_pieces`, about two nests.
"""

from __future__ import annotations

from coilwork_cpp.facts import work
from coilwork_cpp.planning.plan import Proposal
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.planning.vectors import (
    choose_transposition,
    choose_vector,
    has_many_points,
    lies_along,
    likely_extent,
    moves_only,
    plain_loads,
)
from coilwork_ir.index import Expr, as_int, bounds, extent_of
from coilwork_ir.machine.model import Loops
from coilwork_ir.mapping import Block, Directive, Grain, Join, Sequential, Threads, Transpose, Vector, find


def vectorize(proposal: Proposal) -> tuple[Directive, ...]:
    """Compute neighbours along the range with most bytes at unit stride together; of short or strided rows,
    columns.
    """
    vector = choose_vector(proposal.region, proposal.args)
    return () if vector is None else (Vector(range=vector.name),)


def transpose_tiles(proposal: Proposal) -> tuple[Directive, ...]:
    """Transpose in tiles what lies along another range than the vector, which would gather it from as many
    cache lines.
    """
    region, vector = proposal.region, proposal.vector
    across = None if vector is None or region.reduction else choose_transposition(region, vector)
    if vector is None or across is None:
        return ()
    moves = moves_only(region, proposal.args, across, vector)
    # Of what needs no tile of its own, long lines are read.
    by = (
        _at_most(proposal.loops.long_tile if moves else proposal.loops.tile, across),
        _at_most(proposal.loops.tile, vector),
    )
    return (Transpose(ranges=(across.name, vector.name), by=by, moves=moves),)


def share_units(proposal: Proposal) -> tuple[Directive, ...]:
    """Share what makes enough units of work among threads, in blocks of the vector; a unit walks the other
    ranges.
    """
    region, vector = proposal.region, proposal.vector
    tile = find(proposal.nest.directives, Transpose)
    if vector is None and not region.reduction:
        return _units((), (), region.serial)
    if vector is None:
        shared, rest = _first_units(region.parallel, proposal.loops)
        return _units(shared, (), (*rest, *region.serial))
    others = tuple(r for r in region.parallel if r is not vector)
    if region.reduction:
        block = _column_block(region, vector, others, proposal.loops)
        return _units((*others, vector), ((vector, block),), region.serial)
    if tile is not None:
        across = next(r for r in others if r.name == tile.ranges[0])
        return _units((*others, vector), ((across, tile.by[0]), (vector, tile.by[1])), (across,))
    high = bounds(extent_of(vector)).hi
    if high is not None and high <= 2 * proposal.loops.block and not (region.serial and not others):
        shared, rest = _first_units(others, proposal.loops)
        return _units(shared, (), (*rest, *region.serial))
    # With serial loops inside, short blocks are what gives threads something to share.
    block = proposal.loops.tile if region.serial else proposal.loops.block
    together = bool(region.serial) and not others
    return _units((*others, vector), ((vector, block),), region.serial, together=together)


def weigh_units(proposal: Proposal) -> tuple[Directive, ...]:
    """Give a thread as many units as repay starting it, by the instructions of a point; a tile takes twice as
    many.
    """
    weight = max(1, work(proposal.region.roots) // 3)
    tiled = any(isinstance(one, Transpose) and one.step is None for one in proposal.nest.directives)
    return (Grain(instructions=proposal.loops.grain, at=2 * weight if tiled else weight),)


def join_pieces(proposal: Proposal, before: Proposal) -> tuple[Directive, ...]:
    """Keep pieces of the same rows together: the later one finds the rows' ends in the cache."""
    for one in (proposal, before):
        threads = find(one.nest.directives, Threads)
        blocks = find(one.nest.directives, Block)
        if one.region.reduction or threads is None or not threads.ranges or blocks is not None:
            return ()
    same = find(proposal.nest.directives, Threads) == find(before.nest.directives, Threads)
    symbols = [{r.symbol.name: r.symbol for r in one.kernel.ranges} for one in (proposal, before)]
    threads = find(proposal.nest.directives, Threads)
    assert threads is not None
    alike = same and all(symbols[0][name] is symbols[1][name] for name in threads.ranges)
    return (Join(),) if alike else ()


def _units(
    shared: tuple[Expr, ...],
    blocks: tuple[tuple[Expr, int], ...],
    serial: tuple[Expr, ...],
    *,
    together: bool = False,
) -> tuple[Directive, ...]:
    found: list[Directive] = [Threads(ranges=tuple(r.name for r in shared), together=together)]
    found += [Block(range=r.name, by=by) for r, by in blocks]
    if serial:
        found.append(Sequential(ranges=tuple(r.name for r in serial)))
    return tuple(found)


def _first_units(ranges: tuple[Expr, ...], loops: Loops) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The leading ranges that make enough units of work, and the rest, which are loops inside a unit."""
    units = 1
    for count, r in enumerate(ranges):
        if units >= loops.enough_units:
            return ranges[:count], ranges[count:]
        units *= likely_extent(r)
    return ranges, ()


def _column_block(region: Region, vector: Expr, others: tuple[Expr, ...], loops: Loops) -> int:
    """The number of columns that are reduced together."""
    tile = _widest_block(vector, others, loops)
    if any(lies_along(load.index[0], region.reduction[-1], vector) for load in plain_loads(region)):
        # what columns copy lies on a thread's stack, a block of rows for each of them
        tile = min(tile, loops.tile)
    return tile


def _widest_block(vector: Expr, others: tuple[Expr, ...], loops: Loops) -> int:
    extent = as_int(extent_of(vector))
    units = 1
    for r in others:
        units *= likely_extent(r)
    if extent is not None and extent <= loops.widest_tile and has_many_points(units):
        # Whole rows of memory, one after the other, are what prefetching likes best.
        return extent
    if extent is None:
        return 128
    if extent <= loops.tile:
        return extent
    return 256 if extent >= loops.many_columns else loops.tile


def _at_most(size: int, symbol: Expr) -> int:
    """`size`, or the extent of a range that has fewer points."""
    extent = as_int(extent_of(symbol))
    return size if extent is None else min(size, max(extent, 1))
