"""Sizes of which torch knows what they are divisible by: `x.unflatten(0, (3, -1))` demands that of the first
size of `x`.

The index arithmetic has no facts besides bounds. A size that is a multiple of 3 is therefore written as
`3*(s//3)` wherever it occurs: then it equals the product of the sizes that it is cut into by its form alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import TYPE_CHECKING

from coilwork_ir.index import Expr, symbol

if TYPE_CHECKING:
    import sympy

# Each step of joining two facts tries as many remainders as the modulus is large.
LARGEST_MODULUS = 1 << 16


def residue(name: sympy.Symbol, multiples: Iterable[tuple[sympy.Basic, sympy.Basic]]) -> tuple[int, int]:
    """`(m, r)`, such that the value of `name` is `r` modulo `m`, `0 <= r < m`; `(1, 0)` if nothing is known.

    `multiples` are pairs of an expression and what divides it; those that are not linear in `name` alone say
    nothing.
    """
    modulus, remainder = 1, 0
    for base, divisor in multiples:
        found = _solve_residue(name, base, divisor)
        if found is None or modulus * found[0] > LARGEST_MODULUS:
            continue
        fitting = (
            value for value in range(remainder, modulus * found[0], modulus) if value % found[0] == found[1]
        )
        value = next(fitting, None)
        if value is not None:
            modulus = modulus * found[0] // gcd(modulus, found[0])
            remainder = value % modulus
    return modulus, remainder


def _solve_residue(name: sympy.Symbol, base: sympy.Basic, divisor: sympy.Basic) -> tuple[int, int] | None:
    """The residue of `name` for which `base`, `factor * name + rest`, is a multiple of `divisor`."""
    if base.free_symbols != {name} or not divisor.is_Integer or not 1 < int(divisor) <= LARGEST_MODULUS:
        return None
    # what is rounded, `n // (n // 3)`, may have no value at the numbers below
    if not base.is_polynomial(name):
        return None
    rest = base.xreplace({name: name * 0})
    factor = base.xreplace({name: name**0}) - rest
    if not (rest.is_Integer and factor.is_Integer) or (factor * name + rest - base).expand() != 0:
        return None
    m, a, b = int(divisor), int(factor), int(rest)
    common = gcd(a, m)
    if b % common:
        return None
    m, a, b = m // common, a // common, b // common
    return (m, -b * pow(a, -1, m) % m) if m > 1 else None


def make_bounded_symbol(name: str, lo: int | None, hi: int | None, modulus: int, remainder: int) -> Expr:
    """The symbol `name` in `lo..hi`, the bounds moved to the nearest numbers that it can be."""
    low = None if lo is None else lo + (remainder - lo) % modulus
    high = None if hi is None else hi - (hi - remainder) % modulus
    return symbol(name, lo=lo, hi=hi) if _is_empty(low, high) else symbol(name, lo=low, hi=high)


def _is_empty(low: int | None, high: int | None) -> bool:
    return low is not None and high is not None and low > high


def as_multiple(size: Expr, modulus: int, remainder: int) -> Expr:
    """`size` in the form that shows what it is modulo `modulus`."""
    return size if modulus == 1 else modulus * ((size - remainder) // modulus) + remainder
