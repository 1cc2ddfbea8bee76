"""Find which accesses can be 16 bytes wide per thread, and what follows where most cannot.

Triton gives each thread as many neighbouring elements as the widest access of a kernel takes. An access that
is not aligned then goes element by element, at addresses 16 bytes apart between neighbouring threads, and its
cache lines are asked for again and again. The windows of a pooling do the same. Where much is of that kind no
access should be wide: then neighbouring threads touch neighbouring elements.

Rows of a length that no vector divides also cost a division per element where flat positions are walked. Long
ones are walked row by row. Rows that nearly fill a power of two of lanes stand in as many lanes, which are
padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Add,
    Expr,
    as_expr,
    as_int,
    evaluate,
    find_stride,
    provably_divisible,
    provably_le,
    substitute,
)
from coilwork_ir.index import get_node as index_node
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.machine import MachineModel
from coilwork_ir.machine.model import Grids
from coilwork_ir.scalar import IndexValue, Load, Scalar, iterate_postorder

# Wide accesses


_WIDE: Final = 16
# Ranges of which positions are divided twice for each element.
_DIVIDED: Final = 3
_ZERO: Final = as_expr(0)
_ONE: Final = as_expr(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A load, or a `store`, of an element of `itemsize` bytes at the flat offset `index`."""

    index: Expr
    itemsize: int
    store: bool = False

    @property
    def lanes(self) -> int:
        """Elements in 16 bytes."""
        return max(1, _WIDE // self.itemsize)


def list_accesses(kernel: Kernel, values: Iterable[Scalar]) -> tuple[Access, ...]:
    """Distinct loads among `values` and below, and stores, whose offsets do not depend on data."""
    itemsize = {a.name: a.dtype.itemsize for a in kernel.args}
    found: dict[tuple[str, Expr], Access] = {}
    for node in iterate_postorder(tuple(values)):
        if isinstance(node, Load) and not node.indirect:
            found[node.buffer, node.index[0]] = Access(index=node.index[0], itemsize=node.dtype.itemsize)
    for store in kernel.stores:
        if not store.indirect and store.mode == "store":
            found[store.buffer, store.index] = Access(
                index=store.index,
                itemsize=itemsize.get(store.buffer, store.value.dtype.itemsize),
                store=True,
            )
    return tuple(found.values())


def has_scattered_loads(kernel: Kernel, values: Iterable[Scalar], machine: MachineModel) -> bool:
    """Tell if neighbouring points along the innermost range of `kernel` load some tensor from sectors of
    their own.

    Either its places are that far apart, or they are looked up for each point. What stays in a cache next to
    the threads does not count.
    """
    real = _nontrivial_ranges(kernel.ranges)
    if not real:
        return False
    cached, sector = as_expr(machine.grids.near_table_bytes), machine.memory.fetched_bytes
    large = {a.name for a in kernel.args if not provably_le(a.span * a.dtype.itemsize, cached)}
    for node in iterate_postorder(tuple(values)):
        if isinstance(node, Load) and node.buffer in large:
            step = find_stride(node.index[0], real[-1])
            far = None if step is None else as_int(step)
            if far is not None and abs(far) * node.dtype.itemsize >= sector:
                return True
            if any(is_varying_along(looked_up, real[-1]) for looked_up in node.indirect):
                return True
    return False


def is_varying_along(value: Scalar, inner: Expr) -> bool:
    """Tell if `value` differs from point to point along the range `inner`."""
    return any(
        inner in expr.free_symbols
        for node in iterate_postorder((value,))
        for expr in (
            (node.expr,) if isinstance(node, IndexValue) else node.index if isinstance(node, Load) else ()
        )
    )


def list_full_access_sizes(ranges: Sequence[Range], touched: Sequence[Access]) -> tuple[int, ...]:
    """Element sizes of the accesses that vary along all of `ranges`."""
    return tuple(a.itemsize for a in _full_accesses(_nontrivial_ranges(ranges), touched))


def should_tile_rows(
    ranges: Sequence[Range],
    touched: Sequence[Access],
    grids: Grids,
    likely: Mapping[Expr, int] = MappingProxyType({}),
) -> bool:
    """Tell if a pointwise kernel over `ranges`, outermost first, should have a tile for the innermost one
    alone.

    There are three reasons. Flat positions keep accesses from being wide. Something is read once per row, and
    rows are of whole blocks or of many: then it is one element for all threads. Flat positions are divided by
    a number that is not known, and rows are not short by what is `likely` of sizes.
    """
    real = _nontrivial_ranges(ranges)
    if len(real) < 2:
        return False
    extent = real[-1].extent
    if extent is None:
        return False
    if as_int(extent) is None and extent.free_symbols <= likely.keys():
        guesses = {size.name: likely[size] for size in extent.free_symbols}
        return evaluate(extent, guesses) >= grids.least_row
    if not provably_le(grids.least_row, extent):
        return False
    lanes = max((a.lanes for a in _full_accesses(real, touched)), default=1)
    if any(_is_once_per_row(real, a) for a in touched) and _has_whole_blocks(extent, lanes, grids):
        return True
    # what is read in an order of its own is narrow either way, and over flat positions neighbouring threads
    # have neighbouring columns; of rows in one block Triton 3.6 gives them neighbouring rows. In lines it
    # does not (`count_padded_lanes`). To divide by unknown numbers takes longer than that
    known = all(s.extent is not None and as_int(s.extent) is not None for s in real)
    own_order = known and any(_is_irregular(real, a) for a in touched)
    return not own_order and _are_mostly_narrow(real, touched, grids, flat=True)


def should_tile_column_pieces(
    ranges: Sequence[Range],
    touched: Sequence[Access],
    grids: Grids,
    likely: Mapping[Expr, int] = MappingProxyType({}),
) -> bool:
    """Tell if columns over `ranges` should have a tile for the innermost range alone, which lies along
    memory.

    Columns that are reduced in pieces are an example. If the innermost range is no multiple of a vector,
    flat positions are divided by its length, and Triton does not see that neighbours are neighbours.
    """
    real = _nontrivial_ranges(ranges)
    if len(real) < 2:
        return False
    inner = real[-1]
    assert inner.extent is not None
    known = {size.name: number for size, number in likely.items()}
    if as_int(inner.extent) is None and not inner.extent.free_symbols <= likely.keys():
        return False
    if evaluate(inner.extent, known) < grids.least_row:
        return False
    if as_int(inner.extent) is None:
        # the same for all forms of a kernel, whatever multiples they take
        return True
    along = [a for a in touched if find_stride(a.index, inner) is _ONE and not a.store]
    return any(not provably_divisible(inner.extent, a.lanes) for a in along)


def _is_irregular(real: Sequence[Expr], access: Access) -> bool:
    return not access.store and find_stride(access.index, real[-1]) is None


def _has_whole_blocks(extent: Expr, lanes: int, grids: Grids) -> bool:
    """Tell if rows of `extent` points are of whole blocks, or of so many that what is masked in the last one
    is little.

    The mask has to be the same for each `lanes` points, or no access is wide.
    """
    whole = grids.whole_blocks
    many = provably_le(as_expr(grids.many_blocks * whole), extent)
    return provably_divisible(extent, whole) or (many and provably_divisible(extent, lanes))


def _is_once_per_row(real: Sequence[Expr], access: Access) -> bool:
    free = access.index.free_symbols
    return real[-1] not in free and not free.isdisjoint(real)


def should_access_scalars(
    ranges: Sequence[Range], touched: Sequence[Access], grids: Grids, *, flat: bool
) -> bool:
    """Tell if neighbouring threads should touch neighbouring elements, though some accesses could be wide.

    Args:
        ranges: the kernel's ranges; the last one is the one along which elements are neighbours.
        touched: its accesses.
        grids: what was measured.
        flat: the walk is over flat positions of the ranges, not along the last one alone.
    """
    real = _nontrivial_ranges(ranges)
    if not _are_mostly_narrow(real, touched, grids, flat=flat):
        return False
    return not (flat and _spends_most_on_division(real, touched, grids))


def find_uniform_width(
    ranges: Sequence[Range], touched: Sequence[Access], grids: Grids, *, flat: bool
) -> int:
    """Return how many neighbours along the last of `ranges` each access may have at a time, where that is one
    number for all; else 1.

    Then threads with so many each leave no gaps, though accesses are narrower than 16 bytes. See
    `should_access_scalars`. What is read again along other ranges counts as well: threads have as many as the
    widest access takes.
    """
    real = _nontrivial_ranges(ranges)
    if not real or any(_is_near(a, real[-1], grids) for a in _full_accesses(real, touched)):
        return 1
    widths = _widths(real, touched, flat=flat)
    return widths.pop() if len(widths) == 1 else 1


def find_row_width(inner: Expr, touched: Sequence[Access]) -> int:
    """Return the vector width along `inner` of every access, whatever the starts and ends of rows.

    0 if a load could be wider than the narrowest store.
    """
    narrowest = min(_widths([inner], [a for a in touched if a.store], flat=False), default=0)
    return narrowest if max(_widths([inner], touched, flat=False), default=0) == narrowest else 0


def _widths(real: Sequence[Expr], touched: Sequence[Access], *, flat: bool) -> set[int]:
    along = [a for a in touched if find_stride(a.index, real[-1]) is _ONE]
    return {_width(real, a, flat=flat, ends=ends) for a in along for ends in (False, True)}


def is_wide_along_rows(ranges: Sequence[Range], touched: Sequence[Access]) -> bool:
    """Tell if all of `touched` are 16 bytes wide along the last of `ranges`, and its rows are whole ones."""
    real = _nontrivial_ranges(ranges)
    if not real or real[-1] is not ranges[-1].symbol:
        return False
    extent = real[-1].extent
    assert extent is not None
    return all(
        a.lanes > 1
        and find_stride(a.index, real[-1]) is _ONE
        and provably_divisible(extent, a.lanes)
        and provably_divisible(substitute(a.index, {real[-1]: _ZERO}), a.lanes)
        for a in touched
    )


def load_width_along(access: Access, position: Expr) -> int:
    """Neighbours along `position` that one thread loads at once, by where rows start; 1 for stores."""
    if access.store or find_stride(access.index, position) is not _ONE:
        return 1
    start = substitute(access.index, {position: _ZERO})
    lanes = access.lanes
    while lanes > 1 and not provably_divisible(start, lanes):
        lanes //= 2
    return lanes


def can_overread(access: Access, position: Expr, numel: Expr) -> bool:
    """Tell if a load along `position`, of which there are `numel`, is 16 bytes wide but for where the
    positions end.

    The last 16 bytes then hold elements behind the end. To read them is safe: they lie in the same aligned 16
    bytes as one that exists, if the buffer starts at such a boundary.
    """
    if access.lanes == 1 or find_stride(access.index, position) is not _ONE:
        return False
    start = substitute(access.index, {position: _ZERO})
    return provably_divisible(start, access.lanes) and not provably_divisible(numel, access.lanes)


def _nontrivial_ranges(ranges: Sequence[Range]) -> tuple[Expr, ...]:
    return tuple(r.symbol for r in ranges if r.symbol.extent is not None and as_int(r.symbol.extent) != 1)


def _are_mostly_narrow(real: Sequence[Expr], touched: Sequence[Access], grids: Grids, *, flat: bool) -> bool:
    if not real:
        return False
    whole = _full_accesses(real, touched)
    along = [a for a in whole if find_stride(a.index, real[-1]) is _ONE]
    narrow = [a for a in along if _is_narrow(real, a, flat=flat)]
    near = [a for a in whole if _is_near(a, real[-1], grids)]
    lost = sum(a.itemsize for a in (*narrow, *near))
    return lost > 0 and lost >= grids.narrow_share * sum(a.itemsize for a in (*along, *near))


def _spends_most_on_division(real: Sequence[Expr], touched: Sequence[Access], grids: Grids) -> bool:
    """Tell if points take most of their time to find out where they are, as those of a padding do, and stores
    could be wide.

    Threads whose elements are neighbours share some of that, and store them at once.
    """
    stores = [a for a in touched if a.store]
    near = [a for a in touched if _is_near(a, real[-1], grids)]
    # one element at a place of its own, as of a reflected row, is no window
    alone = len(near) == 1 and find_stride(near[0].index, real[-1]) is None
    copied = alone and len(_full_accesses(real, stores)) == len(stores)
    divided = len(real) >= _DIVIDED and (not near or copied)
    return divided and bool(stores) and not any(_is_narrow(real, a, flat=True) for a in stores)


def _is_near(access: Access, inner: Expr, grids: Grids) -> bool:
    """Tell if neighbouring points touch elements that are near each other, but no neighbours in order.

    As the windows of a pooling do, or what an upsampling reads several times: wide accesses are not to be
    had, and where a thread has many such points its own are next to each other, and those of the threads that
    load together far apart.
    """
    if access.store:
        return False
    step = find_stride(access.index, inner)
    if step is None:
        return True
    distance = as_int(step)
    return distance is not None and distance != 1 and 0 < abs(distance) <= grids.near_elements


def _full_accesses(real: Sequence[Expr], touched: Sequence[Access]) -> list[Access]:
    """Return the `touched` accesses that vary along all ranges: the others are read again, from a cache."""
    return [a for a in touched if all(s in a.index.free_symbols for s in real)]


def _is_narrow(real: Sequence[Expr], access: Access, *, flat: bool) -> bool:
    inner = real[-1]
    start = substitute(access.index, {inner: _ZERO})
    extent = inner.extent
    assert extent is not None
    if not flat:
        # a load may go on to the end of its 16 bytes, whatever is there; a store may not
        ends = not access.store or provably_divisible(extent, access.lanes)
        return not (ends and provably_divisible(start, access.lanes))
    if _is_contiguous(real, access.index):
        first = substitute(start, dict.fromkeys(real[:-1], _ZERO))
        return not provably_divisible(first, access.lanes)
    return not (provably_divisible(extent, access.lanes) and provably_divisible(start, access.lanes))


def _width(real: Sequence[Expr], access: Access, *, flat: bool, ends: bool) -> int:
    """Elements that one access has at a time, by where rows start, and with `ends` by where they end."""
    start, extent = substitute(access.index, {real[-1]: _ZERO}), real[-1].extent
    assert extent is not None
    if flat and _is_contiguous(real, access.index):
        start = substitute(start, dict.fromkeys(real[:-1], _ZERO))
    elif flat:
        ends = True
    width = access.lanes
    while width > 1 and not (
        provably_divisible(start, width) and (not ends or provably_divisible(extent, width))
    ):
        width //= 2
    return width


def _is_contiguous(real: Sequence[Expr], index: Expr) -> bool:
    """Tell if the flat positions of `real`, outermost first, are neighbours in `index`."""
    wanted = _ONE
    for symbol in reversed(real):
        if find_stride(index, symbol) is not wanted:
            return False
        assert symbol.extent is not None
        wanted = wanted * symbol.extent
    return True


# Runs: neighbouring elements that one point loads, which one access brings


Run: TypeAlias = tuple[Load, ...]
# Elements that the library has functions for.
LONGEST_RUN: Final = 16


def find_load_runs(order: Iterable[Scalar], inner: Expr) -> Mapping[Load, Run]:
    """Return the loads among `order` that are part of a run, and that run: two elements, or four, or more,
    from a multiple of so many.

    They are under one mask, and vary along `inner`.
    """
    rows: dict[tuple[object, ...], dict[int, Load]] = {}
    for value in order:
        if isinstance(value, Load) and inner in value.index[0].free_symbols and value.dtype is not DType.BOOL:
            start, place = split_constant(value.index[0])
            key = (value.buffer, start, value.dtype, value.operands, value.mask, value.other)
            rows.setdefault(key, {})[place] = value
    found: dict[Load, Run] = {}
    for row in rows.values():
        for run in _runs_of(row):
            found.update(dict.fromkeys(run, run))
    return found


def _runs_of(row: Mapping[int, Load]) -> list[Run]:
    """Return the runs among loads that differ in their last term alone, from the first on, each as long
    as may be.
    """
    found: list[Run] = []
    end: int | None = None
    for place in sorted(row):
        if end is not None and place < end:
            continue
        first = row[place]
        width = min(LONGEST_RUN, _WIDE // first.dtype.itemsize)
        while width > 1 and not (
            all(place + k in row for k in range(width)) and provably_divisible(first.index[0], width)
        ):
            width //= 2
        if width > 1:
            found.append(tuple(row[place + k] for k in range(width)))
            end = place + width
    return found


def split_constant(expr: Expr) -> tuple[Expr, int]:
    """`expr` without its constant term, and that term."""
    match index_node(expr):
        case Add(operands):
            constant = sum(as_int(o) or 0 for o in operands)
            return expr - as_expr(constant), constant
        case _:
            return expr, 0


# Padded rows


# A warp has as many threads.
_FEWEST_LANES: Final = 32


def count_padded_lanes(kernel: Kernel, touched: Sequence[Access], grids: Grids) -> int:
    """Return how many lanes each row along the innermost range of `kernel` is padded to; 0 if it is not worth
    while.

    Where elements are read out of order, at reflected or clamped places or from the end, every point has to
    know its row and its column, and over flat positions that takes a division or two. Rows of 118 that stand
    in 128 lanes each have their columns in the last seven bits of a position. A thread has the same columns
    in all of its rows, and a warp's rows are the same for all of its threads. Blocks stay lines: neighbouring
    threads have neighbouring columns, whatever a compiler makes of blocks with two axes.

    `touched` are its accesses.
    """
    if any(r.kind != "parallel" for r in kernel.ranges) or kernel.checks:
        return 0
    extents = [None if r.symbol.extent is None else as_int(r.symbol.extent) for r in kernel.ranges]
    real = [r.symbol for r, extent in zip(kernel.ranges, extents, strict=True) if extent != 1]
    if len(real) < 2 or real[-1] is not kernel.ranges[-1].symbol or None in extents:
        return 0
    length = extents[-1] or 0
    lanes = 1 << max(0, length - 1).bit_length()
    fills = grids.padded_row_share * lanes <= length < lanes
    if not (_FEWEST_LANES <= lanes <= grids.padded_row_lanes and fills):
        return 0
    whole = [a for a in touched if all(s in a.index.free_symbols for s in real)]
    # windows are read again by their neighbours, which flat blocks keep near each other
    once = len(whole) <= len(kernel.args)
    astray = any(_is_reordered(access, real[-1]) for access in whole)
    return lanes if once and astray and find_row_width(real[-1], touched) else 0


def _is_reordered(access: Access, inner: Expr) -> bool:
    """Tell if a load's elements along `inner` are not at a constant stride, or are in reverse."""
    if access.store:
        return False
    step = find_stride(access.index, inner)
    distance = None if step is None else as_int(step)
    return step is None or (distance is not None and distance < 0)
