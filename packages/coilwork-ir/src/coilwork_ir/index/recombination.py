"""Putting quotient and remainder together again: `d*(x//d) + x%d` is `x`, also as part of a larger sum."""

from __future__ import annotations

from coilwork_ir.index.division import floordiv, mod
from coilwork_ir.index.expression import (
    MOD,
    PRODUCT,
    RULES,
    SYMBOL,
    Expr,
    accumulate,
    add,
    atoms_of,
    from_terms,
    make_sum,
    mono_from_atoms,
    multiply,
    scale,
    subtract,
)
from coilwork_ir.index.proofs import provably_positive


def recombine(monos: tuple[Expr, ...], coeffs: tuple[int, ...], constant: int) -> Expr:
    """The sum of these terms (canonical order, at least two) with every pair of matching terms replaced.

    c*m*d*(x//d)     + c*m*(x%d)  becomes  c*m*x
    c*m*d*((x//d)%k) + c*m*(x%d)  becomes  c*m*(x % (d*k)), for d, k > 0
    """
    terms = dict(zip(monos, coeffs))
    for mono, coeff in zip(monos, coeffs):
        if not mono._has_mod:
            continue
        factors = atoms_of(mono)
        for i, atom in enumerate(factors):
            if atom._tag != MOD:
                continue
            rest = factors[:i] + factors[i + 1 :]
            others = mono_from_atoms(rest)
            replacement = _whole(terms, atom, others, coeff) if _may_be_whole(terms, atom, rest) else None
            if replacement is None:
                replacement = _partial(terms, atom, others, coeff)
            if replacement is not None:
                del terms[mono]
                constant += accumulate(terms, replacement, 1)
                return from_terms(terms, constant)
    return make_sum(monos, coeffs, constant, True)


def _whole(terms: dict[Expr, int], remainder: Expr, others: Expr, coeff: int) -> Expr | None:
    """`coeff*others*x` when the terms of `coeff*others*d*(x//d)` are all there; they are removed."""
    num, den = remainder._args
    partner = multiply(floordiv(num, den), others)
    factor = coeff
    if den._monos:
        partner = multiply(partner, den)
    else:
        factor = coeff * den._constant
    if not partner._monos or partner._constant:
        return None
    for m, c in zip(partner._monos, partner._coeffs):
        if terms.get(m) != c * factor:
            return None
    for m in partner._monos:
        del terms[m]
    return scale(multiply(num, others), coeff)


def _partial(terms: dict[Expr, int], remainder: Expr, others: Expr, coeff: int) -> Expr | None:
    """`coeff*others*(x % (d*k))` when the terms of `coeff*others*d*(p % k)` with x//d in p are all there;
    they are removed.
    """
    candidates = _remainders(terms)
    if len(candidates) == 1:
        return None
    num, den = remainder._args
    quotient = floordiv(num, den)
    for atom in candidates:
        high, count = atom._args
        if quotient is not high and not _has_term(high, quotient):
            continue
        partner = multiply(multiply(others, den), atom)
        if any(terms.get(m) != c * coeff for m, c in zip(partner._monos, partner._coeffs)):
            continue
        if not (provably_positive(den) and provably_positive(count)):
            continue
        merged = add(multiply(den, subtract(high, quotient)), num)
        for m in partner._monos:
            del terms[m]
        return scale(multiply(others, mod(merged, multiply(den, count))), coeff)
    return None


def _remainders(terms: dict[Expr, int]) -> list[Expr]:
    """The remainders among the factors of `terms`."""
    found = [atom for mono in terms if mono._has_mod for atom in atoms_of(mono) if atom._tag == MOD]
    return list(dict.fromkeys(found))


def _may_be_whole(terms: dict[Expr, int], remainder: Expr, others: tuple[Expr, ...]) -> bool:
    """False if no term has the factors `others` and x//d: then `_whole` need not make products that are not
    there.
    """
    num, den = remainder._args
    quotient = floordiv(num, den)
    if not SYMBOL <= quotient._tag < PRODUCT:
        return True
    for term in terms:
        factors = atoms_of(term)
        if quotient in factors:
            for other in others:
                if other not in factors:
                    break
            else:
                return True
    return False


def _has_term(e: Expr, mono: Expr) -> bool:
    for m, c in zip(e._monos, e._coeffs):
        if m is mono:
            return c == 1
    return False


RULES.recombine = recombine
