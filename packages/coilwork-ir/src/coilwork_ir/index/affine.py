"""Strides: how an index moves as its range symbols move."""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.index.errors import IndexArithmeticError
from coilwork_ir.index.expression import ONE, SYMBOL, ZERO, Expr, atoms_of, const
from coilwork_ir.index.ring import accumulate, add, from_terms, mono_from_atoms, subtract
from coilwork_ir.index.substitution import substitute


def coefficients(e: Expr, symbols: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr] | None:
    """`((c_0, c_1, ...), rest)` with `e = sum(c_k * symbols[k]) + rest`, all of them free of `symbols`.

    None when `e` is not affine in them. `symbols` must be distinct symbols (IndexArithmeticError).
    """
    position = {s: i for i, s in enumerate(symbols)}
    for s in symbols:
        if s._tag != SYMBOL or len(position) != len(symbols):
            raise IndexArithmeticError(f"not distinct symbols: {list(symbols)!r}")
    numbers = [0] * len(position)
    symbolic: list[dict[Expr, int] | None] = [None] * len(position)
    rest: dict[Expr, int] = {}
    for m, c in zip(e._monos, e._coeffs):
        if m._tag == SYMBOL:
            at = position.get(m)
            if at is None:
                rest[m] = c
            else:
                numbers[at] = c
            continue
        factors = atoms_of(m)
        inside: list[Expr] = []
        outside: list[Expr] = []
        for f in factors:
            if f in position:
                inside.append(f)
            elif f._tag == SYMBOL or f.free_symbols.isdisjoint(position):
                outside.append(f)
            else:
                return None
        if not inside:
            rest[m] = c
            continue
        if len(inside) != 1:
            return None
        at = position[inside[0]]
        terms = symbolic[at]
        if terms is None:
            terms = symbolic[at] = {}
        accumulate(terms, mono_from_atoms(tuple(outside)), c)
    found = tuple([const(n) if t is None else from_terms(t, n) for t, n in zip(symbolic, numbers)])
    return found, from_terms(rest, e._constant) if rest else const(e._constant)


def stride_of(e: Expr, sym: Expr) -> Expr | None:
    """`e` at `sym + 1` minus `e` at `sym`, if that does not depend on `sym`; else None."""
    if sym not in e.free_symbols:
        return ZERO
    affine = coefficients(e, (sym,))
    if affine is not None:
        return affine[0][0]
    difference = subtract(substitute(e, {sym: add(sym, ONE)}), e)
    return None if sym in difference.free_symbols else difference
