"""Find which keys a mask can let count for a block of rows, and which it surely does.

A mask such as `k <= q and q - k <= 256` is a conjunction of comparisons that are affine in one of both
positions. Each bounds one side's positions by an expression over the other's. Over a block of the other side
the loosest value bounds the points that may count, and the tightest those that all count.
"""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.index import Expr, as_expr, as_int, find_stride, maximum, minimum, substitute
from coilwork_ir.scalar import Const, IndexValue, Op, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Expressions that are at least 0 wherever a mask holds.

    `exact`: the mask also holds wherever all of them are.
    """

    expressions: tuple[Expr, ...]
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Points of one side for a block of the other: those that may count are from `first` up to `last`, and
    those that all count are from `full_first` up to `full_last`, each without its end.

    `exact`: the latter need no mask.
    """

    first: Expr
    full_first: Expr
    full_last: Expr
    last: Expr
    exact: bool


def find_conditions(mask: Scalar | None) -> Conditions:
    """Return the affine conditions of `mask`; None holds everywhere."""
    if mask is None:
        return Conditions(expressions=(), exact=True)
    match mask:
        case Const():
            return Conditions(expressions=(), exact=bool(mask.value))
        case Op(op="bitwise_and"):
            parts = [find_conditions(operand) for operand in mask.operands]
            return Conditions(
                expressions=tuple(dict.fromkeys(e for part in parts for e in part.expressions)),
                exact=all(part.exact for part in parts),
            )
        case Op(op="le" | "lt" | "ge" | "gt"):
            left, right = (_read_affine(operand) for operand in mask.operands)
            if left is not None and right is not None:
                if mask.op in ("le", "lt"):
                    left, right = right, left
                strict = 1 if mask.op in ("lt", "gt") else 0
                return Conditions(expressions=(left - right - strict,), exact=True)
    return Conditions(expressions=(), exact=False)


def _read_affine(value: Scalar) -> Expr | None:
    """Return the expression over positions and sizes that the integer `value` is, if it is one."""
    if not value.dtype.is_integer:
        return None
    match value:
        case Const():
            return as_expr(int(value.value))
        case IndexValue():
            return None if value.operands else value.expr
        case Op(op="cast"):
            (operand,) = value.operands
            return _read_affine(operand) if value.dtype.itemsize >= 4 else None
        case Op(op="add" | "sub" | "mul"):
            left, right = (_read_affine(operand) for operand in value.operands)
            if left is None or right is None:
                return None
            if value.op == "add":
                return left + right
            return left - right if value.op == "sub" else left * right
        case Op(op="neg"):
            (operand,) = value.operands
            found = _read_affine(operand)
            return None if found is None else -found
    return None


def find_span(
    conditions: Conditions, side: Expr, other: Expr, block: tuple[Expr, Expr], extent: Expr
) -> Span:
    """Return the points of `side`, of which there are `extent`, for positions of `other` in `block`, from the
    first to the last.
    """
    firsts, full_firsts = [as_expr(0)], [as_expr(0)]
    lasts, full_lasts = [extent], [extent]
    exact = conditions.exact
    for expression in conditions.expressions:
        found = _solve(expression, side, other)
        if found is None:
            exact = False
            continue
        bound, is_upper, grows = found
        low, high = (substitute(bound, {other: end}) for end in block)
        loose, tight = (high, low) if grows == is_upper else (low, high)
        if is_upper:
            lasts.append(loose + 1)
            full_lasts.append(tight + 1)
        else:
            firsts.append(loose)
            full_firsts.append(tight)
    return Span(
        first=maximum(*firsts),
        full_first=maximum(*full_firsts),
        full_last=minimum(*full_lasts),
        last=minimum(*lasts),
        exact=exact,
    )


def _solve(expression: Expr, side: Expr, other: Expr) -> tuple[Expr, bool, bool] | None:
    """`expression >= 0` as a bound of `side`, if it is an upper one, and if it grows with `other`."""
    step, along = find_stride(expression, side), find_stride(expression, other)
    if step is None or along is None or as_int(step) not in (1, -1) or as_int(along) is None:
        return None
    rest = substitute(expression, {side: as_expr(0)})
    if side in rest.free_symbols:
        return None
    is_upper = as_int(step) == -1
    grows = (as_int(along) or 0) >= 0
    return (rest, True, grows) if is_upper else (-rest, False, not grows)
