"""Sound proofs of signs and order, and minima and maxima simplified by them. True means proved.

Tried in this order, cheapest first: the numeric interval; positivity of all coefficients once every atom is
shifted to its lower bound (proves `s0*s1 - s0 >= 0` for s0, s1 >= 1); replacing range symbols, modulos and
quotients by their extremes, which may be symbolic (proves `i0*s1 + i1 < s0*s1`), and a minimum or maximum by
its operands.
"""

from __future__ import annotations

from coilwork_ir.index.expression import (
    CONST,
    FLOORDIV,
    MAX,
    MIN,
    MOD,
    ONE,
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
    list_atoms,
    make_atom,
    make_monomial,
    multiply,
    scale,
    subtract,
    sum_terms,
)
from coilwork_ir.index.interval import find_limits
from coilwork_ir.intern_table import MemoTable

# ---- Proofs ----


_FUEL = 12  # eliminations per proof: real proofs need about one per range symbol
# Steps of a proof in all, as an elimination may try several atoms and operands at every level. Proofs that
# succeed mostly take few.
_STEPS = 500


class _Work:
    """The number of steps that a proof may still take."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = _STEPS


_LESS: MemoTable[tuple[Expr, Expr], bool] = MemoTable(1 << 12)
_BELOW: MemoTable[tuple[Expr, Expr], bool] = MemoTable(1 << 12)


def provably_nonneg(e: Expr | int) -> bool:
    """Tell if `e >= 0` for all values of its symbols that keep their promises."""
    e = as_expr(e)
    lo, hi = find_limits(e)
    if lo is not None and lo >= 0:
        return True
    if hi is not None and hi < 0:
        return False
    known = e._nonneg
    if known is not None:
        return known
    result = _prove(e, _FUEL, _Work()) or _quotient_nonneg(e)
    e._nonneg = result
    return result


def _quotient_nonneg(e: Expr) -> bool:
    """Tell whether `c*(x//d) + k >= 0`, d > 0: it is just when `x//d >= m` (or `<= m`), hence when `x >=
    d*m`.
    """
    if len(e._monos) != 1 or e._monos[0]._tag != FLOORDIV:
        return False
    c, k = e._coeffs[0], e._constant
    num, den = e._monos[0]._args
    if not provably_positive(den):
        return False
    if c > 0:
        return provably_nonneg(subtract(num, scale(den, -(k // c))))
    return provably_nonneg(add_int(subtract(scale(den, k // -c + 1), num), -1))


def provably_positive(e: Expr | int) -> bool:
    """Tell if `e >= 1`."""
    e = as_expr(e)
    lo = find_limits(e)[0]
    if lo is not None and lo > 0:
        return True
    return bool(e._monos) and provably_nonneg(add_int(e, -1))


def provably_le(a: Expr | int, b: Expr | int) -> bool:
    """Tell if `a <= b`."""
    a, b = as_expr(a), as_expr(b)
    if a is b:
        return True
    top, bottom = find_limits(a)[1], find_limits(b)[0]
    if top is not None and bottom is not None and top <= bottom:
        return True
    return provably_nonneg(subtract(b, a))


def provably_lt(a: Expr | int, b: Expr | int) -> bool:
    """Tell if `a < b`."""
    a, b = as_expr(a), as_expr(b)
    top, bottom = find_limits(a)[1], find_limits(b)[0]
    if top is not None and bottom is not None and top < bottom:
        return True
    key = (a, b)
    known = _LESS.get(key)
    return _LESS.put(key, _prove_lt(a, b)) if known is None else known


def _prove_lt(a: Expr, b: Expr) -> bool:
    if len(a._monos) == 1 and a._coeffs[0] == 1 and a._monos[0]._tag == FLOORDIV:
        # `x//d + k < b` just when `x < d*(b - k)`, d > 0: that keeps x whole.
        num, den = a._monos[0]._args
        if provably_positive(den) and provably_lt(num, multiply(den, add_int(b, -a._constant))):
            return True
        if _independent(a, b):
            return False
    # In sizes only first: that proof is cached, and shared by all range symbols over the same extents.
    most = _upper_of_sum(a)
    if most is not None and most is not a:
        key = (most, b)
        below = _BELOW.get(key)
        if below is None:
            below = _BELOW.put(key, provably_nonneg(add_int(subtract(b, most), -1)))
        if below:
            return True
        if _independent(a, b):
            return False  # the terms reach their extremes together: no other proof can do better
    return provably_nonneg(add_int(subtract(b, a), -1))


def _independent(a: Expr, b: Expr) -> bool:
    """Tell if no two terms of `a` share a symbol, and `a` shares none with `b`."""
    free = a.free_symbols
    if not free.isdisjoint(b.free_symbols):
        return False
    return len(a._monos) == 1 or sum([len(m.free_symbols) for m in a._monos]) == len(free)


def provably_eq(a: Expr | int, b: Expr | int) -> bool:
    """Tell if `a == b`: equal normal forms, also after rewriting every `x % d` as `x - d*(x//d)`."""
    a, b = as_expr(a), as_expr(b)
    if a is b:
        return True
    difference = subtract(a, b)
    if not difference._monos:
        return difference._constant == 0
    lo, hi = find_limits(difference)
    if (lo is not None and lo > 0) or (hi is not None and hi < 0):
        return False
    if _expand_mods(difference) is ZERO:
        return True
    return provably_nonneg(difference) and provably_nonneg(scale(difference, -1))


def provably_divisible(e: Expr | int, d: Expr | int) -> bool:
    """Tell if `d` divides `e`. Raises IndexArithmeticError when `d` is the constant 0."""
    return RULES.mod(as_expr(e), as_expr(d)) is ZERO


def _expand_mods(e: Expr) -> Expr:
    """`e` with every `x % d` that is a factor of a term, or inside a quotient, as `x - d*(x//d)`."""
    terms: dict[Expr, int] = {}
    constant = e._constant
    for mono, coeff in zip(e._monos, e._coeffs):
        factor = ONE
        for atom in list_atoms(mono):
            if atom._tag == MOD:
                num, den = (_expand_mods(x) for x in atom._args)
                atom = subtract(num, multiply(den, RULES.floordiv(num, den)))
            elif atom._tag == FLOORDIV:
                num, den = (_expand_mods(x) for x in atom._args)
                atom = RULES.floordiv(num, den)
            factor = multiply(factor, atom)
        constant += accumulate(terms, factor, coeff)
    return sum_terms(terms, constant)


def _prove(e: Expr, fuel: int, work: _Work) -> bool:
    lo, hi = find_limits(e)
    if lo is not None and lo >= 0:
        return True
    work.steps -= 1
    if (hi is not None and hi < 0) or fuel <= 0 or work.steps < 0:
        return False
    if len(e._monos) < 2 and not _has_symbolic_bound(e):
        return False
    if _positive_after_shift(e):
        return True
    return _prove_by_extremes(e, fuel, work)


def _has_symbolic_bound(e: Expr) -> bool:
    return any(a._tag != SYMBOL or a._data[3] is not None for m in e._monos for a in list_atoms(m))


def _positive_after_shift(e: Expr) -> bool:
    """Write each atom as `lo + t` (or `hi - t`), t >= 0, expand: are all coefficients >= 0?"""
    if len(e._monos) > 32:
        return False
    terms: dict[tuple[Expr, ...], int] = {(): e._constant}
    for mono, coeff in zip(e._monos, e._coeffs):
        expanded: dict[tuple[Expr, ...], int] = {(): coeff}
        for atom in list_atoms(mono):
            lo, hi = find_limits(atom)
            if lo is not None:
                base, sign = lo, 1
            elif hi is not None:
                base, sign = hi, -1
            else:
                return False
            grown: dict[tuple[Expr, ...], int] = {}
            for factors, c in expanded.items():
                # Atoms come in canonical order, so that equal monomials get equal tuples.
                longer = (*factors, atom)
                grown[longer] = grown.get(longer, 0) + c * sign
                if base:
                    grown[factors] = grown.get(factors, 0) + c * base
            expanded = grown
        for factors, c in expanded.items():
            terms[factors] = terms.get(factors, 0) + c
    return all(c >= 0 for c in terms.values())


def _split(e: Expr, atom: Expr) -> tuple[Expr, Expr] | None:
    """`(c, rest)` with `e = c*atom + rest` and `atom` no factor of either's terms; None when not affine in
    it.
    """
    inside: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    constant = 0
    for mono, coeff in zip(e._monos, e._coeffs):
        factors = list_atoms(mono)
        count = factors.count(atom)
        if count == 0:
            rest[mono] = coeff
        elif count > 1:
            return None
        elif len(factors) == 1:
            constant += coeff
        else:
            inside[make_monomial(tuple([f for f in factors if f is not atom]))] = coeff
    return sum_terms(inside, constant), sum_terms(rest, e._constant)


def _prove_by_extremes(e: Expr, fuel: int, work: _Work) -> bool:
    atoms = {a: None for m in e._monos for a in list_atoms(m)}  # a dict: iterates in canonical order
    for atom in atoms:
        if atom._tag == FLOORDIV and provably_positive(atom._args[1]) and _prove_relaxed(e, atom, fuel, work):
            return True
    # Compound atoms first: their operands may mention the symbols.
    for atom in sorted(atoms, key=lambda a: a._tag == SYMBOL):
        parts = _split(e, atom)
        if parts is None:
            continue
        c, rest = parts
        if atom._tag in (MIN, MAX) and _prove_by_operands(c, atom, rest, fuel, work):
            return True
        if _prove(c, fuel - 2, work):
            least = _lower(atom)
            if least is None or least is atom:
                continue
            return _prove(add(rest, multiply(c, least)), fuel - 1, work)
        if _prove(scale(c, -1), fuel - 2, work):
            most = _upper(atom)
            if most is None or most is atom:
                continue
            return _prove(add(rest, multiply(c, most)), fuel - 1, work)
    return False


def _prove_by_operands(c: Expr, extremum: Expr, rest: Expr, fuel: int, work: _Work) -> bool:
    """Tell if `c*extremum + rest >= 0`: a minimum is one of its operands, and no more than each; a maximum no
    less than each.
    """
    if _prove(c, fuel - 2, work):
        each = extremum._tag == MIN
    elif _prove(scale(c, -1), fuel - 2, work):
        each = extremum._tag == MAX
    else:
        return False
    proofs = (_prove(add(rest, multiply(c, operand)), fuel - 2, work) for operand in extremum._args)
    return all(proofs) if each else any(proofs)


def _prove_relaxed(e: Expr, quotient: Expr, fuel: int, work: _Work) -> bool:
    """Uses `x - d + 1 <= d*(x//d) <= x`, which keeps the quotient's relation to the symbols of x."""
    num, den = quotient._args
    parts = _split(e, quotient)
    if parts is None or not num.free_symbols & parts[1].free_symbols:
        return False
    c, rest = parts
    if _prove(scale(c, -1), fuel - 2, work):
        return _prove(add(multiply(c, num), multiply(den, rest)), fuel - 1, work)
    if _prove(c, fuel - 2, work):
        least = add_int(subtract(num, den), 1)
        return _prove(add(multiply(c, least), multiply(den, rest)), fuel - 1, work)
    return False


