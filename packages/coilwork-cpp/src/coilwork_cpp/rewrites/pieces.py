"""Kernels whose guards or indices depend on where a point lies, in pieces without those guards and with
affine indices.

A window that reaches over the border of an image, the gather of a strided window's derivative, and the parts
of a concatenation are guarded loads: `2*x - 1 >= 0 ? in[2*x - 1] : 0`. Compilers vectorise them badly or not
at all. Two rewrites of kernels that only compute and store, point by point:

1. *Unroll*: indices that divide a range by a small number (`(x + 1) // 2`) are affine, and guards on the
   remainder constant, for every remainder on its own. A point of the new kernel does what that many
   neighbours did.
2. *Cut*: a range is cut where its guards change or its indices bend (`edges.py`). Most points are in the
   middle piece, where they are constant. Pieces that are equally long and read the same, such as rotated
   halves, are walked together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from coilwork_cpp.guards import without_decided_guards
from coilwork_cpp.rewrites.edges import bends, guard_changes, index_bends
from coilwork_cpp.rewrites.ranges import divisors, index_expressions, normalise, replace_ranges
from coilwork_ir.index import Expr, as_int, extent_of, symbol
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import kernel_roots
from coilwork_ir.scalar import Load, Reduce, Scan, Sort, postorder

_LARGEST_STEP: Final = 4
_MOST_STORES: Final = 8
_MOST_CUTS: Final = 6
# Smaller kernels do not repay the time to compile more code, and larger bodies would take too much of it.
_FEWEST_POINTS: Final = 1 << 14
_MOST_NODES: Final = 400
# Ends that are longer than one of so many points are cut further, if the body is small.
_FEW: Final = 32
_SMALL_NODES: Final = 40


def pieces_of(kernel: Kernel) -> tuple[Kernel, ...]:
    """Kernels that do the work of `kernel` together, in any order; itself, where there is nothing to gain."""
    if not _is_eligible(kernel):
        return (kernel,)
    unrolled = _unrolled(kernel)
    pieces = _cut(unrolled, 0)
    if len(pieces) == 1 and pieces[0] is kernel:
        return (kernel,)
    # they reduce nothing, so any number of lanes does
    return tuple(normalise(without_decided_guards(piece), 1) for piece in pieces)


def _is_eligible(kernel: Kernel) -> bool:
    if kernel.checks or any(store.mode != "store" or store.indirect for store in kernel.stores):
        return False
    points = 1
    for r in kernel.ranges:
        points *= as_int(r.extent) or 16
    nodes = list(postorder(kernel_roots(kernel)))
    if len(nodes) > _MOST_NODES or any(isinstance(node, Reduce | Scan | Sort) for node in nodes):
        return False
    if any(isinstance(node, Load) and node.mask is not None for node in nodes):
        return points >= _FEWEST_POINTS
    if points >= _FEWEST_POINTS and bends(kernel):
        return True
    # one loop takes another's place here, whatever the number of points
    return _ends_in_few(kernel)


def _ends_in_few(kernel: Kernel) -> bool:
    """Tell if the last range is a few points that differ by guards: parts of complex numbers, which no vector
    is filled with.
    """
    if not kernel.ranges:
        return False
    at = kernel.ranges[-1].symbol
    count = as_int(extent_of(at))
    return count is not None and 1 < count <= _LARGEST_STEP and bool(_changes(kernel, at, count))


def _unrolled(kernel: Kernel) -> Kernel:
    """`kernel` without ranges that indices divide by a small number."""
    for r in kernel.ranges:
        extent = r.extent
        count = as_int(extent)
        found = [as_int(d) for d in divisors(index_expressions(kernel), r.symbol)]
        steps = [d for d in found if d is not None and 1 < d <= _LARGEST_STEP]
        if len(found) != 1 or not steps or count is None or count % steps[0] or count == steps[0]:
            continue
        if len(kernel.stores) * steps[0] > _MOST_STORES or not _all_vary(kernel, r.symbol):
            continue
        return _unrolled(_repeated(kernel, r.symbol, steps[0]))
    return kernel


def _repeated(kernel: Kernel, at: Expr, step: int) -> Kernel:
    """`kernel` with `step` neighbours along `at` as one point."""
    outer = symbol(f"{at.name}s", extent=extent_of(at) // step)
    ranges = tuple(replace(r, symbol=outer) if r.symbol is at else r for r in kernel.ranges)
    parts = [replace_ranges(kernel, ranges, {at: outer * step + offset}) for offset in range(step)]
    return replace(parts[0], stores=tuple(store for part in parts for store in part.stores))


def _all_vary(kernel: Kernel, at: Expr) -> bool:
    """Tell if no store would happen in two pieces."""
    return all(at in store.index.free_symbols for store in kernel.stores)


def _cut(kernel: Kernel, first: int) -> tuple[Kernel, ...]:
    """`kernel` cut along its ranges from number `first` on; of the pieces along one, the longest is cut
    further.

    So are the ends, unless they are few points, or their bodies are much to compile.
    """
    for number in range(first, len(kernel.ranges)):
        at = kernel.ranges[number].symbol
        count = as_int(extent_of(at))
        if count is None or not _all_vary(kernel, at):
            continue
        changes = _changes(kernel, at, count)
        if not changes or len(changes) > _MOST_CUTS:
            continue
        edges = [0, *changes, count]
        together = _side_by_side(kernel, at, edges)
        if together is not None:
            return _cut(together, number + 1)
        low, high = max(pairwise(edges), key=lambda edge: edge[1] - edge[0])
        if 2 * (high - low) < count:
            continue
        # the ends come last: they find the middle's lines of memory in the cache
        pieces = _cut(_part(kernel, at, low, high, "m"), number + 1)
        small = len(list(postorder(kernel_roots(kernel)))) <= _SMALL_NODES
        for start, end, suffix in ((0, low, "l"), (high, count, "h")):
            if start < end:
                part = _part(kernel, at, start, end, suffix)
                pieces += _cut(part, number + 1) if small and (end - start) * _FEW >= count else (part,)
        return pieces
    return (kernel,)


def _side_by_side(kernel: Kernel, at: Expr, edges: list[int]) -> Kernel | None:
    """`kernel` with its pieces along `at` as one point, if they are equally long and read the same lines:
    halves that are rotated.
    """
    size, count = edges[1], len(edges) - 1
    if any(high - low != size for low, high in pairwise(edges)):
        return None
    if len(kernel.stores) * count > _MOST_STORES or kernel.aliasing:
        return None
    parts = [without_decided_guards(_part(kernel, at, low, low + size, "p")) for low in edges[:-1]]
    read = [{load.buffer for load in _loads(part)} for part in parts]
    if not set.intersection(*read):
        return None
    return replace(parts[0], stores=tuple(store for part in parts for store in part.stores))


def _loads(kernel: Kernel) -> Iterator[Load]:
    return (node for node in postorder(kernel_roots(kernel)) if isinstance(node, Load))


def _part(kernel: Kernel, at: Expr, low: int, high: int, suffix: str) -> Kernel:
    """`kernel` at the points `low <= at < high`."""
    inner = symbol(f"{at.name}{suffix}", extent=high - low)
    ranges = tuple(replace(r, symbol=inner) if r.symbol is at else r for r in kernel.ranges)
    return replace_ranges(kernel, ranges, {at: inner + low})


def _changes(kernel: Kernel, at: Expr, count: int) -> list[int]:
    """The points of `at`, ascending, where a guard changes or an index bends."""
    return sorted(guard_changes(kernel, at, count) | index_bends(kernel, at, count, _MOST_CUTS))
