"""Kernels in steps: a point does what several neighbours did, and loads once what these share.

In a row that is enlarged or made smaller, neighbours read the same elements, or every other one, and no
thread reads or writes 16 bytes at a time. In steps of as many points as 16 bytes of the result hold,

    store %out0[x0] = load %in0[x0 // 2]                    x0 < 256

becomes

    store %out0[8*x0 + k] = load %in0[4*x0 + k // 2]        x0 < 32, k from 0 to 7

Quotients turn into products, clamps are left where a row ends, and weights that repeat are constants. What
several of the eight load is loaded once, neighbours are one load (`coilwork_triton.facts.runs`), and the
stores are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    provably_divisible,
    stride_of,
    substitute,
    symbol,
)
from coilwork_ir.kernels import Kernel
from coilwork_ir.machine.model import Grids
from coilwork_ir.scalar import (
    IndexValue,
    Load,
    postorder,
)
from coilwork_triton.facts.places import stores_at
from coilwork_triton.facts.runs import load_runs
from coilwork_triton.facts.vectors import Access, wide_in_rows
from coilwork_triton.kernel_passes.row_pairs import pair_rows
from coilwork_triton.kernel_passes.window_reuse import unroll_windows

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
    if not _is_plain(kernel, grids):
        return None
    narrow = _narrow(kernel)
    slid = unroll_windows(kernel, narrow, grids.longest_window)
    if slid is not None:
        found = _widest(slid, _narrow(slid), grids)
        if found is not None:
            return found
    inner = kernel.ranges[-1].symbol
    if all(stride_of(load.index[0], inner) is as_expr(1) for load in narrow):
        return None
    return _widest(kernel, narrow, grids)


def _widest(kernel: Kernel, narrow: Sequence[Load], grids: Grids) -> CoarseKernel | None:
    """`kernel`, of whose loads `narrow` are such, in the widest steps that pay."""
    if not narrow:
        return None
    order = tuple(postorder([store.value for store in kernel.stores]))
    # wide ones stay as they are: one load per step
    wide = len(_varying(kernel)) - len(narrow)
    points = min(_MOST_POINTS, *(_BYTES // store.value.dtype.itemsize for store in kernel.stores))
    while points > 1:
        if points * len(order) <= _MOST_SCALARS and _fits(kernel, points):
            found = _stepped(kernel, points)
            if _loads(found) - wide <= grids.coarse_share * len(narrow) * points:
                fits = 2 * points * len(order) <= _MOST_SCALARS
                rows = pair_rows(found, _loads, grids.paired_share) if fits else None
                return CoarseKernel(kernel=rows or found, points=points)
        points //= 2
    return None


def _varying(kernel: Kernel) -> list[Load]:
    """Loads that vary along the row."""
    order = postorder([store.value for store in kernel.stores])
    return [v for v in order if isinstance(v, Load) and kernel.ranges[-1].symbol in _places(v)]


def _narrow(kernel: Kernel) -> list[Load]:
    """Return those of them that threads do not load 16 bytes at a time."""
    return [load for load in _varying(kernel) if not _is_wide(kernel, load)]


def _is_plain(kernel: Kernel, grids: Grids) -> bool:
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
        and stride_of(store.index, inner) is as_expr(1)
        for store in kernel.stores
    )


def _fits(kernel: Kernel, points: int) -> bool:
    """Rows are of whole steps, and what a step stores is as wide as it looks."""
    inner = kernel.ranges[-1].symbol
    assert inner.extent is not None
    starts = [substitute(store.index, {inner: as_expr(0)}) for store in kernel.stores]
    return all(provably_divisible(e, points) for e in (inner.extent, *starts))


def stores_neighbours(kernel: Kernel, points: int) -> bool:
    """True if each `points` stores of `kernel` in a row are to neighbouring elements, under one mask."""
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
    """The ranges along which the element that `load` reads, or whether it does, varies."""
    found: frozenset[Expr] = load.index[0].free_symbols
    for node in postorder(load.operands):
        if isinstance(node, IndexValue):
            found |= node.expr.free_symbols
        elif isinstance(node, Load):
            found |= node.index[0].free_symbols
    return found


def _is_wide(kernel: Kernel, load: Load) -> bool:
    """Threads load 16 bytes at a time, as it is."""
    access = Access(index=load.index[0], itemsize=load.dtype.itemsize)
    return not load.operands and wide_in_rows(kernel.ranges, [access])


def _loads(kernel: Kernel) -> int:
    """Loads per step that vary along the row."""
    inner = kernel.ranges[-1].symbol
    order = tuple(postorder([store.value for store in kernel.stores]))
    runs = load_runs(order, inner)
    single = [v for v in order if isinstance(v, Load) and v not in runs and inner in _places(v)]
    return len(single) + len(set(runs.values()))


def _stepped(kernel: Kernel, points: int) -> Kernel:
    *outer, last = kernel.ranges
    inner = last.symbol
    assert inner.extent is not None
    length = as_int(inner.extent)
    assert length is not None
    step = symbol(inner.name, extent=length // points)
    each = [stores_at(kernel.stores, {inner: step * points + k}) for k in range(points)]
    # those of one tensor in a row
    stores = tuple(store for of_one in zip(*each, strict=True) for store in of_one)
    return replace(kernel, ranges=(*outer, replace(last, symbol=step)), stores=stores)
