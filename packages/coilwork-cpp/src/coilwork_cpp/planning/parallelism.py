"""Decide what runs in parallel: the range that is the vector, and the units of work that threads share.

The vector is the innermost range of the text, whose neighbours are computed together. Without reductions it
is the range along which most bytes are contiguous. With reductions, either rows are vectorised along
themselves, and no vector is named, or neighbouring columns are reduced together, one lane each, and the
vector is the columns' range.

Mapping passes, in this order: `vectorize`, `transpose_tiles`, `share_units`, `weigh_units`; and
`join_pieces`, about two nests.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from coilwork_cpp.facts import collect_facts, count_instructions
from coilwork_cpp.planning.plan import Proposal
from coilwork_cpp.planning.regions import Region
from coilwork_ir.index import Expr, as_int, find_bounds, find_stride, get_extent
from coilwork_ir.kernels import Kernel, TensorArg
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.machine.model import Loops
from coilwork_ir.mapping import Block, Directive, Grain, Join, Sequential, Threads, Transpose, Vector, find
from coilwork_ir.scalar import Load, Reduce, Scan, Sort

# ---- vectors ----


_UNKNOWN_EXTENT: Final = 16
_FEW_ROWS: Final = 8
# Of a shorter range there is too little to copy.
_SHORT: Final = 16


def choose_vector(region: Region, args: MappingOf[str, TensorArg]) -> Expr | None:
    """Return the range to vectorise; None where rows are reduced along their own elements, or there is no
    range.
    """
    scores = _scores(region, args)
    free = region.parallel
    if not region.reduction:
        return max(free, key=lambda r: (scores[r], free.index(r)), default=None)
    inner = region.reduction[-1]
    # Columns of a tile must be equally long.
    uneven = frozenset(s for r in region.reduction for s in get_extent(r).free_symbols)
    sorts = any(isinstance(v, Sort) for v in region.values)
    # a sort takes a row at a time, whatever lies beside it
    candidates = [] if sorts else [r for r in free if r not in uneven]
    vector = max(candidates, key=lambda r: (scores[r], free.index(r)), default=None)
    if vector is None:
        return None
    if _score_prefers_columns(region, scores, vector, inner) or _gathers_along_rows(region, vector, inner):
        return vector
    return None


def should_vectorize_columns(kernel: Kernel, parallel: tuple[Expr, ...], reduction: tuple[Expr, ...]) -> bool:
    """Tell if `kernel`'s reductions would be vectorised across a parallel range."""
    roots = list_kernel_roots(kernel)
    region = Region(
        stores=kernel.stores,
        check=None,
        parallel=parallel,
        serial=(),
        reduction=reduction,
        facts=collect_facts(roots, (*parallel, *reduction)),
    )
    return choose_vector(region, {a.name: a for a in kernel.args}) is not None


def choose_transposition(region: Region, vector: Expr) -> Expr | None:
    """Return a range along which accesses that are strided along `vector` have unit stride, where points come
    in any order.
    """
    if region.serial or any(isinstance(value, Reduce | Scan) for value in region.values):
        return None
    loads = list_plain_loads(region)
    for r in region.parallel:
        if r is vector or is_short(r) or is_short(vector):
            continue
        for index in [load.index[0] for load in loads] + [s.index for s in region.stores if not s.indirect]:
            if is_contiguous_along(index, r, vector):
                return r
    return None


def guess_extent(symbol: Expr) -> int:
    """Return the extent of a range, or a guess."""
    known = as_int(get_extent(symbol))
    return _UNKNOWN_EXTENT if known is None else known


def has_many_points(units: int) -> bool:
    """Tell if there are as many as a range of unknown extent is taken to have."""
    return units >= _UNKNOWN_EXTENT


def _score_prefers_columns(region: Region, scores: dict[Expr, int], vector: Expr, inner: Expr) -> bool:
    points = 1
    for r in region.reduction:
        points *= guess_extent(r)
    known = all(as_int(get_extent(r)) is not None for r in region.reduction)
    if known and points < _FEW_ROWS and guess_extent(vector) >= _FEW_ROWS:
        return True
    return scores[vector] > scores[inner] and guess_extent(vector) >= _FEW_ROWS


def _gathers_along_rows(region: Region, vector: Expr, inner: Expr) -> bool:
    """Tell if rows would gather what lies along `vector`, of which columns may copy what lies along the rows
    into tiles.
    """
    if is_short(inner) or is_short(vector) or any(isinstance(v, Scan) for v in region.values):
        return False
    if any(is_contiguous_along(store.index, inner, vector) for store in region.stores):
        return False
    return any(
        is_contiguous_along(load.index[0], vector, inner)
        for load in list_plain_loads(region)
        if not load.operands
    )


