"""Coarsen threads: a point does what several neighbours did, and loads once what these share.

In a row that is enlarged or made smaller, neighbours read the same elements, or every other one, and no
thread reads or writes 16 bytes at a time. In steps of as many points as 16 bytes of the result hold,

    store %out0[x0] = load %in0[x0 // 2]                    x0 < 256

becomes

    store %out0[8*x0 + k] = load %in0[4*x0 + k // 2]        x0 < 32, k from 0 to 7

Quotients turn into products, clamps are left where a row ends, and weights that repeat are constants.
Elements that several of the eight points load are loaded once, neighbours are one load
(`coilwork_triton.facts.vectorization`), and the stores are one. Windows that slide along rows are unrolled
first, and rows that read the same rows are done in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    find_stride,
    provably_divisible,
    provably_le,
    substitute,
    symbol,
)
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.machine.model import Grids
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Scalar,
    const,
    index_value,
    iterate_postorder,
    load,
    op,
    rewrite,
)
from coilwork_triton.facts.vectorization import Access, find_load_runs, is_wide_along_rows
from coilwork_triton.kernel_passes.range_unrolling import specialize_stores

# Coarsening


_BYTES: Final = 16
_MOST_POINTS: Final = 16
# Scalars of all points of a step: text that is still compiled in a moment.
_MOST_SCALARS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseKernel:
    """`kernel` over steps of `points` points each; each store of before is as many stores there, of
    neighbours in order, or twice as many.
    """

    kernel: Kernel
    points: int


def coarsen(kernel: Kernel, grids: Grids) -> CoarseKernel | None:
    """`kernel` in the widest steps in which its points load much less often, by what was measured of `grids`.

    None if there are none.
    """
    if not _has_only_plain_stores(kernel, grids):
        return None
    narrow = _narrow_loads(kernel)
    slid = unroll_windows(kernel, narrow, grids.longest_window)
    if slid is not None:
        found = _choose_widest(slid, _narrow_loads(slid), grids)
        if found is not None:
            return found
    inner = kernel.ranges[-1].symbol
    if all(find_stride(load.index[0], inner) is as_expr(1) for load in narrow):
        return None
    return _choose_widest(kernel, narrow, grids)


def _choose_widest(kernel: Kernel, narrow: Sequence[Load], grids: Grids) -> CoarseKernel | None:
    """`kernel`, of whose loads `narrow` are such, in the widest steps that pay."""
    if not narrow:
        return None
    order = tuple(iterate_postorder([store.value for store in kernel.stores]))
    # wide ones stay as they are: one load per step
    wide = len(_row_loads(kernel)) - len(narrow)
    points = min(_MOST_POINTS, *(_BYTES // store.value.dtype.itemsize for store in kernel.stores))
    while points > 1:
        if points * len(order) <= _MOST_SCALARS and _has_whole_steps(kernel, points):
            found = _coarsen_by(kernel, points)
            if _loads(found) - wide <= grids.coarse_share * len(narrow) * points:
                fits = 2 * points * len(order) <= _MOST_SCALARS
                rows = pair_rows(found, _loads, grids.paired_share) if fits else None
                return CoarseKernel(kernel=rows or found, points=points)
        points //= 2
    return None


def _row_loads(kernel: Kernel) -> list[Load]:
    """Loads that vary along the row."""
    order = iterate_postorder([store.value for store in kernel.stores])
    return [v for v in order if isinstance(v, Load) and kernel.ranges[-1].symbol in _places(v)]


def _narrow_loads(kernel: Kernel) -> list[Load]:
    """Loads that vary along the row, and that threads do not load 16 bytes at a time."""
    return [load for load in _row_loads(kernel) if not _is_wide(kernel, load)]


def _has_only_plain_stores(kernel: Kernel, grids: Grids) -> bool:
    """Nothing but stores, each of its own element for every point of a row of known length, of many rows."""
    if not kernel.ranges or any(r.kind != "parallel" for r in kernel.ranges):
        return False
    inner = kernel.ranges[-1].symbol
    if inner.extent is None or as_int(inner.extent) is None or kernel.checks:
        return False
    points = as_expr(1)
    for r in kernel.ranges:
        points = points * (as_expr(1) if r.symbol.extent is None else r.symbol.extent)
    # what is unknown is taken to be large
    known = as_int(points)
    aligned = {a.name for a in kernel.args if a.aligned}
    return (known is None or known >= grids.coarse_points) and all(
        store.mode == "store"
        and store.mask is None
        and not store.indirect
        and store.buffer in aligned
        and store.value.dtype is not DType.BOOL
        and find_stride(store.index, inner) is as_expr(1)
        for store in kernel.stores
    )


def _has_whole_steps(kernel: Kernel, points: int) -> bool:
    """Rows are of whole steps, and what a step stores is as wide as it looks."""
    inner = kernel.ranges[-1].symbol
    assert inner.extent is not None
    starts = [substitute(store.index, {inner: as_expr(0)}) for store in kernel.stores]
    return all(provably_divisible(e, points) for e in (inner.extent, *starts))


def has_neighbouring_stores(kernel: Kernel, points: int) -> bool:
    """Tell if each `points` stores of `kernel` in a row are to neighbouring elements, under one mask."""
    if len(kernel.stores) % points:
        return False
    for start in range(0, len(kernel.stores), points):
        first = kernel.stores[start]
        for number, store in enumerate(kernel.stores[start : start + points]):
            plain = store.mode == "store" and store.mask is first.mask and not store.indirect
            if not plain or store.buffer != first.buffer or store.index is not first.index + number:
                return False
    return True


def _places(load: Load) -> frozenset[Expr]:
    """Return the ranges along which the element that `load` reads, or whether it does, varies."""
    found: frozenset[Expr] = load.index[0].free_symbols
    for node in iterate_postorder(load.operands):
        if isinstance(node, IndexValue):
            found |= node.expr.free_symbols
        elif isinstance(node, Load):
            found |= node.index[0].free_symbols
    return found


def _is_wide(kernel: Kernel, load: Load) -> bool:
    """Threads load 16 bytes at a time, as it is."""
    access = Access(index=load.index[0], itemsize=load.dtype.itemsize)
    return not load.operands and is_wide_along_rows(kernel.ranges, [access])


def _loads(kernel: Kernel) -> int:
    """Loads per step that vary along the row."""
    inner = kernel.ranges[-1].symbol
    order = tuple(iterate_postorder([store.value for store in kernel.stores]))
    runs = find_load_runs(order, inner)
    single = [v for v in order if isinstance(v, Load) and v not in runs and inner in _places(v)]
    return len(single) + len(set(runs.values()))


def _coarsen_by(kernel: Kernel, points: int) -> Kernel:
    *outer, last = kernel.ranges
    inner = last.symbol
    assert inner.extent is not None
    length = as_int(inner.extent)
    assert length is not None
    step = symbol(inner.name, extent=length // points)
    each = [specialize_stores(kernel.stores, {inner: step * points + k}) for k in range(points)]
    # those of one tensor in a row
    stores = tuple(store for of_one in zip(*each, strict=True) for store in of_one)
    return replace(kernel, ranges=(*outer, replace(last, symbol=step)), stores=stores)


# Pairs of rows. Rows that an enlarged image has between the same two of its origin,
#
#     store %out0[64*x0 + x1] = load %in0[32*((x0 + 1) // 2) + x1 // 2]             x0 < 64
#
# are not 2*x0 and 2*x0 + 1, but 2*x0 - 1 and 2*x0, and the first and the last pair have one row too many:
#
#     store %out0[128*x0 - 64 + x1] = load %in0[32*x0 + x1 // 2]  mask 2*x0 - 1 >= 0
#     store %out0[128*x0 + x1] = load %in0[32*x0 + x1 // 2]       mask 2*x0 < 64    x0 < 33


def pair_rows(kernel: Kernel, loads: Callable[[Kernel], int], most_share: float) -> Kernel | None:
    """`kernel`, whose stores have no masks, with each two of its rows in one.

    None if that leaves more than the share `most_share` of its `loads`.
    """
    if len(kernel.ranges) < 2:
        return None
    row = kernel.ranges[-2].symbol
    count = None if row.extent is None else as_int(row.extent)
    if count is None or count < 2:
        return None
    pairs = [_build_pairs(kernel, count, ahead) for ahead in (0, 1)]
    found = [(loads(pair), pair) for pair in pairs if pair is not None]
    least, best = min(found, key=lambda one: one[0], default=(0, None))
    return best if best is not None and least <= most_share * 2 * loads(kernel) else None


def _build_pairs(kernel: Kernel, count: int, ahead: int) -> Kernel | None:
    """Rows 2*k - `ahead` and the next, of `count`; None if rows that are none could not be told from others
    by their numbers.
    """
    if not ahead and count % 2:
        return None
    place = len(kernel.ranges) - 2
    row = kernel.ranges[place]
    pair = symbol(row.symbol.name, extent=(count + ahead + 1) // 2)
    stores: list[Store] = []
    for at in (pair * 2 - ahead, pair * 2 - ahead + 1):
        inside = _check_row_number(at, count)
        moved = specialize_stores(kernel.stores, {row.symbol: at})
        # what stores share is looked at once
        values = rewrite([store.value for store in moved], partial(_guard_load, kernel, inside))
        stores += [
            replace(store, value=value, mask=inside) for store, value in zip(moved, values, strict=True)
        ]
    ranges = (*kernel.ranges[:place], replace(row, symbol=pair), *kernel.ranges[place + 1 :])
    return replace(kernel, ranges=ranges, stores=tuple(stores))


def _check_row_number(at: Expr, count: int) -> Scalar | None:
    """`at` is the number of one of `count` rows; None if it always is."""
    if not provably_le(as_expr(0), at):
        return op("ge", index_value(at), const(0, DType.I64))
    return None if provably_le(at + 1, as_expr(count)) else op("lt", index_value(at), const(count, DType.I64))


def _guard_load(kernel: Kernel, inside: Scalar | None, node: Scalar) -> Scalar:
    """`node`; if it is a load that may leave its tensor where a row is none, only where it is one."""
    if inside is None or not isinstance(node, Load) or isinstance(node.mask, Const):
        return node
    span = next((a.span for a in kernel.args if a.name == node.buffer), as_expr(0))
    at = node.index[0]
    if not node.indirect and provably_le(as_expr(0), at) and provably_le(at + 1, span):
        return node
    mask = inside if node.mask is None else op("bitwise_and", inside, node.mask)
    other = 0 if node.mask is None else node.other
    return load(node.buffer, node.index, node.dtype, indirect=node.indirect, mask=mask, other=other)


# Sliding windows. Element k of the window at x1 is element k - 1 of the next window,
#
#     store %out0[256*x0 + x1] = load %in0[x1 + x0]        x0 < 3, x1 < 256
#
# and a point that stores all elements of its window finds most of them loaded by its neighbours:
#
#     store %out0[x1 + 256*k] = load %in0[x1 + k]          x1 < 256, k from 0 to 2


def unroll_windows(kernel: Kernel, loads: Sequence[Load], longest: int) -> Kernel | None:
    """`kernel` without the range along which `loads` slide as they do along its innermost range; None if
    there is none.

    Its stores have no masks. Of a window of more than `longest` points a thread has more to store than
    registers.
    """
    inner = kernel.ranges[-1].symbol
    for place, r in enumerate(kernel.ranges[:-1]):
        length = None if r.symbol.extent is None else as_int(r.symbol.extent)
        if length is None or not 1 < length <= longest or not _slides(loads, r.symbol, inner):
            continue
        stores = tuple(
            store for k in range(length) for store in specialize_stores(kernel.stores, {r.symbol: as_expr(k)})
        )
        ranges = (*kernel.ranges[:place], *kernel.ranges[place + 1 :])
        return replace(kernel, ranges=ranges, stores=stores)
    return None


def _slides(loads: Sequence[Load], along: Expr, inner: Expr) -> bool:
    """Tell if some of `loads` vary along `along`, and by as much as along `inner`."""
    varying = [load for load in loads if along in load.index[0].free_symbols]
    steps = [(find_stride(load.index[0], along), find_stride(load.index[0], inner)) for load in varying]
    return bool(steps) and all(a is not None and a is b for a, b in steps)
