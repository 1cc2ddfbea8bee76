"""Look into an expression without knowing its representation: `get_node` for one level, `fold` for all.

`measure_tree` is the length of an expression that is written out, by which index arithmetic is kept short.
Equal parts are one object, so an expression takes little memory whatever it says: with `y = x // 3 + x % 3`
and that `y` for the next `x` again and again, text doubles at each step and memory grows by two nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar, assert_never

from coilwork_ir.index.expression import (
    CONST,
    FLOORDIV,
    MIN,
    MOD,
    PRODUCT,
    SYMBOL,
    Expr,
    as_expr,
    make_sum,
)

# ---- Operations ----


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Const:
    """The integer `value`."""

    value: int


@dataclass(frozen=True, slots=True)
class Sym:
    """The symbol `expr`, called `name`."""

    name: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Add:
    """The sum of `operands`, at least two, in canonical order; a constant comes last."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Mul:
    """The product of `operands`, at least two; a constant (the coefficient) comes first."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """`numerator // denominator`, rounded down."""

    numerator: Expr
    denominator: Expr


@dataclass(frozen=True, slots=True)
class Mod:
    """`numerator % denominator`, with the denominator's sign."""

    numerator: Expr
    denominator: Expr


@dataclass(frozen=True, slots=True)
class Min:
    """The least of `operands`, at least two."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Max:
    """The greatest of `operands`, at least two."""

    operands: tuple[Expr, ...]


Node = Const | Sym | Add | Mul | FloorDiv | Mod | Min | Max


def get_node(e: Expr) -> Node:
    """Return the outermost operation of `e` and its operands."""
    tag = e._tag
    if tag == CONST:
        return Const(e._constant)
    if tag == SYMBOL:
        return Sym(e._data[0], e)
    if tag == PRODUCT:
        return Mul(e._args)
    if tag == FLOORDIV:
        return FloorDiv(e._args[0], e._args[1])
    if tag == MOD:
        return Mod(e._args[0], e._args[1])
    if tag < PRODUCT:
        return Min(e._args) if tag == MIN else Max(e._args)
    monos, coeffs = e._monos, e._coeffs
    if len(monos) == 1 and not e._constant:
        return Mul((as_expr(coeffs[0]), *(monos[0]._args if monos[0]._tag == PRODUCT else monos)))
    terms = [make_sum((m,), (c,), 0, m._has_mod) for m, c in zip(monos, coeffs, strict=True)]
    if e._constant:
        terms.append(as_expr(e._constant))
    return Add(tuple(terms))


def is_subtracted(term: Expr) -> bool:
    """True for a negative number and for a product with a negative coefficient, which a sum is written to
    subtract.
    """
    match get_node(term):
        case Const(value):
            return value < 0
        case Mul(operands):
            first = operands[0]
            return first.is_const and first.value < 0
        case _:
            return False


def fold(
    e: Expr,
    *,
    const: Callable[[int], T],
    symbol: Callable[[Expr], T],
    add: Callable[[Sequence[T]], T],
    mul: Callable[[Sequence[T]], T],
    floordiv: Callable[[T, T], T],
    mod: Callable[[T, T], T],
    minimum: Callable[[Sequence[T]], T],
    maximum: Callable[[Sequence[T]], T],
) -> T:
    """Replace every operation by a function, bottom up; equal parts are computed once."""
    done: dict[Expr, T] = {}

    def visit(x: Expr) -> T:
        if x in done:
            return done[x]
        match get_node(x):
            case Const(value):
                result = const(value)
            case Sym(_, expr):
                result = symbol(expr)
            case Add(operands):
                result = add([visit(a) for a in operands])
            case Mul(operands):
                result = mul([visit(a) for a in operands])
            case FloorDiv(a, b):
                result = floordiv(visit(a), visit(b))
            case Mod(a, b):
                result = mod(visit(a), visit(b))
            case Min(operands):
                result = minimum([visit(a) for a in operands])
            case Max(operands):
                result = maximum([visit(a) for a in operands])
            case unreachable:
                assert_never(unreachable)
        done[x] = result
        return result

    return visit(e)


# ---- Written size ----


# Beyond it nobody tells sizes apart, and numbers stay small.
_MOST: Final = 1 << 40


class TreeSize(NamedTuple):
    """The size of an expression that is written out.

    Attributes:
        nodes: operations, symbols and numbers, each as often as it is written.
        symbols: how many of them are symbols.
    """

    nodes: int
    symbols: int

    def bound_substitution(self, most: TreeSize) -> TreeSize:
        """Return a bound on the size, before simplification, once each symbol is of size `most` or less."""
        return TreeSize(
            min(self.nodes + self.symbols * (most.nodes - 1), _MOST), min(self.symbols * most.symbols, _MOST)
        )


def measure_tree(e: Expr) -> TreeSize:
    """Return the size of `e` written out. Takes time once per node: expressions remember it."""
    known = e._tree_size
    if known is not None:
        return TreeSize(*known)
    tag = e._tag
    if tag == CONST:
        nodes, symbols = 1, 0
    elif tag == SYMBOL:
        nodes, symbols = 1, 1
    elif tag <= PRODUCT:
        # one operation less than there are operands of a product or an extremum, as of a division
        nodes, symbols = len(e._args) - 1, 0
        for part in e._args:
            nodes, symbols = _sum(nodes, symbols, part)
    else:
        terms = len(e._monos) + (e._constant != 0)
        nodes, symbols = terms - 1 + (e._constant != 0), 0
        for m, c in zip(e._monos, e._coeffs):
            nodes, symbols = _sum(nodes + (0 if c in (1, -1) else 2), symbols, m)
    e._tree_size = (min(nodes, _MOST), min(symbols, _MOST))
    return TreeSize(*e._tree_size)


def _sum(nodes: int, symbols: int, part: Expr) -> tuple[int, int]:
    size = measure_tree(part)
    return nodes + size.nodes, symbols + size.symbols
