"""Translate expressions from and to sympy, the language of torch's symbolic sizes.

The only module of this package that imports sympy; nothing else imports it. torch's own sympy functions are
told by their class name, so that torch need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy

from coilwork_ir.index.division import ceildiv, floordiv, mod
from coilwork_ir.index.expression import (
    ONE,
    Expr,
    IndexArithmeticError,
    add,
    add_all,
    const,
    multiply,
    multiply_all,
)
from coilwork_ir.index.proofs import maximum, minimum, provably_nonneg, provably_positive
from coilwork_ir.index.view import fold


class UnsupportedSympyError(IndexArithmeticError):
    """A sympy node that is not index arithmetic. `node` is the class name, `expression` the node's text."""

    def __init__(self, node: str, expression: str, reason: str) -> None:
        super().__init__(f"sympy {node} is not index arithmetic: {expression}: {reason}")
        self.node = node
        self.expression = expression


def from_sympy(expr: sympy.Basic, symbols: Mapping[str, Expr]) -> Expr:
    """Return the index expression with the same value; a sympy symbol becomes `symbols[its name]`.

    Reads Integer, Float that is a small binary fraction, Symbol, Add, Mul, Pow with a natural exponent, floor
    and ceiling of a quotient, Mod, Min, Max, and torch's FloorDiv, CleanDiv, CeilDiv, Mod, PythonMod,
    ModularIndexing, CeilToInt, FloorToInt, TruncToInt, PowByNatural, LShift, RShift, Abs, Min, Max, Identity;
    and Piecewise, whose conditions compare integers. Raises UnsupportedSympyError for anything else, and for
    symbols that are missing.
    """
    return _Reader(symbols).integer(expr)


@dataclass(frozen=True, slots=True)
class _Ratio:
    """`numerator / denominator`, exactly; the denominator is never the constant zero."""

    numerator: Expr
    denominator: Expr