def _lower(atom: Expr) -> Expr | None:
    """Return an expression never above `atom`, in sizes rather than ranges; None when there is none."""
    if atom._tag == SYMBOL and atom._data[3] is None:
        return atom
    lo = find_limits(atom)[0]
    return None if lo is None else as_expr(lo)


def _upper(atom: Expr) -> Expr | None:
    """Return an expression never below `atom`, in sizes rather than ranges; None when there is none."""
    if atom._tag == SYMBOL:
        extent = atom._data[3]
        return atom if extent is None else add_int(extent, -1)
    num, den = atom._args if atom._tag in (FLOORDIV, MOD) else (ZERO, ZERO)
    if atom._tag == MOD and provably_nonneg(den):
        return add_int(den, -1)
    if atom._tag == FLOORDIV and den._tag == CONST:
        top = _upper_of_sum(num)
        if top is not None and top is not num:
            return RULES.floordiv(top, den)
    hi = find_limits(atom)[1]
    return None if hi is None else as_expr(hi)


def _is_nonneg_by_bounds(e: Expr) -> bool:
    lo = find_limits(e)[0]
    return lo is not None and lo >= 0


def _upper_of_sum(e: Expr) -> Expr | None:
    """Return the sum of the upper bounds of the terms of `e`.

    None unless every term is a number times a bounded atom.
    """
    terms: dict[Expr, int] = {}
    constant = e._constant
    for mono, coeff in zip(e._monos, e._coeffs):
        if mono._tag != PRODUCT:
            bound = _upper(mono) if coeff > 0 else _lower(mono)
        elif all(f._tag == SYMBOL and f._data[3] is None for f in mono._args):
            bound = mono
        elif coeff > 0 and all(_is_nonneg_by_bounds(f) for f in mono._args):
            bound = ONE
            for factor in mono._args:
                top = _upper(factor)
                bound = None if bound is None or top is None else multiply(bound, top)
        else:
            bound = None
        if bound is None:
            return None
        constant += accumulate(terms, bound, coeff)
    return sum_terms(terms, constant)


# ---- Minimum and maximum ----


def minimum(*xs: Expr | int) -> Expr:
    """Return the least of `xs`. Raises IndexArithmeticError when there are none."""
    return _extremum(MIN, xs)


def maximum(*xs: Expr | int) -> Expr:
    """Return the greatest of `xs`. Raises IndexArithmeticError when there are none."""
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