def list_plain_loads(region: Region) -> list[Load]:
    """Loads at places that no other load decides."""
    return [v for v in region.values if isinstance(v, Load) and not v.indirect]


def is_contiguous_along(index: Expr, along: Expr, across: Expr) -> bool:
    """Tell if neighbours along `along` are neighbours in memory, and those along `across` are not."""
    near, far = find_stride(index, along), find_stride(index, across)
    return near is not None and far is not None and as_int(near) == 1 and as_int(far) not in (0, 1)


@dataclass(frozen=True, slots=True)
class _Access:
    """An access at innermost level: what it reads or writes, where, how many bytes per point, and ranges that
    it gathers along.
    """

    buffer: str
    index: Expr
    size_bytes: int
    gathers: frozenset[Expr]


def _accesses(region: Region, args: MappingOf[str, TensorArg]) -> list[_Access]:
    facts = region.facts
    accesses: list[_Access] = []
    for value in region.values:
        if isinstance(value, Load):
            gathers: frozenset[Expr] = frozenset()
            for operand in value.indirect:
                gathers |= facts.varies[operand]
            accesses.append(_Access(value.buffer, value.index[0], value.dtype.itemsize, gathers))
    for store in region.stores:
        gathers = frozenset()
        for operand in store.indirect:
            gathers |= facts.varies[operand]
        # A line that is written is read as well.
        accesses.append(_Access(store.buffer, store.index, 2 * args[store.buffer].dtype.itemsize, gathers))
    return accesses


def _scores(region: Region, args: MappingOf[str, TensorArg]) -> dict[Expr, int]:
    """Return for each range: bytes accessed at unit stride along it, minus bytes accessed at other strides.

    Real and imaginary parts side by side, each at a stride of 2, are as good as at unit stride: vectors of
    both are shuffled.
    """
    scores: dict[Expr, int] = {}
    accesses = _accesses(region, args)
    inner = frozenset(region.reduction)
    if inner:
        # What happens once per result hardly counts.
        accesses = [a for a in accesses if not inner.isdisjoint(a.index.free_symbols | a.gathers)]
    places = {(access.buffer, access.index) for access in accesses}
    for r in (*region.parallel, *region.reduction):
        score = 0
        for access in accesses:
            size = access.size_bytes
            if r in access.gathers:
                score -= size
            elif r in access.index.free_symbols:
                step = find_stride(access.index, r)
                dense = step is not None and _is_without_gaps(access, as_int(step), places)
                score += size if dense else -size
        scores[r] = score
    return scores


def _is_without_gaps(access: _Access, step: int | None, places: Set[tuple[str, Expr]]) -> bool:
    """Tell if `access`, with its neighbours among `places`, leaves nothing out in steps of `step`."""
    if step != 2:
        return step == 1
    return any((access.buffer, access.index + beside) in places for beside in (-1, 1))


def is_contiguous_across(load: Load, across: Expr, vector: Expr) -> bool:
    """Tell if the neighbours of what `load` reads, unguarded, lie along `across`, not `vector`."""
    return not load.operands and is_contiguous_along(load.index[0], across, vector)


def is_transposition(region: Region, args: MappingOf[str, TensorArg], across: Expr, vector: Expr) -> bool:
    """Tell if all stores of `region` put what lies along `across` along `vector`, as it is."""
    return region.check is None and all(
        store.mode == "store"
        and store.mask is None
        and not store.indirect
        and isinstance(store.value, Load)
        and store.value.dtype is args[store.buffer].dtype
        and is_contiguous_across(store.value, across, vector)
        and is_contiguous_along(store.index, vector, across)
        for store in region.stores
    )


def is_short(symbol: Expr) -> bool:
    extent = as_int(get_extent(symbol))
    return extent is not None and extent < _SHORT


# ---- units of work ----


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
    moves = is_transposition(region, proposal.args, across, vector)
    # Of what needs no tile of its own, long lines are read.
    by = (
        _clamp_to_extent(proposal.loops.long_tile if moves else proposal.loops.tile, across),
        _clamp_to_extent(proposal.loops.tile, vector),
    )
    return (Transpose(ranges=(across.name, vector.name), by=by, moves=moves),)