class _Reader:
    def __init__(self, symbols: Mapping[str, Expr]) -> None:
        self.symbols = symbols
        self.done: dict[sympy.Basic, _Ratio] = {}

    def integer(self, expr: sympy.Basic) -> Expr:
        ratio = self.ratio(expr)
        if ratio.denominator is not ONE:
            raise _make_unsupported_error(expr, "it may be a fraction")
        return ratio.numerator

    def integers(self, expr: sympy.Basic) -> list[Expr]:
        return [self.integer(a) for a in expr.args]

    def ratio(self, expr: sympy.Basic) -> _Ratio:
        value = self.done.get(expr)
        if value is None:
            value = self.done[expr] = self.read(expr)
        return value

    def read(self, expr: sympy.Basic) -> _Ratio:
        name = type(expr).__name__
        if isinstance(expr, sympy.Rational):
            return _Ratio(const(int(expr.p)), const(int(expr.q)))
        if isinstance(expr, sympy.Float):
            numerator, denominator = float(expr).as_integer_ratio()
            # Products of sizes and such a number are exact in floating point, so rounding them says what
            # torch says.
            if abs(numerator) > _EXACT or denominator > _EXACT:
                raise _make_unsupported_error(expr, "products with it are rounded")
            return _Ratio(const(numerator), const(denominator))
        if isinstance(expr, sympy.Symbol):
            symbol = self.symbols.get(expr.name)
            if symbol is None:
                raise _make_unsupported_error(expr, "no such symbol")
            return _Ratio(symbol, ONE)
        if isinstance(expr, sympy.Add):
            return self.sum(expr)
        if isinstance(expr, sympy.Mul):
            return _product([self.ratio(a) for a in expr.args])
        if isinstance(expr, sympy.Pow) or name == "PowByNatural":
            return self.power(expr)
        if name in ("IntTrueDiv", "FloatTrueDiv"):
            top, bottom = (self.ratio(a) for a in expr.args)
            return _product([top, _inverse(expr, bottom)])
        if name in ("ToFloat", "Identity"):
            return self.ratio(expr.args[0])
        if name in ("floor", "FloorToInt", "ceiling", "CeilToInt", "TruncToInt"):
            return _Ratio(self.write_rounded(name, expr), ONE)
        if isinstance(expr, sympy.Piecewise):
            return _Ratio(self.piecewise(expr), ONE)
        rule = _INTEGER_FUNCTIONS.get(name)
        if rule is None:
            raise _make_unsupported_error(expr, "no rule for it")
        return _Ratio(rule(self.integers(expr)), ONE)

    def piecewise(self, expr: sympy.Piecewise) -> Expr:
        """Return the cases, each times 1 where it holds and none before it does, else 0."""
        parts: list[Expr] = []
        left = ONE
        for value, condition in expr.args:
            holds = self.truth(condition)
            parts.append(multiply_all([left, holds, self.integer(value)]))
            left = multiply(left, _negate_truth(holds))
        if left is not _ZERO:
            raise _make_unsupported_error(expr, "no case may hold")
        return add_all(parts)

    def truth(self, condition: sympy.Basic) -> Expr:
        """1 where the condition holds, else 0."""
        if isinstance(condition, sympy.logic.boolalg.BooleanAtom):
            return ONE if bool(condition) else _ZERO
        if isinstance(condition, sympy.And):
            return multiply_all([self.truth(a) for a in condition.args])
        if isinstance(condition, sympy.Or):
            return _negate_truth(multiply_all([_negate_truth(self.truth(a)) for a in condition.args]))
        if isinstance(condition, sympy.Not):
            return _negate_truth(self.truth(condition.args[0]))
        if not isinstance(condition, sympy.core.relational.Relational):
            raise _make_unsupported_error(condition, "it is no comparison")
        less = _minus(self.integer(condition.rhs), self.integer(condition.lhs))
        match condition.rel_op:
            case "==":
                return _negate_truth(minimum(ONE, maximum(less, _minus(_ZERO, less))))
            case "!=":
                return minimum(ONE, maximum(less, _minus(_ZERO, less)))
            case "<":
                return _positive(less)
            case "<=":
                return _positive(add(less, ONE))
            case ">":
                return _positive(_minus(_ZERO, less))
            case ">=":
                return _positive(_minus(ONE, less))
        raise _make_unsupported_error(condition, "no such comparison")

    def sum(self, expr: sympy.Add) -> _Ratio:
        parts = [self.ratio(a) for a in expr.args]
        if all(p.denominator is ONE for p in parts):
            return _Ratio(add_all([p.numerator for p in parts]), ONE)
        result = parts[0]
        for p in parts[1:]:
            if p.denominator is result.denominator:
                result = _Ratio(add(result.numerator, p.numerator), p.denominator)
                continue
            cross = add(multiply(result.numerator, p.denominator), multiply(p.numerator, result.denominator))
            result = _Ratio(cross, multiply(result.denominator, p.denominator))
        return result

    def power(self, expr: sympy.Basic) -> _Ratio:
        base, exponent = expr.args
        if not isinstance(exponent, sympy.Integer) or abs(int(exponent)) > 16:
            raise _make_unsupported_error(expr, "the exponent is not a small integer")
        ratio = self.ratio(base)
        if exponent < 0:
            ratio = _inverse(expr, ratio)
        return _product([ratio] * abs(int(exponent)))

    def write_rounded(self, name: str, expr: sympy.Basic) -> Expr:
        ratio = self.ratio(expr.args[0])
        top, bottom = ratio.numerator, ratio.denominator
        if name in ("ceiling", "CeilToInt"):
            return ceildiv(top, bottom)
        if (
            name == "TruncToInt"
            and bottom is not ONE
            and not (provably_nonneg(top) and provably_positive(bottom))
        ):
            raise _make_unsupported_error(expr, "truncation of what may be negative")
        return floordiv(top, bottom)


_ZERO = const(0)
_EXACT = 1024


def _minus(a: Expr, b: Expr) -> Expr:
    return add(a, multiply(const(-1), b))


