"""Floor division and modulo, simplified. Every rule holds for negative operands too, or is gated on bounds.

Canonical directions: `(x % (a*b)) // a` becomes `(x // a) % b`; `(x // a) // b` becomes `x // (a*b)`;
constants inside lie in `0..d-1`; coefficients inside are smaller than d in magnitude; constant divisors are
positive. `recombine` puts quotient and remainder together again: `d*(x//d) + x%d` is `x`, also as part of a
larger sum. `symbolic_division.py` has the rules of other divisors.
"""

from __future__ import annotations

from math import gcd

from coilwork_ir.index.expression import (
    CONST,
    FLOORDIV,
    MOD,
    PRODUCT,
    RULES,
    SYMBOL,
    ZERO,
    Expr,
    IndexArithmeticError,
    accumulate,
    add,
    add_int,
    as_expr,
    const,
    finish,
    list_atoms,
    make_atom,
    make_monomial,
    make_sum,
    multiply,
    scale,
    subtract,
    sum_terms,
)
from coilwork_ir.index.interval import find_limits, sum_limits
from coilwork_ir.index.proofs import provably_positive
from coilwork_ir.index.symbolic_division import floordiv_symbolic, mod_symbolic
from coilwork_ir.intern_table import MemoTable

# ---- Division by constants ----


_QUOTIENTS: MemoTable[tuple[Expr, Expr], Expr] = MemoTable(1 << 12)
_REMAINDERS: MemoTable[tuple[Expr, Expr], Expr] = MemoTable(1 << 12)


def floordiv(a: Expr | int, b: Expr | int) -> Expr:
    """`a // b`, rounded down. Raises IndexArithmeticError when `b` is the constant 0."""
    if type(a) is not Expr:
        a = as_expr(a)
    if type(b) is not Expr:
        b = as_expr(b)
    key = (a, b)
    known = _QUOTIENTS.get(key)
    if known is not None:
        return known
    if b._monos:
        result = floordiv_symbolic(a, b)
    else:
        result = _floordiv_int(a, b)
    return _QUOTIENTS.put(key, result)


def mod(a: Expr | int, b: Expr | int) -> Expr:
    """`a % b`, with the sign of `b`. Raises IndexArithmeticError when `b` is the constant 0."""
    if type(a) is not Expr:
        a = as_expr(a)
    if type(b) is not Expr:
        b = as_expr(b)
    key = (a, b)
    known = _REMAINDERS.get(key)
    if known is not None:
        return known
    if b._monos:
        result = mod_symbolic(a, b)
    else:
        result = _mod_int(a, b)
    return _REMAINDERS.put(key, result)


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """`a / b`, rounded up. Raises IndexArithmeticError when `b` is the constant 0."""
    return scale(floordiv(scale(as_expr(a), -1), b), -1)


