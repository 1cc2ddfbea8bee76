"""Share windows: a point computes a few neighbours along an outer range, and loads once what they share.

Where channels lie side by side, threads load 16 bytes of them at a time, and each point loads its whole
window: of 3 x 3 pixels nine times as much as there is. Points of several pixels,

    store %out0[64*x0 + x1] = load %in0[64*x0 + x1] + load %in0[64*x0 + x1 + 64] + load %in0[64*x0 + x1 + 128]

become

    store %out0[128*x0 + x1] = load %in0[128*x0 + x1] + ...               x0 < 16
    store %out0[128*x0 + x1 + 64] = load %in0[128*x0 + x1 + 64] + ...

with four loads where there were six; what a point loads beside its window, such as weights, is loaded once
for all of them as well. In windows of which a point meets only every other element, as in the gradient of a
convolution in steps of two, neighbours have conditions that are known, and loads that are none go away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, symbol
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.scalar import IndexValue, Load, iterate_postorder
from coilwork_ir.target import Target
from coilwork_triton.kernel_passes.range_unrolling import are_plain_stores, specialize_stores

# Neighbours that a point computes along one range, the most first.
_FACTORS: Final = (4, 2)
# So many results of a point, and what they share, stay in registers.
_MOST_RESULTS: Final = 4
# Loads of one tensor that are a window.
_LEAST_WINDOW: Final = 3
# Scalars of all results of a point: text that is still compiled in a moment.
_MOST_SCALARS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWindows:
    """`kernel`, of whose points each computes `points` of before."""

    kernel: Kernel
    points: int


def share_windows(kernel: Kernel, innermost: Sequence[str], target: Target) -> SharedWindows | None:
    """`kernel` over points of several neighbours each, along ranges that are not `innermost` in their tiles.

    None where that saves too few loads, or leaves too few points.
    """
    if not are_plain_stores(kernel.stores) or kernel.checks:
        return None
    if any(r.kind != "parallel" for r in kernel.ranges) or not _has_window(_list_loads(kernel)):
        return None
    points = 1
    while points < _MOST_RESULTS:
        found = [
            (_count(unrolled) / factor, factor, unrolled)
            for r in kernel.ranges
            if r.symbol.name not in innermost
            for factor in _FACTORS
            if points * factor <= _MOST_RESULTS
            and (unrolled := _unroll(kernel, r, factor)) is not None
            and _share_elements(kernel, unrolled, r.symbol, factor)
            and _leaves_enough(unrolled, target)
        ]
        least = min(found, key=lambda one: one[0], default=None)
        if least is None or least[0] > target.machine.grids.paired_share * _count(kernel):
            break
        kernel, points = least[2], points * least[1]
    return SharedWindows(kernel=kernel, points=points) if points > 1 else None


def _unroll(kernel: Kernel, along: Range, factor: int) -> Kernel | None:
    """`kernel` with `factor` points along a range in one; None if they do not fill it, or text is long."""
    extent = None if along.symbol.extent is None else as_int(along.symbol.extent)
    order = tuple(iterate_postorder([store.value for store in kernel.stores]))
    if extent is None or extent % factor or factor * len(order) > _MOST_SCALARS:
        return None
    step = symbol(along.symbol.name, extent=extent // factor)
    each = [specialize_stores(kernel.stores, {along.symbol: step * factor + k}) for k in range(factor)]
    return replace(
        kernel,
        ranges=tuple(replace(r, symbol=step) if r is along else r for r in kernel.ranges),
        stores=tuple(store for stores in zip(*each, strict=True) for store in stores),
    )


def _leaves_enough(kernel: Kernel, target: Target) -> bool:
    """Tell if the points of `kernel`, whose number is known, keep all of the device busy."""
    points = as_expr(1)
    for r in kernel.ranges:
        points = points * (as_expr(1) if r.symbol.extent is None else r.symbol.extent)
    known = as_int(points)
    return known is not None and known >= target.machine.grids.enough_points * target.multiprocessors


def _count(kernel: Kernel) -> int:
    return len(_list_loads(kernel))


def _list_loads(kernel: Kernel) -> list[Load]:
    """Loads that vary along more than the innermost range."""
    order = iterate_postorder([store.value for store in kernel.stores])
    inner = {kernel.ranges[-1].symbol} if kernel.ranges else set()
    return [v for v in order if isinstance(v, Load) and set(_iter_places(v)) - inner]


def _has_window(loads: Sequence[Load]) -> bool:
    return bool(_count_windows(loads))


def _count_windows(loads: Sequence[Load]) -> dict[str, int]:
    """Return the number of loads of each tensor of which a point reads a window."""
    counts = Counter(load.buffer for load in loads if not load.indirect)
    return {buffer: count for buffer, count in counts.items() if count >= _LEAST_WINDOW}


def _share_elements(kernel: Kernel, unrolled: Kernel, along: Expr, factor: int) -> bool:
    """Tell if the windows of `factor` neighbours `along` a range overlap.

    Parts of a row, such as those that are concatenated, are many loads as well, but neighbours share none.
    What does not depend on the range is no window along it.
    """
    before, after = (_count_windows(_list_loads(one)) for one in (kernel, unrolled))
    moving = {load.buffer for load in _list_loads(kernel) if along in _iter_places(load)}
    return any(after.get(buffer, 0) < factor * before[buffer] for buffer in moving & before.keys())


def _iter_places(load: Load) -> Iterator[Expr]:
    yield from load.index[0].free_symbols
    for node in iterate_postorder(load.operands):
        if isinstance(node, IndexValue):
            yield from node.expr.free_symbols
