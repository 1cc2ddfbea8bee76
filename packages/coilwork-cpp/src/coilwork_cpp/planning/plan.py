"""The shape of a region's loop nest: which ranges threads share, which is vectorised, and in what pieces."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from coilwork_cpp.planning.facts import facts_of, work
from coilwork_cpp.planning.regions import Region
from coilwork_ir.index import Expr, as_int, bounds, ceildiv, extent_of, stride_of
from coilwork_ir.kernels import Kernel, TensorArg
from coilwork_ir.kernels.roots import kernel_roots
from coilwork_ir.scalar import Load, Reduce, Scan, Sort, postorder

# Elements of a range that threads share in blocks. Fixed, so that vector and scalar code meet the same elements
# whatever the number of threads.
BLOCK: Final = 4096
_WHOLE: Final = 2 * BLOCK
_TILE: Final = 64
_LONG_TILE: Final = 256
_WIDEST_TILE: Final = 1024
_ENOUGH_UNITS: Final = 64
_UNKNOWN_EXTENT: Final = 16
# Instructions that are worth a thread.
_GRAIN: Final = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range, walked whole, or with `block` in pieces of that many points which are units of work."""

    symbol: Expr
    block: int | None = None

    @property
    def units(self) -> Expr:
        """Number of units of work along it."""
        extent = extent_of(self.symbol)
        return extent if self.block is None else ceildiv(extent, self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A loop nest.

    Attributes:
        threaded: what a unit of work fixes, outermost first; a blocked axis leaves a loop over the block.
        serial: loops inside a unit, outermost first; a blocked threaded axis among them loops over its block.
        vector: the range of the innermost, vectorised loop, when it is a parallel one.
        tile: with reductions along other ranges, the number of columns (points of `vector`) reduced together.
        reduction: reduction ranges, outermost first; innermost and vectorised unless there is a `vector`.
        grain: units below which threads do not pay, as a number of instructions per unit and point.
        across: a second range of unit stride; it and `vector` are walked in tiles.
        moves: all that happens in such tiles is that what lies along `across` is stored along `vector`.
        weight: estimated instructions per point, at least 1.
    """

    threaded: tuple[Axis, ...]
    serial: tuple[Expr, ...]
    vector: Axis | None
    tile: int
    reduction: tuple[Expr, ...]
    across: Expr | None = None
    moves: bool = False
    weight: int

    @property
    def takes_units_together(self) -> bool:
        """Whether a thread walks its units as one piece: serial loops then read long parts of memory's rows."""
        return (
            len(self.threaded) == 1
            and bool(self.serial)
            and self.threaded[0] == self.vector
            and not self.tile
        )

    @property
    def grain_instructions(self) -> int:
        """Instructions that are worth starting a thread for."""
        return _GRAIN


def plan_region(region: Region, args: dict[str, TensorArg]) -> Plan:
    """The nest for `region`."""
    weight = max(1, work(region.roots) // 3)
    scores = _scores(region, args)
    free = region.parallel
    if not region.reduction:
        return _pointwise(region, args, scores, weight)
    inner = region.reduction[-1]
    # Columns of a tile must be equally long.
    uneven = frozenset(s for r in region.reduction for s in extent_of(r).free_symbols)
    sorts = any(isinstance(v, Sort) for v in postorder(region.roots))
    # a sort takes a row at a time, whatever lies beside it
    candidates = [] if sorts else [r for r in free if r not in uneven]
    vector = max(candidates, key=lambda r: (scores[r], free.index(r)), default=None)
    if vector is not None and (
        _prefers_columns(region, scores, vector, inner) or _gathers_along_rows(region, vector, inner)
    ):
        tile = _column_tile(vector, [r for r in free if r is not vector])
        if any(lies_along(load.index[0], inner, vector) for load in _plain_loads(region)):
            # what columns copy lies on a thread's stack, a block of rows for each of them
            tile = min(tile, _TILE)
        axis = Axis(symbol=vector, block=tile)
        others = tuple(Axis(symbol=r) for r in free if r is not vector)
        return Plan(
            threaded=(*others, axis),
            serial=region.serial,
            vector=axis,
            tile=tile,
            reduction=region.reduction,
            weight=weight,
        )
    threaded, rest = _shared(free)
    return Plan(
        threaded=threaded,
        serial=(*rest, *region.serial),
        vector=None,
        tile=0,
        reduction=region.reduction,
        weight=weight,
    )


def prefers_columns(kernel: Kernel, parallel: tuple[Expr, ...], reduction: tuple[Expr, ...]) -> bool:
    """Whether `kernel`'s reductions would be vectorised across a parallel range."""
    roots = kernel_roots(kernel)
    region = Region(
        stores=kernel.stores,
        check=None,
        parallel=parallel,
        serial=(),
        reduction=reduction,
        facts=facts_of(roots, (*parallel, *reduction)),
    )
    plan = plan_region(region, {a.name: a for a in kernel.args})
    return plan.vector is not None


def likely_extent(symbol: Expr) -> int:
    """The extent of a range, or a guess."""
    known = as_int(extent_of(symbol))
    return _UNKNOWN_EXTENT if known is None else known


def _prefers_columns(region: Region, scores: dict[Expr, int], vector: Expr, inner: Expr) -> bool:
    points = 1
    for r in region.reduction:
        points *= likely_extent(r)
    known = all(as_int(extent_of(r)) is not None for r in region.reduction)
    if known and points < 8 and likely_extent(vector) >= 8:
        return True
    return scores[vector] > scores[inner] and likely_extent(vector) >= 8


def _gathers_along_rows(region: Region, vector: Expr, inner: Expr) -> bool:
    """Whether rows would gather what lies along `vector`, of which columns may copy what lies along the rows into tiles."""
    if _short(inner) or _short(vector) or any(isinstance(v, Scan) for v in postorder(region.roots)):
        return False
    if any(lies_along(store.index, inner, vector) for store in region.stores):
        return False
    return any(lies_along(load.index[0], vector, inner) for load in _plain_loads(region) if not load.operands)


def _plain_loads(region: Region) -> list[Load]:
    """Loads at places that no other load decides."""
    return [v for v in postorder(region.roots) if isinstance(v, Load) and not v.indirect]


def lies_along(index: Expr, one: Expr, other: Expr) -> bool:
    """Whether neighbours along `one` are neighbours in memory, and those along `other` are not."""
    along, beside = stride_of(index, one), stride_of(index, other)
    return along is not None and beside is not None and as_int(along) == 1 and as_int(beside) not in (0, 1)


def _column_tile(vector: Expr, others: list[Expr]) -> int:
    extent = as_int(extent_of(vector))
    units = 1
    for r in others:
        units *= likely_extent(r)
    if extent is not None and extent <= _WIDEST_TILE and units >= _UNKNOWN_EXTENT:
        # Whole rows of memory, one after the other, are what prefetching likes best.
        return extent
    if extent is None:
        return 128
    if extent <= _TILE:
        return extent
    return 256 if extent >= 8192 else _TILE


def _pointwise(region: Region, args: dict[str, TensorArg], scores: dict[Expr, int], weight: int) -> Plan:
    free = region.parallel
    vector = max(free, key=lambda r: (scores[r], free.index(r)), default=None)
    if vector is None:
        return Plan(threaded=(), serial=region.serial, vector=None, tile=0, reduction=(), weight=weight)
    others = tuple(r for r in free if r is not vector)
    across = _transposed(region, scores, vector)
    if across is not None and not region.serial:
        moves = _moves(region, args, across, vector)
        # Of what needs no tile of its own, long lines are read.
        length = _at_most(_LONG_TILE if moves else _TILE, across)
        shared = tuple(Axis(symbol=r, block=length if r is across else None) for r in others)
        axis = Axis(symbol=vector, block=_at_most(_TILE, vector))
        return Plan(
            threaded=(*shared, axis),
            serial=(across,),
            vector=axis,
            tile=0,
            reduction=(),
            across=across,
            moves=moves,
            weight=2 * weight,
        )
    high = bounds(extent_of(vector)).hi
    if high is not None and high <= _WHOLE and not (region.serial and not others):
        threaded, rest = _shared(others)
        axis = Axis(symbol=vector)
        return Plan(
            threaded=threaded,
            serial=(*rest, *region.serial),
            vector=axis,
            tile=0,
            reduction=(),
            weight=weight,
        )
    # With serial loops inside, short blocks are what gives threads something to share.
    axis = Axis(symbol=vector, block=_TILE if region.serial else BLOCK)
    shared = tuple(Axis(symbol=r) for r in others)
    return Plan(
        threaded=(*shared, axis), serial=region.serial, vector=axis, tile=0, reduction=(), weight=weight
    )


def _shared(ranges: tuple[Expr, ...]) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """The leading ranges that make enough units of work, and the rest, which stay plain loops inside a unit."""
    units = 1
    for count, r in enumerate(ranges):
        if units >= _ENOUGH_UNITS:
            return tuple(Axis(symbol=q) for q in ranges[:count]), ranges[count:]
        units *= likely_extent(r)
    return tuple(Axis(symbol=q) for q in ranges), ()


@dataclass(frozen=True, slots=True)
class _Access:
    """An access at innermost level: what it reads or writes, where, how many bytes per point, and ranges that it gathers along."""

    buffer: str
    index: Expr
    size_bytes: int
    gathers: frozenset[Expr]


def _accesses(region: Region, args: dict[str, TensorArg]) -> list[_Access]:
    facts = region.facts
    found: list[_Access] = []
    for value in postorder(region.roots):
        if isinstance(value, Load):
            gathers: frozenset[Expr] = frozenset()
            for operand in value.indirect:
                gathers |= facts.varies[operand]
            found.append(_Access(value.buffer, value.index[0], value.dtype.itemsize, gathers))
    for store in region.stores:
        gathers = frozenset()
        for operand in store.indirect:
            gathers |= facts.varies[operand]
        # A line that is written is read as well.
        found.append(_Access(store.buffer, store.index, 2 * args[store.buffer].dtype.itemsize, gathers))
    return found


def _scores(region: Region, args: dict[str, TensorArg]) -> dict[Expr, int]:
    """For each range: bytes accessed at unit stride along it, minus bytes accessed at other strides.

    Real and imaginary parts side by side, each at a stride of 2, are as good as at unit stride: vectors of both are shuffled.
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
                step = stride_of(access.index, r)
                dense = step is not None and _fills(access, as_int(step), places)
                score += size if dense else -size
        scores[r] = score
    return scores


def _fills(access: _Access, step: int | None, places: Set[tuple[str, Expr]]) -> bool:
    """Whether `access`, with its neighbours among `places`, leaves nothing out where it walks in such steps."""
    if step != 2:
        return step == 1
    return any((access.buffer, access.index + beside) in places for beside in (-1, 1))


def _transposed(region: Region, scores: dict[Expr, int], vector: Expr) -> Expr | None:
    """A range along which accesses that are strided along `vector` have unit stride."""
    if any(isinstance(value, Reduce | Scan) for value in postorder(region.roots)):
        return None
    loads = _plain_loads(region)
    for r in region.parallel:
        if r is vector or _short(r) or _short(vector):
            continue
        for index in [load.index[0] for load in loads] + [s.index for s in region.stores if not s.indirect]:
            if lies_along(index, r, vector):
                return r
    return None


def crosses(load: Load, across: Expr, vector: Expr) -> bool:
    """Whether the neighbours of what `load` reads, without a guard, lie along `across` instead of `vector`."""
    return not load.operands and lies_along(load.index[0], across, vector)


def _moves(region: Region, args: dict[str, TensorArg], across: Expr, vector: Expr) -> bool:
    """Whether all stores of `region` put what lies along `across` along `vector`, as it is."""
    return region.check is None and all(
        store.mode == "store"
        and store.mask is None
        and not store.indirect
        and isinstance(store.value, Load)
        and store.value.dtype is args[store.buffer].dtype
        and crosses(store.value, across, vector)
        and lies_along(store.index, vector, across)
        for store in region.stores
    )


def _at_most(size: int, symbol: Expr) -> int:
    """`size`, or the extent of a range that has fewer points."""
    extent = as_int(extent_of(symbol))
    return size if extent is None else min(size, max(extent, 1))


def _short(symbol: Expr) -> bool:
    extent = as_int(extent_of(symbol))
    return extent is not None and extent < 16