def _negate_truth(truth: Expr) -> Expr:
    return _minus(ONE, truth)


def _positive(number: Expr) -> Expr:
    """1 where the integer is above 0, else 0."""
    return minimum(ONE, maximum(_ZERO, number))


def _product(parts: list[_Ratio]) -> _Ratio:
    top = multiply_all([p.numerator for p in parts])
    bottom = multiply_all([p.denominator for p in parts])
    if bottom is not ONE and not bottom.is_const:
        return _Ratio(top, bottom)
    # 4 * (x/4): numbers cancel, as they do in sympy.
    q = bottom.constant
    if q != 1 and mod(top, bottom).is_const and mod(top, bottom).constant == 0:
        return _Ratio(floordiv(top, bottom), ONE)
    return _Ratio(top, bottom)


def _inverse(expr: sympy.Basic, ratio: _Ratio) -> _Ratio:
    if ratio.numerator.is_const and ratio.numerator.constant == 0:
        raise _make_unsupported_error(expr, "division by zero")
    return _Ratio(ratio.denominator, ratio.numerator)


def _make_unsupported_error(expr: sympy.Basic, reason: str) -> UnsupportedSympyError:
    return UnsupportedSympyError(type(expr).__name__, str(expr), reason)


def _write_shift(args: list[Expr]) -> Expr:
    if not args[1].is_const or args[1].constant < 0:
        raise UnsupportedSympyError("shift", repr(args[1]), "the distance is not a natural number")
    return const(1 << args[1].constant)


_INTEGER_FUNCTIONS: Mapping[str, Callable[[list[Expr]], Expr]] = {
    "FloorDiv": lambda a: floordiv(a[0], a[1]),
    "CleanDiv": lambda a: floordiv(a[0], a[1]),
    "CeilDiv": lambda a: ceildiv(a[0], a[1]),
    "Mod": lambda a: mod(a[0], a[1]),
    "PythonMod": lambda a: mod(a[0], a[1]),
    "ModularIndexing": lambda a: mod(floordiv(a[0], a[1]), a[2]),
    "LShift": lambda a: multiply(a[0], _write_shift(a)),
    "RShift": lambda a: floordiv(a[0], _write_shift(a)),
    "Abs": lambda a: maximum(a[0], -a[0]),
    "Min": lambda a: minimum(*a),
    "Max": lambda a: maximum(*a),
}

Binary = Callable[[sympy.Expr, sympy.Expr], sympy.Expr]


def _floor_of_quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return sympy.floor(a / b)


@dataclass(frozen=True, slots=True, kw_only=True)
class SympyFunctions:
    """The functions that divisions and extrema are built from.

    For torch's shape environment: floordiv=FloorDiv, mod=PythonMod, minimum=Min, maximum=Max, all of
    `torch.utils._sympy.functions`.
    """

    floordiv: Binary = _floor_of_quotient
    mod: Binary = sympy.Mod
    minimum: Callable[..., sympy.Expr] = sympy.Min
    maximum: Callable[..., sympy.Expr] = sympy.Max


PLAIN_SYMPY = SympyFunctions()


def to_sympy(
    e: Expr, symbols: Mapping[str, sympy.Symbol], functions: SympyFunctions = PLAIN_SYMPY
) -> sympy.Expr:
    """Return the sympy expression with the same value; the symbol called `n` becomes `symbols["n"]`.

    Raises IndexArithmeticError for symbols that are missing.
    """

    def look_up(s: Expr) -> sympy.Expr:
        symbol = symbols.get(s.name)
        if symbol is None:
            raise IndexArithmeticError(f"no sympy symbol for {s.name!r}")
        return symbol

    return fold(
        e,
        const=sympy.Integer,
        symbol=look_up,
        add=lambda xs: sympy.Add(*xs),
        mul=lambda xs: sympy.Mul(*xs),
        floordiv=functions.floordiv,
        mod=functions.mod,
        minimum=lambda xs: functions.minimum(*xs),
        maximum=lambda xs: functions.maximum(*xs),
    )
