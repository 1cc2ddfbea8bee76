"""Minimum and maximum, simplified."""

from __future__ import annotations

from coilwork_ir.index.expression import MAX, MIN, Expr, IndexArithmeticError, as_expr, const, make_atom
from coilwork_ir.index.proofs import provably_le


def minimum(*xs: Expr | int) -> Expr:
    """The least of `xs`. Raises IndexArithmeticError when there are none."""
    return _extremum(MIN, xs)


def maximum(*xs: Expr | int) -> Expr:
    """The greatest of `xs`. Raises IndexArithmeticError when there are none."""
    return _extremum(MAX, xs)


def _extremum(tag: int, xs: tuple[Expr | int, ...]) -> Expr:
    """Flat, without repetition, at most one constant, no operand that another provably beats; sorted."""
    operands: dict[Expr, None] = {}
    limit: int | None = None
    for x in xs:
        e = as_expr(x)
        for operand in e._args if e._tag == tag else (e,):
            if operand._monos:
                operands[operand] = None
            elif limit is None:
                limit = operand._constant
            else:
                limit = min(limit, operand._constant) if tag == MIN else max(limit, operand._constant)
    if limit is not None:
        operands[const(limit)] = None
    if not operands:
        raise IndexArithmeticError("minimum or maximum of nothing")
    kept = sorted(operands, key=lambda e: e.sort_key)
    i = 0
    while i < len(kept) and len(kept) > 1:
        beaten = any(j != i and _beats(tag, other, kept[i]) for j, other in enumerate(kept))
        if beaten:
            del kept[i]
        else:
            i += 1
    return kept[0] if len(kept) == 1 else make_atom(tag, tuple(kept))


def _beats(tag: int, a: Expr, b: Expr) -> bool:
    return provably_le(a, b) if tag == MIN else provably_le(b, a)
