"""Sums and products in normal form."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from coilwork_ir.index.expression import (
    CONST,
    ONE,
    PRODUCT,
    RULES,
    SUM,
    Expr,
    as_expr,
    atoms_of,
    const,
    make_atom,
    make_sum,
)
from coilwork_ir.interning import MemoTable

_key_of = attrgetter("_key")
_PRODUCTS: MemoTable[tuple[Expr, Expr], Expr] = MemoTable(1 << 12)


def finish(monos: tuple[Expr, ...], coeffs: tuple[int, ...], constant: int, has_mod: bool) -> Expr:
    """The expression with these parts, in canonical order, after recombination."""
    if has_mod and len(monos) > 1:
        return RULES.recombine(monos, coeffs, constant)
    return make_sum(monos, coeffs, constant, has_mod)


def from_terms(terms: dict[Expr, int], constant: int) -> Expr:
    """`sum(coeff * mono) + constant`; zero coefficients are allowed."""
    if len(terms) == 1:
        ((m, c),) = terms.items()
        return make_sum((m,), (c,), constant, m._has_mod) if c else const(constant)
    if 0 in terms.values():
        terms = {m: c for m, c in terms.items() if c}
    monos = sorted(terms, key=_key_of)
    has_mod = False
    for m in monos:
        if m._has_mod:
            has_mod = True
            break
    return finish(tuple(monos), tuple(map(terms.__getitem__, monos)), constant, has_mod)


def add_int(a: Expr, n: int) -> Expr:
    """`a + n`. Can't recombine: the monomials stay."""
    return make_sum(a._monos, a._coeffs, a._constant + n, a._has_mod) if n else a


def scale(a: Expr, n: int) -> Expr:
    """`a * n`. Can't recombine: coefficients keep their ratios."""
    if n == 1:
        return a
    if n == 0:
        return const(0)
    coeffs = a._coeffs
    scaled = (coeffs[0] * n,) if len(coeffs) == 1 else tuple(map(n.__mul__, coeffs))
    return make_sum(a._monos, scaled, a._constant * n, a._has_mod)


def add(a: Expr, b: Expr | int) -> Expr:
    """`a + b`."""
    if type(b) is not Expr:
        return add_int(a, b) if type(b) is int else add(a, as_expr(b))
    ma, mb = a._monos, b._monos
    if not mb:
        n = b._constant
        return make_sum(ma, a._coeffs, a._constant + n, a._has_mod) if n else a
    if not ma:
        n = a._constant
        return make_sum(mb, b._coeffs, b._constant + n, b._has_mod) if n else b
    constant = a._constant + b._constant
    has_mod = a._has_mod or b._has_mod
    if ma[-1]._key < mb[0]._key:
        monos, coeffs = ma + mb, a._coeffs + b._coeffs
    elif mb[-1]._key < ma[0]._key:
        monos, coeffs = mb + ma, b._coeffs + a._coeffs
    else:
        terms = dict(zip(ma, a._coeffs))
        for m, c in zip(mb, b._coeffs):
            terms[m] = terms.get(m, 0) + c
        return from_terms(terms, constant)
    if has_mod:
        return RULES.recombine(monos, coeffs, constant)
    return make_sum(monos, coeffs, constant, False)


def subtract(a: Expr, b: Expr | int) -> Expr:
    """`a - b`."""
    if type(b) is not Expr:
        return add_int(a, -b) if type(b) is int else subtract(a, as_expr(b))
    if a is b:
        return const(0)
    if not b._monos:
        return add_int(a, -b._constant)
    terms = dict(zip(a._monos, a._coeffs))
    for m, c in zip(b._monos, b._coeffs):
        terms[m] = terms.get(m, 0) - c
    return from_terms(terms, a._constant - b._constant)


def multiply_monos(x: Expr, y: Expr) -> Expr:
    """The product of two monomials."""
    if x._tag != PRODUCT != y._tag:
        return make_atom(PRODUCT, (x, y) if x._key <= y._key else (y, x))
    key = (x, y)
    found = _PRODUCTS.get(key)
    if found is not None:
        return found
    factors = sorted(atoms_of(x) + atoms_of(y), key=_key_of)
    return _PRODUCTS.put(key, make_atom(PRODUCT, tuple(factors)))


def mono_from_atoms(atoms: tuple[Expr, ...]) -> Expr:
    """The product of sorted atoms, as an expression; none: 1."""
    if not atoms:
        return ONE
    return atoms[0] if len(atoms) == 1 else make_atom(PRODUCT, atoms)


def accumulate(terms: dict[Expr, int], a: Expr, factor: int) -> int:
    """Add `factor * a` to `terms`; return what it adds to the constant."""
    for m, c in zip(a._monos, a._coeffs):
        terms[m] = terms.get(m, 0) + c * factor
    return a._constant * factor


def multiply(a: Expr, b: Expr | int) -> Expr:
    """`a * b`, expanded."""
    if type(b) is not Expr:
        return scale(a, b) if type(b) is int else multiply(a, as_expr(b))
    if CONST < a._tag < SUM and CONST < b._tag < SUM:
        return multiply_monos(a, b)
    if not b._monos:
        return scale(a, b._constant)
    if not a._monos:
        return scale(b, a._constant)
    if len(a._monos) == 1 == len(b._monos) and not a._constant and not b._constant:
        m = multiply_monos(a._monos[0], b._monos[0])
        c = a._coeffs[0] * b._coeffs[0]
        return m if c == 1 else make_sum((m,), (c,), 0, m._has_mod)
    terms: dict[Expr, int] = {}
    for ma, ca in zip(a._monos, a._coeffs):
        for mb, cb in zip(b._monos, b._coeffs):
            m = multiply_monos(ma, mb)
            terms[m] = terms.get(m, 0) + ca * cb
    if b._constant:
        for m, c in zip(a._monos, a._coeffs):
            terms[m] = terms.get(m, 0) + c * b._constant
    if a._constant:
        for m, c in zip(b._monos, b._coeffs):
            terms[m] = terms.get(m, 0) + c * a._constant
    return from_terms(terms, a._constant * b._constant)


def total(xs: Iterable[Expr | int]) -> Expr:
    """The sum; of nothing: 0."""
    terms: dict[Expr, int] = {}
    constant = 0
    for x in xs:
        constant += x if type(x) is int else accumulate(terms, as_expr(x), 1)
    return from_terms(terms, constant)


def product(xs: Iterable[Expr | int]) -> Expr:
    """The product; of nothing: 1."""
    result = ONE
    for x in xs:
        result = multiply(result, as_expr(x))
    return result


def _subtract_from(b: Expr, a: Expr | int) -> Expr:
    return subtract(as_expr(a), b)


Expr.__add__ = Expr.__radd__ = add
Expr.__sub__ = subtract
Expr.__rsub__ = _subtract_from
Expr.__mul__ = Expr.__rmul__ = multiply
