"""Replace symbols by expressions or numbers, and read off how an index moves as a symbol moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coilwork_ir.index.division import floordiv, mod
from coilwork_ir.index.expression import (
    FLOORDIV,
    MIN,
    MOD,
    ONE,
    PRODUCT,
    SYMBOL,
    ZERO,
    Expr,
    IndexArithmeticError,
    accumulate,
    add,
    add_int,
    const,
    list_atoms,
    make_monomial,
    multiply,
    scale,
    subtract,
    sum_terms,
)
from coilwork_ir.index.proofs import maximum, minimum

# ---- Substitution ----


def substitute(e: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """`e` with every symbol in `mapping` replaced, all at once, and simplified again.

    Extents of the symbols that stay are not rewritten. Raises IndexArithmeticError when a division becomes
    one by the constant zero.
    """
    return _substitute(e, mapping, {}) if mapping else e


def _substitute(e: Expr, mapping: Mapping[Expr, Expr], done: dict[Expr, Expr]) -> Expr:
    monos = e._monos
    if len(monos) == 1:
        m = monos[0]
        new = _substitute_mono(m, mapping, done)
        if e is m:
            return new
        return e if new is m else add_int(scale(new, e._coeffs[0]), e._constant)
    terms: dict[Expr, int] = {}
    constant = e._constant
    for m, c in zip(monos, e._coeffs):
        new = mapping.get(m, m) if m._tag == SYMBOL else _substitute_mono(m, mapping, done)
        if new._tag == SYMBOL:
            terms[new] = terms.get(new, 0) + c
        else:
            constant += accumulate(terms, new, c)
    return sum_terms(terms, constant)


def _substitute_mono(m: Expr, mapping: Mapping[Expr, Expr], done: dict[Expr, Expr]) -> Expr:
    tag = m._tag
    if tag == SYMBOL:
        return mapping.get(m, m)
    if tag == PRODUCT:
        result = ONE
        for atom in m._args:
            new = mapping.get(atom, atom) if atom._tag == SYMBOL else _substitute_mono(atom, mapping, done)
            result = new if result is ONE else multiply(result, new)
        return result
    known = done.get(m)
    if known is not None:
        return known
    if m.free_symbols.isdisjoint(mapping):
        return m
    args = [_substitute(a, mapping, done) for a in m._args]
    if tag == FLOORDIV:
        result = floordiv(args[0], args[1])
    elif tag == MOD:
        result = mod(args[0], args[1])
    else:
        result = minimum(*args) if tag == MIN else maximum(*args)
    done[m] = result
    return result


def evaluate(e: Expr, env: Mapping[str, int]) -> int:
    """Return the value of `e` where each symbol has the value that `env` gives its name.

    Raises IndexArithmeticError for a name that is missing and for a division by zero.
    """
    return _evaluate(e, env, {})


def _evaluate(e: Expr, env: Mapping[str, int], done: dict[Expr, int]) -> int:
    result = e._constant
    for m, c in zip(e._monos, e._coeffs):
        value = done.get(m)
        if value is None:
            value = done[m] = _evaluate_mono(m, env, done)
        result += c * value
    return result


def _evaluate_mono(m: Expr, env: Mapping[str, int], done: dict[Expr, int]) -> int:
    tag = m._tag
    if tag == SYMBOL:
        try:
            return env[m._data[0]]
        except KeyError:
            raise IndexArithmeticError(f"no value for symbol {m._data[0]!r}") from None
    values = [_evaluate(a, env, done) for a in m._args]
    if tag == PRODUCT:
        result = 1
        for v in values:
            result *= v
        return result
    if tag in (FLOORDIV, MOD):
        if values[1] == 0:
            raise IndexArithmeticError(f"division by zero in {m!r}")
        return values[0] // values[1] if tag == FLOORDIV else values[0] % values[1]
    return min(values) if tag == MIN else max(values)


# ---- Strides ----


def find_coefficients(e: Expr, symbols: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr] | None:
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
        for f in list_atoms(m):
            place = position.get(f)
            if place is None:
                if f._tag != SYMBOL and not f.free_symbols.isdisjoint(position):
                    return None
                outside.append(f)
            elif at is None:
                at = place
            else:
                return None
        if at is None:
            rest[m] = c
        else:
            accumulate(symbolic.setdefault(at, {}), make_monomial(tuple(outside)), c)
    for at, terms in symbolic.items():
        strides[at] = sum_terms(terms, strides[at]._constant)
    return tuple(strides), sum_terms(rest, e._constant) if rest else const(e._constant)


def find_stride(e: Expr, sym: Expr) -> Expr | None:
    """`e` at `sym + 1` minus `e` at `sym`, if that does not depend on `sym`; else None."""
    if sym not in e.free_symbols:
        return ZERO
    affine = find_coefficients(e, (sym,))
    if affine is not None:
        return affine[0][0]
    difference = subtract(substitute(e, {sym: add(sym, ONE)}), e)
    return None if sym in difference.free_symbols else difference


def find_run_stride(e: Expr, sym: Expr, run: int = 8) -> Expr | None:
    """Return the step of `e` per step of `sym` within runs of at least `run` values, or None.

    `x % 32` moves by 1 within runs of 32 values, and `x // 32` by 0: an image's channels beside images that
    share a range with them. What holds for all values is the stride that `find_stride` finds.
    """
    step = find_stride(e, sym)
    if step is not None:
        return step
    terms, constant = dict[Expr, int](), e._constant
    for m, c in zip(e._monos, e._coeffs):
        new = ONE if m._tag == PRODUCT else m
        for atom in m._args if m._tag == PRODUCT else ():
            new = multiply(new, _follow_run(atom, sym, run))
        constant += accumulate(terms, _follow_run(new, sym, run) if new is m else new, c)
    return find_stride(sum_terms(terms, constant), sym)


def _follow_run(atom: Expr, sym: Expr, run: int) -> Expr:
    """Return a quotient or remainder by a constant as it is between two multiples of its divisor, along
    `sym`.
    """
    if atom._tag not in (FLOORDIV, MOD) or sym not in atom.free_symbols:
        return atom
    divided, divisor = atom._args
    if not divisor.is_const or divisor._constant < run or find_stride(divided, sym) is not ONE:
        return atom
    return divided if atom._tag == MOD else substitute(atom, {sym: ZERO})