def _floordiv_int(a: Expr, divisor: Expr) -> Expr:
    d = divisor._constant
    if d <= 0:
        if d == 0:
            raise IndexArithmeticError(f"division by zero: ({a!r}) // 0")
        return floordiv(scale(a, -1), const(-d))
    if d == 1:
        return a
    monos, coeffs, constant = a._monos, a._coeffs, a._constant
    if not monos:
        return const(constant // d)
    for c in coeffs:
        if c >= d or c <= -d:
            return _take_out_multiples(a, divisor, d)
    if constant >= d or constant < 0:
        return add_int(floordiv(make_sum(monos, coeffs, constant % d, a._has_mod), divisor), constant // d)
    lo, hi = find_limits(a)
    if lo is not None and hi is not None and lo // d == hi // d:
        return const(lo // d)
    g = gcd(d, *coeffs)
    if g > 1:
        return floordiv(_divide_exactly(a, g), const(d // g))
    if len(monos) == 1 and coeffs[0] == 1:
        return _floordiv_of_mono(a, divisor, d)
    reduced = _split_small(a, d)
    if reduced is not None:
        return floordiv(reduced[1], const(d // reduced[0]))
    merged = _merge_quotient(a, d)
    return make_atom(FLOORDIV, (a, divisor)) if merged is None else merged


def _mod_int(a: Expr, divisor: Expr) -> Expr:
    d = divisor._constant
    if d <= 0:
        if d == 0:
            raise IndexArithmeticError(f"division by zero: ({a!r}) % 0")
        return scale(mod(scale(a, -1), const(-d)), -1)
    if d == 1:
        return ZERO
    monos, coeffs, constant = a._monos, a._coeffs, a._constant
    if not monos:
        return const(constant % d)
    for c in coeffs:
        if c >= d or c <= -d:
            return mod(_remainders(a, d), divisor)
    if constant >= d or constant < 0:
        return mod(make_sum(monos, coeffs, constant % d, a._has_mod), divisor)
    lo, hi = find_limits(a)
    if lo is not None and hi is not None and lo // d == hi // d:
        return add_int(a, -(lo // d) * d)
    if a._has_mod:
        simpler = _drop_inner_mods(a, d)
        if simpler is not a:
            return mod(simpler, divisor)
    g = gcd(d, *coeffs)
    if g > 1:
        return add_int(scale(mod(_divide_exactly(a, g), const(d // g)), g), constant % g)
    if len(monos) > 1 or constant:
        reduced = _split_small(a, d)
        if reduced is not None:
            g, high, low = reduced
            return add(scale(mod(high, const(d // g)), g), low)
    for m in monos:
        if m._tag == FLOORDIV:
            # What proves a number for the quotient (merging quotients sees more) settles the remainder as
            # well.
            whole = floordiv(a, divisor)
            return make_atom(MOD, (a, divisor)) if whole._monos else add_int(a, -whole._constant * d)
    return make_atom(MOD, (a, divisor))


def _take_out_multiples(a: Expr, divisor: Expr, d: int) -> Expr:
    """Coefficients are split as `q*d + r`, r with the sign of the coefficient, so that `-x` stays `-x`."""
    monos: list[Expr] = []
    quotients: list[int] = []
    has_mod = False
    for m, c in zip(a._monos, a._coeffs):
        q = c // d if c > 0 else -(-c // d)
        if q:
            monos.append(m)
            quotients.append(q)
            has_mod = has_mod or m._has_mod
    rest = _remainders(a, d)
    taken = finish(tuple(monos), tuple(quotients), a._constant // d, has_mod)
    return add(taken, floordiv(rest, divisor)) if rest._monos else taken


def _remainders(a: Expr, d: int) -> Expr:
    monos: list[Expr] = []
    coeffs: list[int] = []
    has_mod = False
    for m, c in zip(a._monos, a._coeffs):
        r = c % d if c > 0 else -(-c % d)
        if r:
            monos.append(m)
            coeffs.append(r)
            has_mod = has_mod or m._has_mod
    return finish(tuple(monos), tuple(coeffs), a._constant % d, has_mod)


def _divide_exactly(a: Expr, g: int) -> Expr:
    """`a // g` where g divides every coefficient (the constant rounds down)."""
    return make_sum(a._monos, tuple([c // g for c in a._coeffs]), a._constant // g, a._has_mod)


def _split_small(a: Expr, d: int) -> tuple[int, Expr, Expr] | None:
    """`(g, high, low)` with `a = g*high + low`, 0 <= low < g, and g > 1 a divisor of d; None if there are
    none.

    Then `a // d = high // (d/g)` and `a % d = g*(high % (d/g)) + low`.
    """
    divisors = {gcd(c, d) for c in a._coeffs}
    divisors.discard(1)
    for g in sorted(divisors, reverse=True):
        low_monos: list[Expr] = []
        low_coeffs: list[int] = []
        high: dict[Expr, int] = {}
        for m, c in zip(a._monos, a._coeffs):
            if c % g:
                low_monos.append(m)
                low_coeffs.append(c)
            else:
                high[m] = c // g
        lo, hi = sum_limits(tuple(low_monos), tuple(low_coeffs), a._constant)
        if lo is None or hi is None or lo // g != hi // g:
            continue
        shift = lo // g
        low = sum_terms(dict(zip(low_monos, low_coeffs)), a._constant - shift * g)
        return g, sum_terms(high, shift), low
    return None


def _floordiv_of_mono(a: Expr, divisor: Expr, d: int) -> Expr:
    """`(mono + constant) // d`."""
    mono = a._monos[0]
    if mono._tag == FLOORDIV:
        merged = _merge_quotient(a, d)
        if merged is not None:
            return merged
    elif mono._tag == MOD and a._constant == 0:
        num, den = mono._args
        if den._tag == CONST and den._constant % d == 0:
            return mod(floordiv(num, divisor), const(den._constant // d))
    return make_atom(FLOORDIV, (a, divisor))


def _merge_quotient(a: Expr, d: int) -> Expr | None:
    """`(x//b + rest) // d` is `(x + b*rest) // (b*d)`; applied when exactly one term is such a quotient."""
    quotient: Expr | None = None
    for m, c in zip(a._monos, a._coeffs):
        if c == 1 and m._tag == FLOORDIV and m._args[1]._tag == CONST:
            if quotient is not None:
                return None
            quotient = m
    if quotient is None:
        return None
    num, den = quotient._args
    b = den._constant
    return floordiv(add(num, scale(add(a, scale(quotient, -1)), b)), const(b * d))


def _drop_inner_mods(a: Expr, d: int) -> Expr:
    """Modulo d, a term `c * m * (x % n)` is `c * m * x` whenever d divides `c*n`."""
    terms: dict[Expr, int] = {}
    constant = a._constant
    changed = False
    for mono, c in zip(a._monos, a._coeffs):
        if mono._has_mod:
            factors = list_atoms(mono)
            for i, atom in enumerate(factors):
                if atom._tag == MOD and atom._args[1]._tag == CONST and c * atom._args[1]._constant % d == 0:
                    others = make_monomial(factors[:i] + factors[i + 1 :])
                    constant += accumulate(terms, multiply(others, atom._args[0]), c)
                    changed = True
                    break
            else:
                terms[mono] = terms.get(mono, 0) + c
        else:
            terms[mono] = terms.get(mono, 0) + c
    return sum_terms(terms, constant) if changed else a


def _floordiv_of(b: Expr, a: Expr | int) -> Expr:
    return floordiv(a, b)


def _mod_of(b: Expr, a: Expr | int) -> Expr:
    return mod(a, b)


RULES.floordiv = Expr.__floordiv__ = floordiv
RULES.mod = Expr.__mod__ = mod
Expr.__rfloordiv__ = _floordiv_of
Expr.__rmod__ = _mod_of


# ---- Recombination ----


def recombine(monos: tuple[Expr, ...], coeffs: tuple[int, ...], constant: int) -> Expr:
    """Return the sum of these terms (canonical order, at least two) with every pair of matching terms
    replaced.

    c*m*d*(x//d)     + c*m*(x%d)  becomes  c*m*x
    c*m*d*((x//d)%k) + c*m*(x%d)  becomes  c*m*(x % (d*k)), for d, k > 0
    """
    terms = dict(zip(monos, coeffs))
    for mono, coeff in zip(monos, coeffs):
        if not mono._has_mod:
            continue
        factors = list_atoms(mono)
        for i, atom in enumerate(factors):
            if atom._tag != MOD:
                continue
            rest = factors[:i] + factors[i + 1 :]
            others = make_monomial(rest)
            replacement = (
                _undo_division(terms, atom, others, coeff) if _may_be_whole(terms, atom, rest) else None
            )
            if replacement is None:
                replacement = _partial(terms, atom, others, coeff)
            if replacement is not None:
                del terms[mono]
                constant += accumulate(terms, replacement, 1)
                return sum_terms(terms, constant)
    return make_sum(monos, coeffs, constant, True)


def _undo_division(terms: dict[Expr, int], remainder: Expr, others: Expr, coeff: int) -> Expr | None:
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
    candidates = _list_remainders(terms)
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


def _list_remainders(terms: dict[Expr, int]) -> list[Expr]:
    """Return the remainders among the factors of `terms`."""
    remainders = [atom for mono in terms if mono._has_mod for atom in list_atoms(mono) if atom._tag == MOD]
    return list(dict.fromkeys(remainders))


def _may_be_whole(terms: dict[Expr, int], remainder: Expr, others: tuple[Expr, ...]) -> bool:
    """Tell if a term may have the factors `others` and x//d; if not, `_undo_division` makes no products."""
    num, den = remainder._args
    quotient = floordiv(num, den)
    if not SYMBOL <= quotient._tag < PRODUCT:
        return True
    for term in terms:
        factors = list_atoms(term)
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
