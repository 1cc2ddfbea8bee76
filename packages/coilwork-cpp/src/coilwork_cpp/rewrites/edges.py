"""Where along a range a kernel's guards change, and where its index expressions bend.

`(x + 1017) % 1024` is `x + 1017` below 7 and `x - 7` from there on: between such points an index is affine,
so that neighbours read neighbours. The same holds for minima and maxima of affine expressions, which clamp
and reflect.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from coilwork_cpp.guards import compared
from coilwork_cpp.rewrites.ranges import index_expressions
from coilwork_ir.index import (
    Add,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Sym,
    as_expr,
    as_int,
    node,
    stride_of,
    substitute,
)
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import kernel_roots
from coilwork_ir.scalar import Op, postorder


def guard_changes(kernel: Kernel, at: Expr, count: int) -> set[int]:
    """The points of `at` from which on some guard of `at` alone differs from the point before."""
    found: set[int] = set()
    for value in postorder(kernel_roots(kernel)):
        sides = compared(value)
        if sides is None or not isinstance(value, Op):
            continue
        difference = sides[0] - sides[1]
        step = stride_of(difference, at)
        if difference.free_symbols != {at} or step is None:
            continue
        slope, start = as_int(step), as_int(substitute(difference, {at: as_expr(0)}))
        if slope is None or start is None or slope == 0:
            continue
        # what changes is whether the difference reaches 0 (`<`, `>=`), or exceeds it (`<=`, `>`)
        change = _crossing(slope, start, 0 if value.op in ("lt", "ge") else 1)
        if 0 < change < count:
            found.add(change)
    return found


def index_bends(kernel: Kernel, at: Expr, count: int, most: int) -> set[int]:
    """The points of `at` from which on some part of an index that depends on `at` alone follows another line
    than before.

    Of an expression that bends at more than `most` points, none.
    """
    found: set[int] = set()
    for expr in index_expressions(kernel):
        for part in _bending(expr, at):
            found |= _bends(part, at, count, most) or set()
    return found


def bends(kernel: Kernel) -> bool:
    """Tell whether an index divides, clamps or reflects a range."""
    return any(
        isinstance(node(part), FloorDiv | Mod | Min | Max) for part in _parts(index_expressions(kernel))
    )


def _crossing(slope: int, start: int, limit: int) -> int:
    """The first integer from which on `slope*x + start >= limit` holds, or for a negative slope fails."""
    return -((start - limit) // slope) if slope > 0 else (start - limit) // -slope + 1


def _parts(expressions: tuple[Expr, ...]) -> Iterator[Expr]:
    pending = list(expressions)
    while pending:
        expr = pending.pop()
        yield expr
        pending.extend(_operands(expr))


def _operands(expr: Expr) -> tuple[Expr, ...]:
    match node(expr):
        case Const() | Sym():
            return ()
        case FloorDiv(numerator, denominator) | Mod(numerator, denominator):
            return (numerator, denominator)
        case Add(operands) | Mul(operands) | Min(operands) | Max(operands):
            return operands


def _bending(expr: Expr, at: Expr) -> Iterator[Expr]:
    """The outermost divisions, minima and maxima in `expr` that depend on `at` alone."""
    if at not in expr.free_symbols:
        return
    if expr.free_symbols == {at} and isinstance(node(expr), FloorDiv | Mod | Min | Max):
        yield expr
    else:
        for operand in _operands(expr):
            yield from _bending(operand, at)


def _bends(expr: Expr, at: Expr, count: int, most: int) -> set[int] | None:
    """Return where `expr`, of `at` alone, changes from one line to another; None where that is too often, or
    not known.
    """
    found: set[int] = set()
    for operand in _operands(expr):
        if at in operand.free_symbols:
            below = _bends(operand, at, count, most)
            if below is None:
                return None
            found |= below
    match node(expr):
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
            return found
    for low, high in pairwise([0, *sorted(found), count]):
        for difference, period in pieces:
            at_low = _value(difference, at, low)
            slope = _value(difference, at, low + 1) - at_low if high - low > 1 else 0
            start, reached = at_low - slope * low, at_low + slope * (high - 1 - low)
            floors = (
                range(min(at_low, reached) // period + 1, max(at_low, reached) // period + 1)
                if period
                else (0,)
            )
            if len(floors) + len(found) > most:
                return None
            if slope:
                found |= {x for x in (_crossing(slope, start, k * period) for k in floors) if low < x < high}
    return found


def _value(expr: Expr, at: Expr, value: int) -> int:
    found = as_int(substitute(expr, {at: as_expr(value)}))
    assert found is not None
    return found
