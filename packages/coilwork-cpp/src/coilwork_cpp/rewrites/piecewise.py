"""Cut kernels into pieces in which guards are constant and indices affine.

A window that reaches over the border of an image, the gather of a strided window's derivative, and the parts
of a concatenation are guarded loads: `2*x - 1 >= 0 ? in[2*x - 1] : 0`. A roll reads `(x + 1017) % 1024`,
which is `x + 1017` below 7 and `x - 7` from there on. Compilers vectorise neither well. Two rewrites of
kernels that only compute and store, point by point:

1. *Unroll*: indices that divide a range by a small number (`(x + 1) // 2`) are affine, and guards on the
   remainder constant, for every remainder on its own. A point of the new kernel does what that many
   neighbours did.
2. *Cut*: a range is cut where its guards change or its indices bend, as divisions, minima and maxima do. Most
   points are in the middle piece. Pieces that are equally long and read the same lines, such as rotated
   halves, are walked together.

On a piece most guards are always true, or never: `fold_decided_guards` drops them, with what they guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

from coilwork_cpp.facts import split_comparison
from coilwork_cpp.rewrites.normal_form import (
    find_divisors,
    index_expressions,
    normalise_ranges,
    replace_ranges,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Add,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Sym,
    as_expr,
    as_int,
    find_stride,
    get_extent,
    get_node,
    provably_le,
    provably_lt,
    substitute,
    symbol,
)
from coilwork_ir.index import (
    Const as IndexConst,
)
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import list_kernel_roots, replace_roots
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Reduce,
    Scalar,
    Scan,
    Sort,
    const,
    iterate_postorder,
    load,
    rewrite,
)

# ---- guards ----


_Proof = Callable[[Expr, Expr], bool]
# When a comparison holds, and when it does not.
_ORDER_PROOFS: Final[Mapping[str, tuple[_Proof, _Proof]]] = {
    "lt": (provably_lt, lambda a, b: provably_le(b, a)),
    "le": (provably_le, lambda a, b: provably_lt(b, a)),
    "gt": (lambda a, b: provably_lt(b, a), provably_le),
    "ge": (lambda a, b: provably_le(b, a), provably_lt),
}


def fold_decided_guards(kernel: Kernel) -> Kernel:
    """`kernel` without comparisons that hold, or fail, at all of its points. A store that never
    happens goes.
    """
    changed = replace_roots(kernel, rewrite(list_kernel_roots(kernel), _fold_guard))
    stores = []
    for store in changed.stores:
        if isinstance(store.mask, Const):
            if not store.mask.value:
                continue
            store = replace(store, mask=None)
        stores.append(store)
    return replace(changed, stores=tuple(stores))


def _fold_guard(node: Scalar) -> Scalar:
    if isinstance(node, Load) and isinstance(node.mask, Const):
        if not node.mask.value:
            return const(node.other, node.dtype)
        return load(node.buffer, node.index, node.dtype, indirect=node.indirect)
    if isinstance(node, IndexValue):
        known = as_int(node.expr)
        return node if known is None else const(known, DType.I64)
    if not isinstance(node, Op):
        return node
    if node.op == "cast" and isinstance(node.operands[0], Const):
        return _fold_cast(node, node.operands[0])
    sides = split_comparison(node)
    if sides is not None:
        for proof, answer in zip(_ORDER_PROOFS[node.op], (True, False), strict=True):
            if proof(*sides):
                return const(answer, DType.BOOL)
        return node
    if node.op == "where" and isinstance(node.operands[0], Const):
        return node.operands[1 if node.operands[0].value else 2]
    if node.op == "bitwise_not" and isinstance(node.operands[0], Const) and node.dtype.is_bool:
        return const(not node.operands[0].value, DType.BOOL)
    if node.op in ("bitwise_and", "bitwise_or") and node.dtype.is_bool:
        return _fold_connective(node)
    return node


def _fold_cast(node: Op, source: Const) -> Scalar:
    """Numbers that every arithmetic type holds exactly; a divisor that is known is a multiplication, say."""
    if source.dtype is DType.I64 and 0 <= source.value < 128 and not node.dtype.is_bool:
        return const(int(source.value) if node.dtype.is_integer else float(source.value), node.dtype)
    return node


def _fold_connective(node: Op) -> Scalar:
    neutral = node.op == "bitwise_and"
    left, right = node.operands
    for this, other in ((left, right), (right, left)):
        if isinstance(this, Const):
            return other if bool(this.value) is neutral else const(not neutral, DType.BOOL)
    return node


# ---- cut points ----


def find_guard_changes(kernel: Kernel, at: Expr, count: int) -> set[int]:
    """Return the points of `at` from which on some guard of `at` alone differs from the point before."""
    points: set[int] = set()
    for value in iterate_postorder(list_kernel_roots(kernel)):
        sides = split_comparison(value)
        if sides is None or not isinstance(value, Op):
            continue
        difference = sides[0] - sides[1]
        step = find_stride(difference, at)
        if difference.free_symbols != {at} or step is None:
            continue
        slope, start = as_int(step), as_int(substitute(difference, {at: as_expr(0)}))
        if slope is None or start is None or slope == 0:
            continue
        # what changes is whether the difference reaches 0 (`<`, `>=`), or exceeds it (`<=`, `>`)
        change = _solve_crossing(slope, start, 0 if value.op in ("lt", "ge") else 1)
        if 0 < change < count:
            points.add(change)
    return points


def find_index_bends(kernel: Kernel, at: Expr, count: int, most: int) -> set[int]:
    """Return the points of `at` from which on some part of an index that depends on `at` alone follows
    another line than before.

    Of an expression that bends at more than `most` points, none.
    """
    points: set[int] = set()
    for expr in index_expressions(kernel):
        for part in _find_bends(expr, at):
            points |= _bend_points(part, at, count, most) or set()
    return points


def has_bends(kernel: Kernel) -> bool:
    """Tell whether an index divides, clamps or reflects a range."""
    return any(
        isinstance(get_node(part), FloorDiv | Mod | Min | Max)
        for part in _walk_parts(index_expressions(kernel))
    )


def _solve_crossing(slope: int, start: int, limit: int) -> int:
    """Return the first integer from which on `slope*x + start >= limit` holds, or for a negative slope
    fails.
    """
    return -((start - limit) // slope) if slope > 0 else (start - limit) // -slope + 1


def _walk_parts(expressions: tuple[Expr, ...]) -> Iterator[Expr]:
    pending = list(expressions)
    while pending:
        expr = pending.pop()
        yield expr
        pending.extend(_operands(expr))


def _operands(expr: Expr) -> tuple[Expr, ...]:
    match get_node(expr):
        case IndexConst() | Sym():
            return ()
        case FloorDiv(numerator, denominator) | Mod(numerator, denominator):
            return (numerator, denominator)
        case Add(operands) | Mul(operands) | Min(operands) | Max(operands):
            return operands


def _find_bends(expr: Expr, at: Expr) -> Iterator[Expr]:
    """Yield the outermost divisions, minima and maxima in `expr` that depend on `at` alone."""
    if at not in expr.free_symbols:
        return
    if expr.free_symbols == {at} and isinstance(get_node(expr), FloorDiv | Mod | Min | Max):
        yield expr
    else:
        for operand in _operands(expr):
            yield from _find_bends(operand, at)


def _bend_points(expr: Expr, at: Expr, count: int, most: int) -> set[int] | None:
    """Return where `expr`, of `at` alone, changes from one line to another; None where that is too often, or
    not known.
    """
    points: set[int] = set()
    for operand in _operands(expr):
        if at in operand.free_symbols:
            below = _bend_points(operand, at, count, most)
            if below is None:
                return None
            points |= below
    match get_node(expr):
        case FloorDiv(numerator, denominator) | Mod(numerator, denominator):
            divisor = as_int(denominator)
            if divisor is None or divisor < 1:
                return None
            pieces = [(numerator, divisor)]
        case Min(operands) | Max(operands):
            pieces = [(a - b, 0) for k, a in enumerate(operands) for b in operands[:k]]
        case Mul(operands) if sum(at in o.free_symbols for o in operands) > 1:
            return None
        case _:
            return points
    for low, high in pairwise([0, *sorted(points), count]):
        for difference, period in pieces:
            at_low = _evaluate_at(difference, at, low)
            slope = _evaluate_at(difference, at, low + 1) - at_low if high - low > 1 else 0
            start, reached = at_low - slope * low, at_low + slope * (high - 1 - low)
            floors = (
                range(min(at_low, reached) // period + 1, max(at_low, reached) // period + 1)
                if period
                else (0,)
            )
            if len(floors) + len(points) > most:
                return None
            if slope:
                points |= {
                    x for x in (_solve_crossing(slope, start, k * period) for k in floors) if low < x < high
                }
    return points


def _evaluate_at(expr: Expr, at: Expr, value: int) -> int:
    result = as_int(substitute(expr, {at: as_expr(value)}))
    assert result is not None
    return result


# ---- pieces ----


_LARGEST_STEP: Final = 4
_MOST_STORES: Final = 8
_MOST_CUTS: Final = 6
# Smaller kernels do not repay the time to compile more code, and larger bodies would take too much of it.
_FEWEST_POINTS: Final = 1 << 14
_MOST_NODES: Final = 400
# Ends that are longer than one of so many points are cut further, if the body is small.
_FEW: Final = 32
_SMALL_NODES: Final = 40


def cut_into_pieces(kernel: Kernel) -> tuple[Kernel, ...]:
    """Kernels that do the work of `kernel` together, in any order; itself, where there is nothing to gain."""
    if not _is_eligible(kernel):
        return (kernel,)
    unrolled = _unroll(kernel)
    pieces = _cut_ranges(unrolled, 0)
    if len(pieces) == 1 and pieces[0] is kernel:
        return (kernel,)
    # they reduce nothing, so any number of lanes does
    return tuple(normalise_ranges(fold_decided_guards(piece), 1) for piece in pieces)


def _is_eligible(kernel: Kernel) -> bool:
    if kernel.checks or any(store.mode != "store" or store.indirect for store in kernel.stores):
        return False
    points = 1
    for r in kernel.ranges:
        points *= as_int(r.extent) or 16
    nodes = list(iterate_postorder(list_kernel_roots(kernel)))
    if len(nodes) > _MOST_NODES or any(isinstance(node, Reduce | Scan | Sort) for node in nodes):
        return False
    if any(isinstance(node, Load) and node.mask is not None for node in nodes):
        return points >= _FEWEST_POINTS
    if points >= _FEWEST_POINTS and has_bends(kernel):
        return True
    # one loop takes another's place here, whatever the number of points
    return _has_short_last_range(kernel)


def _has_short_last_range(kernel: Kernel) -> bool:
    """Tell if the last range is a few points that differ by guards: parts of complex numbers, which no vector
    is filled with.
    """
    if not kernel.ranges:
        return False
    at = kernel.ranges[-1].symbol
    count = as_int(get_extent(at))
    return count is not None and 1 < count <= _LARGEST_STEP and bool(_cut_points(kernel, at, count))


def _unroll(kernel: Kernel) -> Kernel:
    """`kernel` without ranges that indices divide by a small number."""
    for r in kernel.ranges:
        extent = r.extent
        count = as_int(extent)
        known = [as_int(d) for d in find_divisors(index_expressions(kernel), r.symbol)]
        steps = [d for d in known if d is not None and 1 < d <= _LARGEST_STEP]
        if len(known) != 1 or not steps or count is None or count % steps[0] or count == steps[0]:
            continue
        if len(kernel.stores) * steps[0] > _MOST_STORES or not _has_distinct_stores(kernel, r.symbol):
            continue
        return _unroll(_unroll_range(kernel, r.symbol, steps[0]))
    return kernel


def _unroll_range(kernel: Kernel, at: Expr, step: int) -> Kernel:
    """`kernel` with `step` neighbours along `at` as one point."""
    outer = symbol(f"{at.name}s", extent=get_extent(at) // step)
    ranges = tuple(replace(r, symbol=outer) if r.symbol is at else r for r in kernel.ranges)
    parts = [replace_ranges(kernel, ranges, {at: outer * step + offset}) for offset in range(step)]
    return replace(parts[0], stores=tuple(store for part in parts for store in part.stores))


def _has_distinct_stores(kernel: Kernel, at: Expr) -> bool:
    """Tell if no store would happen in two pieces."""
    return all(at in store.index.free_symbols for store in kernel.stores)


def _cut_ranges(kernel: Kernel, first: int) -> tuple[Kernel, ...]:
    """`kernel` cut along its ranges from number `first` on; of the pieces along one, the longest is cut
    further.

    So are the ends, unless they are few points, or their bodies are much to compile.
    """
    for number in range(first, len(kernel.ranges)):
        at = kernel.ranges[number].symbol
        count = as_int(get_extent(at))
        if count is None or not _has_distinct_stores(kernel, at):
            continue
        changes = _cut_points(kernel, at, count)
        if not changes or len(changes) > _MOST_CUTS:
            continue
        edges = [0, *changes, count]
        together = _overlay_pieces(kernel, at, edges)
        if together is not None:
            return _cut_ranges(together, number + 1)
        low, high = max(pairwise(edges), key=lambda edge: edge[1] - edge[0])
        if 2 * (high - low) < count:
            continue
        # the ends come last: they find the middle's lines of memory in the cache
        pieces = _cut_ranges(_restrict(kernel, at, low, high, "m"), number + 1)
        small = len(list(iterate_postorder(list_kernel_roots(kernel)))) <= _SMALL_NODES
        for start, end, suffix in ((0, low, "l"), (high, count, "h")):
            if start < end:
                part = _restrict(kernel, at, start, end, suffix)
                pieces += (
                    _cut_ranges(part, number + 1) if small and (end - start) * _FEW >= count else (part,)
                )
        return pieces
    return (kernel,)


def _overlay_pieces(kernel: Kernel, at: Expr, edges: list[int]) -> Kernel | None:
    """`kernel` with its pieces along `at` as one point, if they are equally long and read the same lines:
    halves that are rotated.
    """
    size, count = edges[1], len(edges) - 1
    if any(high - low != size for low, high in pairwise(edges)):
        return None
    if len(kernel.stores) * count > _MOST_STORES or kernel.aliasing:
        return None
    parts = [fold_decided_guards(_restrict(kernel, at, low, low + size, "p")) for low in edges[:-1]]
    read = [{load.buffer for load in _loads(part)} for part in parts]
    if not set.intersection(*read):
        return None
    return replace(parts[0], stores=tuple(store for part in parts for store in part.stores))


def _loads(kernel: Kernel) -> Iterator[Load]:
    return (node for node in iterate_postorder(list_kernel_roots(kernel)) if isinstance(node, Load))


def _restrict(kernel: Kernel, at: Expr, low: int, high: int, suffix: str) -> Kernel:
    """`kernel` at the points `low <= at < high`."""
    inner = symbol(f"{at.name}{suffix}", extent=high - low)
    ranges = tuple(replace(r, symbol=inner) if r.symbol is at else r for r in kernel.ranges)
    return replace_ranges(kernel, ranges, {at: inner + low})


def _cut_points(kernel: Kernel, at: Expr, count: int) -> list[int]:
    """Return the points of `at`, ascending, where a guard changes or an index bends."""
    return sorted(find_guard_changes(kernel, at, count) | find_index_bends(kernel, at, count, _MOST_CUTS))
