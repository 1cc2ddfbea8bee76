"""Replacing symbols by expressions, and by numbers."""

from __future__ import annotations

from collections.abc import Mapping

from coilwork_ir.index.division import floordiv, mod
from coilwork_ir.index.errors import IndexArithmeticError
from coilwork_ir.index.expression import (
    FLOORDIV,
    MIN,
    MOD,
    ONE,
    PRODUCT,
    SYMBOL,
    Expr,
    as_expr,
)
from coilwork_ir.index.extrema import maximum, minimum
from coilwork_ir.index.ring import accumulate, from_terms, multiply, scale


def substitute(e: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """`e` with every symbol in `mapping` replaced, all at once, and simplified again.

    Extents of the symbols that stay are not rewritten. Raises IndexArithmeticError when a division becomes one by
    the constant zero.
    """
    if not mapping or e.free_symbols.isdisjoint(mapping):
        return e
    return _substitute(e, mapping, {})


def _substitute(e: Expr, mapping: Mapping[Expr, Expr], done: dict[Expr, Expr]) -> Expr:
    """`e` must contain a mapped symbol."""
    monos = e._monos
    if len(monos) == 1:
        result = _substitute_mono(monos[0], mapping, done)
        if e is not monos[0]:
            c, n = e._coeffs[0], e._constant
            result = scale(result, c)
            return result + n if n else result
        return result
    terms: dict[Expr, int] = {}
    constant = e._constant
    for m, c in zip(monos, e._coeffs):
        if m not in mapping if m._tag == SYMBOL else m.free_symbols.isdisjoint(mapping):
            terms[m] = terms.get(m, 0) + c
        else:
            new = _substitute_mono(m, mapping, done)
            if new._tag == SYMBOL:
                terms[new] = terms.get(new, 0) + c
            else:
                constant += accumulate(terms, new, c)
    return from_terms(terms, constant)


def _substitute_mono(m: Expr, mapping: Mapping[Expr, Expr], done: dict[Expr, Expr]) -> Expr:
    """`m` must contain a mapped symbol."""
    tag = m._tag
    if tag == SYMBOL:
        return as_expr(mapping[m])
    found = done.get(m)
    if found is not None:
        return found
    if tag == PRODUCT:
        result = ONE
        for atom in m._args:
            if atom._tag == SYMBOL:
                new = mapping.get(atom, atom)
            elif atom.free_symbols.isdisjoint(mapping):
                new = atom
            else:
                new = _substitute_mono(atom, mapping, done)
            result = multiply(result, new)
        return done.setdefault(m, result)
    args = [a if a.free_symbols.isdisjoint(mapping) else _substitute(a, mapping, done) for a in m._args]
    if tag == FLOORDIV:
        result = floordiv(args[0], args[1])
    elif tag == MOD:
        result = mod(args[0], args[1])
    else:
        result = minimum(*args) if tag == MIN else maximum(*args)
    done[m] = result
    return result


def evaluate(e: Expr, env: Mapping[str, int]) -> int:
    """The value of `e` where each symbol has the value that `env` gives its name.

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
