"""Floor division and modulo by a divisor that is not a constant.

Nothing but the trivial is rewritten unless the divisor is provably not negative (or is: then both signs
flip). A divisor that may be 0, as a size that data decides, counts as positive: divided by 0 there is no
value that has to be kept.
"""

from __future__ import annotations

from math import gcd

from coilwork_ir.index.expression import (
    FLOORDIV,
    MINUS_ONE,
    MOD,
    PRODUCT,
    RULES,
    ZERO,
    Expr,
    accumulate,
    add,
    list_atoms,
    make_atom,
    make_monomial,
    make_sum,
    multiply,
    scale,
    subtract,
    sum_terms,
)
from coilwork_ir.index.interval import find_limits
from coilwork_ir.index.proofs import provably_lt, provably_nonneg


def floordiv_symbolic(a: Expr, b: Expr) -> Expr:
    """`a // b` for a divisor with symbols."""
    if not provably_nonneg(b):
        hi = find_limits(b)[1]
        if hi is not None and hi < 0:
            return RULES.floordiv(scale(a, -1), scale(b, -1))
        return make_atom(FLOORDIV, (a, b))
    if find_limits(b)[1] == 1:
        return a
    if a is ZERO:
        return ZERO
    quotient, rest = _divide(a, b)
    if quotient is not ZERO:
        return add(quotient, RULES.floordiv(rest, b)) if rest is not ZERO else quotient
    if provably_nonneg(a):
        if provably_lt(a, b):
            return ZERO
    elif find_limits(a)[1] is not None and provably_lt(a, ZERO) and provably_nonneg(add(a, b)):
        return MINUS_ONE
    factored = _common_factor(a, b)
    if factored is not None:
        return RULES.floordiv(factored[1], factored[2])
    flat = _flatten(a, b)
    return make_atom(FLOORDIV, (a, b)) if flat is None else flat


def mod_symbolic(a: Expr, b: Expr) -> Expr:
    """`a % b` for a divisor with symbols."""
    if not provably_nonneg(b):
        hi = find_limits(b)[1]
        if hi is not None and hi < 0:
            return scale(RULES.mod(scale(a, -1), scale(b, -1)), -1)
        return make_atom(MOD, (a, b))
    if a is ZERO or find_limits(b)[1] == 1:
        return ZERO
    quotient, rest = _divide(a, b)
    if quotient is not ZERO:
        return RULES.mod(rest, b)
    if a._tag == FLOORDIV or a._tag == MOD:
        # What proves a number for the quotient settles the remainder as well; flattening sees more than this
        # does.
        whole = RULES.floordiv(a, b)
        if not whole._monos:
            return subtract(a, scale(b, whole._constant))
    elif provably_nonneg(a):
        if provably_lt(a, b):
            return a
    elif find_limits(a)[1] is not None and provably_lt(a, ZERO) and provably_nonneg(add(a, b)):
        return add(a, b)
    if a._has_mod:
        simpler = _drop_inner_mods(a, b)
        if simpler is not a:
            return RULES.mod(simpler, b)
    factored = _common_factor(a, b)
    if factored is not None:
        factor, high, divisor, low = factored
        return add(multiply(factor, RULES.mod(high, divisor)), low)
    return make_atom(MOD, (a, b))


