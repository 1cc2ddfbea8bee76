"""Numeric bounds of expressions, sound for every value of the symbols that keeps their promises.

`bound_magnitude` and `find_largest_operands` bound positions by expressions over sizes instead. Sums and
products may wrap around, for the result is the same; what is divided may not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coilwork_ir.index.expression import (
    CONST,
    FLOORDIV,
    MAX,
    MIN,
    MOD,
    PRODUCT,
    SYMBOL,
    Expr,
    add_all,
    as_expr,
    multiply_all,
)
from coilwork_ir.index.view import Add, Const, FloorDiv, Max, Min, Mod, Mul, Sym, get_node

# ---- Intervals ----


Bound = int | None


class Interval(NamedTuple):
    """`lo <= e <= hi`; None: no bound known."""

    lo: int | None
    hi: int | None


def find_bounds(e: Expr) -> Interval:
    """Numeric bounds of `e`."""
    return Interval(*find_limits(e))


def find_limits(e: Expr) -> tuple[Bound, Bound]:
    """`find_bounds` as a plain tuple, cached."""
    known = e._bounds
    if known is not None:
        return known
    tag = e._tag
    if tag == SYMBOL:
        result = _symbol_limits(e)
    elif tag == FLOORDIV:
        result = _floordiv_limits(e._args[0], e._args[1])
    elif tag == MOD:
        result = _mod_limits(e._args[0], e._args[1])
    elif tag == PRODUCT:
        result = _product_limits(e._args)
    elif tag in (MIN, MAX):
        result = _extremum_limits(e._args, tag == MIN)
    else:
        result = sum_limits(e._monos, e._coeffs, e._constant)
    e._bounds = result
    return result


def sum_limits(monos: tuple[Expr, ...], coeffs: tuple[int, ...], constant: int) -> tuple[Bound, Bound]:
    """Bounds of `sum(coeff * mono) + constant`, each monomial taken on its own."""
    lo: Bound = constant
    hi: Bound = constant
    for m, c in zip(monos, coeffs):
        mlo, mhi = find_limits(m)
        if c < 0:
            mlo, mhi = mhi, mlo
        if lo is not None:
            lo = None if mlo is None else lo + c * mlo
        if hi is not None:
            hi = None if mhi is None else hi + c * mhi
        if lo is None and hi is None:
            break
    return lo, hi


def _symbol_limits(e: Expr) -> tuple[Bound, Bound]:
    _, lo, hi, extent = e._data
    if extent is not None:
        top = find_limits(extent)[1]
        # An empty range has no values at all, so that any bound is sound; keep the interval non-empty.
        hi = None if top is None else max(top - 1, 0)
    return lo, hi


def _product_limits(atoms: tuple[Expr, ...]) -> tuple[Bound, Bound]:
    lo, hi = find_limits(atoms[0])
    for i, atom in enumerate(atoms[1:], 1):
        if atom is atoms[i - 1] and i == 1 and len(atoms) == 2:
            return _square_limits(lo, hi)
        lo, hi = _multiply(lo, hi, *find_limits(atom))
    return lo, hi


def _square_limits(lo: Bound, hi: Bound) -> tuple[Bound, Bound]:
    least = lo * lo if lo is not None and lo > 0 else hi * hi if hi is not None and hi < 0 else 0
    return least, None if lo is None or hi is None else max(lo * lo, hi * hi)


def _multiply(alo: Bound, ahi: Bound, blo: Bound, bhi: Bound) -> tuple[Bound, Bound]:
    if alo is not None and blo is not None and alo >= 0 and blo >= 0:
        return alo * blo, _top(ahi, bhi)
    if alo is not None and ahi is not None and blo is not None and bhi is not None:
        corners = (alo * blo, alo * bhi, ahi * blo, ahi * bhi)
        return min(corners), max(corners)
    if (alo, ahi) == (0, 0) or (blo, bhi) == (0, 0):
        return 0, 0
    a_nonneg, b_nonneg = alo is not None and alo >= 0, blo is not None and blo >= 0
    a_nonpos, b_nonpos = ahi is not None and ahi <= 0, bhi is not None and bhi <= 0
    if a_nonpos and b_nonpos:
        return 0, None
    if (a_nonneg and b_nonpos) or (a_nonpos and b_nonneg):
        return None, 0
    return None, None


def _top(a: Bound, b: Bound) -> Bound:
    if a is not None and b is not None:
        return a * b
    return 0 if a == 0 or b == 0 else None


def _floordiv_limits(num: Expr, den: Expr) -> tuple[Bound, Bound]:
    lo, hi = find_limits(num)
    if den._tag == CONST:
        d = den._constant
        return None if lo is None else lo // d, None if hi is None else hi // d
    dlo, dhi = find_limits(den)
    if dlo is None or dlo < 0:
        return None, None
    # divided by 0 there is no value
    dlo, dhi = max(dlo, 1), None if dhi is None else max(dhi, 1)
    # The divisor is positive: |quotient| shrinks as it grows. -1 is the limit for a negative dividend.
    if lo is None:
        low = None
    elif lo < 0:
        low = lo // dlo
    else:
        low = 0 if dhi is None else lo // dhi
    if hi is None:
        high = None
    elif hi >= 0:
        high = hi // dlo
    else:
        high = -1 if dhi is None else hi // dhi
    return low, high


def _mod_limits(num: Expr, den: Expr) -> tuple[Bound, Bound]:
    lo, hi = find_limits(num)
    dlo, dhi = find_limits(den)
    if dlo is not None and dlo >= 0:
        high = None if dhi is None else max(dhi - 1, 0)
        if lo is not None and lo >= 0 and hi is not None and (high is None or hi < high):
            high = hi
        return 0, high
    if dhi is not None and dhi < 0:
        return (None if dlo is None else dlo + 1), 0
    return None if dlo is None else min(dlo + 1, 0), None if dhi is None else max(dhi - 1, 0)


def _extremum_limits(args: tuple[Expr, ...], is_min: bool) -> tuple[Bound, Bound]:
    los = [find_limits(a)[0] for a in args]
    his = [find_limits(a)[1] for a in args]
    known_los = [x for x in los if x is not None]
    known_his = [x for x in his if x is not None]
    if is_min:
        return min(known_los) if len(known_los) == len(los) else None, min(known_his, default=None)
    return max(known_los, default=None), max(known_his) if len(known_his) == len(his) else None


# ---- Magnitudes ----


def find_largest_operands(positions: Iterable[Expr]) -> tuple[Expr, ...] | None:
    """Numbers that no operand of a division, a remainder, a minimum or a maximum in `positions` exceeds, as
    expressions over sizes.

    `None` if one depends on data.
    """
    magnitudes: dict[Expr, None] = {}
    for operand in _operands(positions):
        if any(isinstance(get_node(part), Mul) for part in _parts(operand)):
            most = bound_magnitude(operand)
            if most is None:
                return None
            magnitudes[most] = None
    return tuple(magnitudes)


def _operands(positions: Iterable[Expr]) -> Iterable[Expr]:
    for position in positions:
        for part in _parts(position):
            match get_node(part):
                case FloorDiv(a, b) | Mod(a, b):
                    yield from (a, b)
                case Min(operands) | Max(operands):
                    yield from operands


def _parts(expr: Expr) -> Iterable[Expr]:
    yield expr
    match get_node(expr):
        case Add(operands) | Mul(operands) | Min(operands) | Max(operands):
            for operand in operands:
                yield from _parts(operand)
        case FloorDiv(a, b) | Mod(a, b):
            yield from _parts(a)
            yield from _parts(b)


def bound_magnitude(expr: Expr) -> Expr | None:
    """No less than the magnitude of `expr`, whatever its ranges are at, as an expression over sizes; None if
    it depends on data.
    """
    match get_node(expr):
        case Const(value):
            return as_expr(abs(value))
        case Sym(_, symbol):
            return None if symbol.name.startswith("@") else symbol if symbol.extent is None else symbol.extent
        case Add(operands) | Min(operands) | Max(operands):
            parts = _list_magnitudes(operands)
            return None if parts is None else add_all(parts)
        case Mul(operands):
            parts = _list_magnitudes(operands)
            return None if parts is None else multiply_all(parts)
        case FloorDiv(a, b):
            # rounded down: of a negative one the magnitude may be one more
            parts = _list_magnitudes((a, b))
            return None if parts is None else parts[0] + 1
        case Mod(_, b):
            return bound_magnitude(b)


def _list_magnitudes(operands: Iterable[Expr]) -> list[Expr] | None:
    parts = [bound_magnitude(operand) for operand in operands]
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else None
