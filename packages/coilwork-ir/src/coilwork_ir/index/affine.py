"""Strides: how an index moves as its range symbols move."""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.index.expression import (
    ONE,
    SYMBOL,
    ZERO,
    Expr,
    IndexArithmeticError,
    accumulate,
    add,
    atoms_of,
    const,
    from_terms,
    mono_from_atoms,
    subtract,
)
from coilwork_ir.index.substitution import substitute


def coefficients(e: Expr, symbols: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr] | None:
    """`((c_0, c_1, ...), rest)` with `e = sum(c_k * symbols[k]) + rest`, all of them free of `symbols`.

    None when `e` is not affine in them. `symbols` must be distinct symbols (IndexArithmeticError).
    """
    position = dict(zip(symbols, range(len(symbols))))
    if len(position) != len(symbols):
        raise IndexArithmeticError(f"not distinct symbols: {list(symbols)!r}")
    for s in symbols:
        if s._tag != SYMBOL:
            raise IndexArithmeticError(f"not distinct symbols: {list(symbols)!r}")
    strides = [ZERO] * len(position)
    symbolic: dict[int, dict[Expr, int]] = {}  # the terms of strides that are no numbers
    rest: dict[Expr, int] = {}
    for m, c in zip(e._monos, e._coeffs):
        at = position.get(m)
        if at is not None:
            strides[at] = const(c)
            continue
        outside: list[Expr] = []
        for f in atoms_of(m):
            found = position.get(f)
            if found is None:
                if f._tag != SYMBOL and not f.free_symbols.isdisjoint(position):
                    return None
                outside.append(f)
            elif at is None:
                at = found
            else:
                return None
        if at is None:
            rest[m] = c
        else:
            accumulate(symbolic.setdefault(at, {}), mono_from_atoms(tuple(outside)), c)
    for at, terms in symbolic.items():
        strides[at] = from_terms(terms, strides[at]._constant)
    return tuple(strides), from_terms(rest, e._constant) if rest else const(e._constant)


def stride_of(e: Expr, sym: Expr) -> Expr | None:
    """`e` at `sym + 1` minus `e` at `sym`, if that does not depend on `sym`; else None."""
    if sym not in e.free_symbols:
        return ZERO
    affine = coefficients(e, (sym,))
    if affine is not None:
        return affine[0][0]
    difference = subtract(substitute(e, {sym: add(sym, ONE)}), e)
    return None if sym in difference.free_symbols else difference