def find_exact_quotient(a: Expr, b: Expr) -> Expr | None:
    """`a / b` when b divides a as a polynomial; b not zero."""
    if not b._monos:
        d = b._constant
        if a._constant % d or any(c % d for c in a._coeffs):
            return None
        return make_sum(a._monos, tuple([c // d for c in a._coeffs]), a._constant // d, a._has_mod)
    quotient, rest = _divide(a, b)
    return quotient if rest is ZERO else None


def _divide(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`(q, r)` with `a = q*b + r`: long division by the leading term of b, kept only when it shortens a.

    The canonical order of monomials is the graded lexicographic one, so that every step removes a leading
    term.
    """
    lead, lead_coeff = b._monos[0], b._coeffs[0]
    lead_atoms = list_atoms(lead)
    single = len(b._monos) == 1 and b._constant == 0
    quotient: dict[Expr, int] = {}
    constant = 0
    rest = a
    progress = True
    while progress:
        progress = False
        for mono, coeff in zip(rest._monos, rest._coeffs):
            # Coefficients shrink towards zero; that of the divisor's own monomial, which is the constant term
            # of the division, becomes 0..lead_coeff-1, so that equal remainders look alike.
            down = coeff * lead_coeff > 0 or (single and mono is lead)
            q = coeff // lead_coeff if down else -(-coeff // lead_coeff)
            if q == 0:
                continue
            others = _drop_factors(mono, lead_atoms)
            if others is None:
                continue
            term = scale(others, q)
            constant += accumulate(quotient, term, 1)
            rest = subtract(rest, multiply(term, b))
            progress = len(rest._monos) <= len(a._monos)
            break
    if not quotient and not constant:
        return ZERO, a
    if not single and (len(rest._monos) >= len(a._monos)):
        return ZERO, a
    return sum_terms(quotient, constant), rest


def _drop_factors(mono: Expr, factors: tuple[Expr, ...]) -> Expr | None:
    """`mono` divided by the product of `factors`; None if it isn't divisible."""
    atoms = list_atoms(mono)
    if factors[0] not in atoms:
        return None
    left = list(atoms)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return make_monomial(tuple(left))


def _common_factor(a: Expr, b: Expr) -> tuple[Expr, Expr, Expr, Expr] | None:
    """`(f, high, divisor, low)` with `a = f*high + low`, `b = f*divisor`, 0 <= low < f, f > 1; None if there
    are none.

    Then `a // b = high // divisor` and `a % b = f*(high % divisor) + low`.
    """
    content = gcd(*b._coeffs, b._constant)
    if content > 1:
        split = _split_by(a, b, ZERO, content)
        if split is not None:
            return split
    if b._constant:
        return None
    for atom in dict.fromkeys(list_atoms(b._monos[0])):
        if not _may_split(a, atom):
            continue
        everywhere = len(b._monos) == 1 or all(atom in list_atoms(m) for m in b._monos)
        if everywhere and provably_nonneg(atom):
            split = _split_by(a, b, atom, 1)
            if split is not None:
                return split
    return None


def _may_split(a: Expr, atom: Expr) -> bool:
    """Tell if some term of `a` has the factor `atom`."""
    return any(mono is atom or (mono._tag == PRODUCT and atom in mono._args) for mono in a._monos)


def _split_by(a: Expr, b: Expr, atom: Expr, content: int) -> tuple[Expr, Expr, Expr, Expr] | None:
    high: dict[Expr, int] = {}
    low: dict[Expr, int] = {}
    high_constant, low_constant = 0, a._constant
    if content > 1:
        factor = make_sum((), (), content, False)
        high_constant, low_constant = divmod(a._constant, content)
        for mono, coeff in zip(a._monos, a._coeffs):
            if coeff % content:
                low[mono] = coeff
            else:
                high[mono] = coeff // content
    else:
        factor = atom
        for mono, coeff in zip(a._monos, a._coeffs):
            others = _drop_factors(mono, (atom,))
            if others is None:
                low[mono] = coeff
            else:
                high_constant += accumulate(high, others, coeff)
    if not high and not high_constant:
        return None
    rest = sum_terms(low, low_constant)
    if not (provably_nonneg(rest) and provably_lt(rest, factor)):
        return None
    divisor = find_exact_quotient(b, factor)
    return None if divisor is None else (factor, sum_terms(high, high_constant), divisor, rest)


def _flatten(a: Expr, b: Expr) -> Expr | None:
    """`(x//c) // b` is `x // (c*b)`; `(x % (b*c)) // b` is `(x//b) % c`; b and c positive."""
    if a._tag == FLOORDIV and provably_nonneg(a._args[1]):
        return RULES.floordiv(a._args[0], multiply(a._args[1], b))
    if a._tag == MOD:
        c = find_exact_quotient(a._args[1], b)
        if c is not None and provably_nonneg(c):
            return RULES.mod(RULES.floordiv(a._args[0], b), c)
    return None


def _drop_inner_mods(a: Expr, b: Expr) -> Expr:
    """Modulo b, a term `c * m * (x % n)` is `c * m * x` whenever b divides `c * m * n`."""
    terms: dict[Expr, int] = {}
    constant = a._constant
    changed = False
    for mono, coeff in zip(a._monos, a._coeffs):
        replaced: Expr | None = None
        if mono._has_mod:
            factors = list_atoms(mono)
            for i, atom in enumerate(factors):
                if atom._tag != MOD:
                    continue
                others = make_monomial(factors[:i] + factors[i + 1 :])
                if find_exact_quotient(scale(multiply(others, atom._args[1]), coeff), b) is not None:
                    replaced = multiply(others, atom._args[0])
                    break
        if replaced is None:
            terms[mono] = terms.get(mono, 0) + coeff
        else:
            constant += accumulate(terms, replaced, coeff)
            changed = True
    return sum_terms(terms, constant) if changed else a