def share_units(proposal: Proposal) -> tuple[Directive, ...]:
    """Share what makes enough units of work among threads, in blocks of the vector; a unit walks the other
    ranges.
    """
    region, vector = proposal.region, proposal.vector
    tile = find(proposal.nest.directives, Transpose)
    if vector is None and not region.reduction:
        return _unit_directives((), (), region.serial)
    if vector is None:
        shared, rest = _split_leading_units(region.parallel, proposal.loops)
        return _unit_directives(shared, (), (*rest, *region.serial))
    others = tuple(r for r in region.parallel if r is not vector)
    if region.reduction:
        block = _column_block(region, vector, others, proposal.loops)
        return _unit_directives((*others, vector), ((vector, block),), region.serial)
    if tile is not None:
        across = next(r for r in others if r.name == tile.ranges[0])
        return _unit_directives((*others, vector), ((across, tile.by[0]), (vector, tile.by[1])), (across,))
    high = find_bounds(get_extent(vector)).hi
    if high is not None and high <= 2 * proposal.loops.block and not (region.serial and not others):
        shared, rest = _split_leading_units(others, proposal.loops)
        return _unit_directives(shared, (), (*rest, *region.serial))
    # With serial loops inside, short blocks are what gives threads something to share.
    block = proposal.loops.tile if region.serial else proposal.loops.block
    together = bool(region.serial) and not others
    return _unit_directives((*others, vector), ((vector, block),), region.serial, together=together)


def weigh_units(proposal: Proposal) -> tuple[Directive, ...]:
    """Give a thread as many units as repay starting it, by the instructions of a point; a tile takes twice as
    many.
    """
    weight = max(1, count_instructions(proposal.region.roots) // 3)
    tiled = any(
        isinstance(directive, Transpose) and directive.step is None for directive in proposal.nest.directives
    )
    return (Grain(instructions=proposal.loops.grain, at=2 * weight if tiled else weight),)


def join_pieces(proposal: Proposal, before: Proposal) -> tuple[Directive, ...]:
    """Keep pieces of the same rows together: the later one finds the rows' ends in the cache."""
    for piece in (proposal, before):
        threads = find(piece.nest.directives, Threads)
        blocks = find(piece.nest.directives, Block)
        if piece.region.reduction or threads is None or not threads.ranges or blocks is not None:
            return ()
    same = find(proposal.nest.directives, Threads) == find(before.nest.directives, Threads)
    symbols = [{r.symbol.name: r.symbol for r in piece.kernel.ranges} for piece in (proposal, before)]
    threads = find(proposal.nest.directives, Threads)
    assert threads is not None
    alike = same and all(symbols[0][name] is symbols[1][name] for name in threads.ranges)
    return (Join(),) if alike else ()


def _unit_directives(
    shared: tuple[Expr, ...],
    blocks: tuple[tuple[Expr, int], ...],
    serial: tuple[Expr, ...],
    *,
    together: bool = False,
) -> tuple[Directive, ...]:
    directives: list[Directive] = [Threads(ranges=tuple(r.name for r in shared), together=together)]
    directives += [Block(range=r.name, by=by) for r, by in blocks]
    if serial:
        directives.append(Sequential(ranges=tuple(r.name for r in serial)))
    return tuple(directives)


def _split_leading_units(ranges: tuple[Expr, ...], loops: Loops) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Return the leading ranges that make enough units of work, and the rest, which are loops inside a
    unit.
    """
    units = 1
    for count, r in enumerate(ranges):
        if units >= loops.enough_units:
            return ranges[:count], ranges[count:]
        units *= guess_extent(r)
    return ranges, ()


def _column_block(region: Region, vector: Expr, others: tuple[Expr, ...], loops: Loops) -> int:
    """Return the number of columns that are reduced together."""
    tile = _find_widest_block(vector, others, loops)
    if any(
        is_contiguous_along(load.index[0], region.reduction[-1], vector) for load in list_plain_loads(region)
    ):
        # what columns copy lies on a thread's stack, a block of rows for each of them
        tile = min(tile, loops.tile)
    return tile


def _find_widest_block(vector: Expr, others: tuple[Expr, ...], loops: Loops) -> int:
    extent = as_int(get_extent(vector))
    units = 1
    for r in others:
        units *= guess_extent(r)
    if extent is not None and extent <= loops.widest_tile and has_many_points(units):
        # Whole rows of memory, one after the other, are what prefetching likes best.
        return extent
    if extent is None:
        return 128
    if extent <= loops.tile:
        return extent
    return 256 if extent >= loops.many_columns else loops.tile


def _clamp_to_extent(size: int, symbol: Expr) -> int:
    """`size`, or the extent of a range that has fewer points."""
    extent = as_int(get_extent(symbol))
    return size if extent is None else min(size, max(extent, 1))
