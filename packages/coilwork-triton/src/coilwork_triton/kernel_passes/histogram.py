"""Kernels that count: each point adds one number at a place that data choose among few. A program counts its
points first.

One atomic update of memory for each point is slow, and no faster where many points hit one place. In

    store %io0[@0 + 256*x0] using (t1) add = 1

the place is `x0` and a number below 256, as a check says. A program that has points of one `x0` alone counts
how often each of the 256 numbers occurs among them (`tl.histogram`), and adds the counts: a few hundred
updates for thousands of points. Integers add up to the same in whatever order, so results are the same to the
bit.

To count takes instructions that grow with the number of bins. For 32 points on sm_90, in blocks of 8,192 with
8 warps, they are 27 for up to 32 bins, 34 for 64, 58 for 256, 135 for 1,024 and 216 for 2,048. One for each
32 bins is a population count, which takes as long as eight others: about 110 in all for 256 bins, 360 for
1,024 and 660 for 2,048. 32 updates of memory take as long as about 1,200 (17 ms on an H200 for 403M points).
Beyond 1,024 bins little of that is left, and a thread's registers are full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, evaluate, find_bounds, find_stride, multiply_all
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.machine.model import Grids
from coilwork_ir.scalar import Const, Op, Scalar, placeholder
from coilwork_triton.facts.vectorization import is_varying_along

MOST_BINS: Final = 1024
_COUNTS: Final = frozenset({DType.I32, DType.I64, DType.U32, DType.U64})


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many of a kernel's ranges, from the first on, say which row of bins a point belongs to, and the
    most `bins` that one of its stores counts in.
    """

    rows: int
    bins: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """The bins in which a store counts: the numbers from 0 to `count - 1`. They are `certain` if no other
    ones have to be left out.
    """

    count: int
    certain: bool


def privatize_histogram(
    kernel: Kernel, grids: Grids, likely: Mapping[Expr, int] = MappingProxyType({})
) -> Histogram | None:
    """Return the histogram that programs make of the stores of `kernel`; None if it is not possible or not
    worth while.

    `likely` are guesses of its sizes.
    """
    if not kernel.stores or any(r.kind != "parallel" for r in kernel.ranges):
        return None
    found = [find_bins(kernel, store) for store in kernel.stores]
    counts = [bins.count for bins in found if bins is not None]
    if len(counts) < len(found):
        return None
    rows = _count_row_ranges(kernel)
    points = kernel.ranges[rows:]
    if not all(_vary(store, points) for store in kernel.stores):
        return None
    most = max(counts)
    if not _has_many_points(kernel, rows, most, grids, likely):
        return None
    return Histogram(rows=rows, bins=most)


def find_bins(kernel: Kernel, store: Store) -> Bins | None:
    """Return the numbers that `store` counts, if it adds one integer at a place that is a row and a number
    that data choose; else None.

    Each of them is at least 0: by its type, by a check, or because what lies before a buffer is not in it.
    """
    dtype = next((a.dtype for a in kernel.args if a.name == store.buffer), store.value.dtype)
    if store.mode != "add" or dtype not in _COUNTS or len(store.indirect) != 1:
        return None
    chosen, at = store.indirect[0], placeholder(0)
    if not isinstance(store.value, Const) or store.value.dtype is not dtype or not chosen.dtype.is_integer:
        return None
    if find_stride(store.index, at) is not as_expr(1):
        return None
    by_type = _values_of_type(chosen)
    conditions = list(_list_store_conditions(kernel, store))
    ends = [end for end in (by_type, *(_end(chosen, c) for c in conditions)) if end is not None]
    least = by_type is not None or any(_is_least(chosen, c) for c in conditions)
    if store.index is at:
        least = True
        span = next((as_int(a.span) for a in kernel.args if a.name == store.buffer), None)
        ends += [] if span is None else [span]
    count = min(ends, default=0)
    if not least or not 1 <= count <= MOST_BINS:
        return None
    return Bins(count=count, certain=count == by_type)


def _count_row_ranges(kernel: Kernel) -> int:
    """Count the leading ranges of `kernel` that select a row of bins."""
    used = frozenset[Expr]().union(*(store.index.free_symbols for store in kernel.stores))
    return max((k + 1 for k, r in enumerate(kernel.ranges) if r.symbol in used), default=0)


def _vary(store: Store, points: Sequence[Range]) -> bool:
    """Return the number that `store` counts is one of each of the `points`."""
    return any(is_varying_along(store.indirect[0], r.symbol) for r in points if r.extent is not as_expr(1))


def _has_many_points(kernel: Kernel, rows: int, bins: int, grids: Grids, likely: Mapping[Expr, int]) -> bool:
    """Tell if the points of a row of bins are many enough for programs of their own, as far as is known."""
    row = multiply_all(r.extent for r in kernel.ranges[rows:])
    points = multiply_all(r.extent for r in kernel.ranges)
    alone = rows == 0
    many = grids.counted_points
    found = _estimate(row, likely, many if alone else None)
    long = found >= max(grids.counted_row, grids.counted_per_bin * bins)
    return long and _estimate(points, likely, many) >= many


def _estimate(number: Expr, likely: Mapping[Expr, int], unknown: int | None) -> int:
    """Return the value of `number` by `likely` sizes; else `unknown`, or the least value if that is None."""
    if number.free_symbols <= likely.keys():
        return evaluate(number, {size.name: guess for size, guess in likely.items()})
    return (find_bounds(number).lo or 0) if unknown is None else unknown


def _values_of_type(node: Scalar) -> int | None:
    """Return the numbers from 0 on that `node` can be by the types that it comes from; None if it may be
    negative, or of many.
    """
    while isinstance(node, Op) and node.op == "cast" and node.dtype.is_integer:
        below = node.operands[0].dtype
        if not (below.is_integer or below.is_bool) or below.itemsize > node.dtype.itemsize:
            break
        if below.itemsize == node.dtype.itemsize and not below.is_bool:
            break
        node = node.operands[0]
    return {DType.BOOL: 2, DType.U8: 1 << 8, DType.U16: 1 << 16}.get(node.dtype)


def _list_store_conditions(kernel: Kernel, store: Store) -> Iterator[Scalar]:
    """Yield the conditions that hold wherever `store` adds."""
    pending = [check.condition for check in kernel.checks]
    pending += [] if store.mask is None else [store.mask]
    while pending:
        node = pending.pop()
        if isinstance(node, Op) and node.op == "bitwise_and" and node.dtype.is_bool:
            pending.extend(node.operands)
        else:
            yield node


def _end(chosen: Scalar, condition: Scalar) -> int | None:
    """Return the number below which `condition` keeps `chosen`; None if there is none."""
    match condition:
        case Op(op="lt", operands=(value, Const() as end)) if value is chosen:
            return int(end.value)
        case Op(op="le", operands=(value, Const() as last)) if value is chosen:
            return int(last.value) + 1
        case _:
            return None


def _is_least(chosen: Scalar, condition: Scalar) -> bool:
    """Tell if `condition` says that `chosen` is at least 0."""
    match condition:
        case Op(op="ge", operands=(value, Const() as least)) if value is chosen:
            return least.value >= 0
        case Op(op="gt", operands=(value, Const() as least)) if value is chosen:
            return least.value >= -1
        case _:
            return False
