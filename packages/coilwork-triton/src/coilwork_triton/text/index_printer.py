"""Index expressions as Triton text: offsets into buffers, and integer values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from functools import reduce as fold_left

from coilwork_ir.index import (
    Add,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Sym,
    as_expr,
    find_bounds,
    get_node,
    is_subtracted,
    provably_nonneg,
    provably_positive,
    substitute,
)
from coilwork_ir.syntax.python import Binary, Expression, Number, call
from coilwork_triton.text.language import tl

_INT32 = range(-(2**31), 2**31)


class IndexPrinter:
    """Prints expressions over a kernel's ranges, sizes and the placeholders of indirect accesses.

    Args:
        ranges: range symbols that are derived from a tile's flat position, with their definition.
        variable: text of a symbol; called once per occurrence, so that callers may note which ones are used.
        library: names of device functions used so far; printing adds to it.
    """

    def __init__(
        self, ranges: Mapping[Expr, Expr], variable: Callable[[Expr], Expression], library: set[str]
    ) -> None:
        self._ranges = ranges
        # a definition that survives simplification is printed as the variable it defines
        self._names = {definition: symbol for symbol, definition in ranges.items() if not definition.is_const}
        self._variable = variable
        self._library = library

    def simplify(self, expr: Expr) -> Expr:
        """`expr` in terms of flat positions: `8 * (x // 8) + x % 8` has become `x`."""
        return substitute(expr, self._ranges) if self._ranges else expr

    def text(self, expr: Expr) -> Expression:
        """`expr` as an expression."""
        return self._text(self.simplify(expr))

    def definition(self, symbol: Expr) -> Expression:
        """Return the right-hand side of the definition of the derived range `symbol`."""
        return self._operation(self._ranges[symbol])

    def _text(self, expr: Expr) -> Expression:
        symbol = self._names.get(expr)
        return self._variable(symbol) if symbol is not None else self._operation(expr)

    def _operation(self, expr: Expr) -> Expression:
        match get_node(expr):
            case Const(value):
                return Number(value)
            case Sym(_, symbol):
                return self._variable(symbol)
            case Add(operands):
                return self._sum(operands)
            case Mul(operands):
                return self._product(operands)
            case FloorDiv(a, b):
                return self._division("//", "floordiv_int", a, b)
            case Mod(a, b):
                return self._division("%", "mod_int", a, b)
            case Min(operands):
                return self._fold_calls("minimum", operands)
            case Max((a, b)) if a is -b:
                return tl("abs", self._text(a if _is_written_first(a) else b))
            case Max(operands):
                return self._fold_calls("maximum", operands)

    def _sum(self, operands: Sequence[Expr]) -> Expression:
        # positive terms first: `a - b` reads better than `-b + a`
        plus = sorted((o for o in operands if not is_subtracted(o)), key=_closeness)
        minus = [o for o in operands if is_subtracted(o)]
        if not plus:
            plus, minus = minus[:1], minus[1:]
        result = self._text(plus[0])
        for operand in plus[1:]:
            result = Binary("+", result, self._text(operand))
        for operand in minus:
            result = Binary("-", result, self._text(-operand))
        return result

    def _product(self, operands: Sequence[Expr]) -> Expression:
        # the coefficient, which comes first, reads better last
        first, *others = operands
        ordered = [*others, first] if first.is_const else list(operands)
        texts = [self._text(o) for o in ordered]
        return fold_left(lambda a, b: Binary("*", a, b), texts)

    def _division(self, operator: str, function: str, a: Expr, b: Expr) -> Expression:
        # Triton rounds to zero, index arithmetic down; they agree on non-negative numbers
        if provably_nonneg(a) and provably_positive(b):
            return Binary(operator, self._text(a), self._text(b))
        self._library.add(function)
        return call(function, self._text(a), self._text(b))

    def _fold_calls(self, function: str, operands: Sequence[Expr]) -> Expression:
        return fold_left(lambda a, b: tl(function, a, b), [self._text(o) for o in operands])


def is_within_32_bits(expr: Expr) -> bool:
    """`expr` provably fits a 32-bit integer, and so does whatever it is computed from."""
    interval = find_bounds(expr)
    known = interval.lo is not None and interval.hi is not None
    return known and not may_leave_32_bits(expr)


@lru_cache(maxsize=1 << 16)
def may_leave_32_bits(expr: Expr) -> bool:
    """Tell if an intermediate result of `expr` may leave 32 bits, as the product in `70000 * x // 60000`.

    Of numbers without known bounds, such as positions from data, it is not known.
    """
    if _is_outside(expr):
        return True
    match get_node(expr):
        case Add(operands):
            # what is added comes before what is subtracted
            added = sum((o for o in operands if not is_subtracted(o)), as_expr(0))
            return _is_outside(added) or any(map(may_leave_32_bits, operands))
        case Mul(operands) | Min(operands) | Max(operands):
            return any(map(may_leave_32_bits, operands))
        case FloorDiv(a, b) | Mod(a, b):
            return may_leave_32_bits(a) or may_leave_32_bits(b)
    return False


def _is_outside(expr: Expr) -> bool:
    interval = find_bounds(expr)
    return any(end is not None and end not in _INT32 for end in (interval.lo, interval.hi))


def _closeness(expr: Expr) -> int:
    # wide strides first, unit strides next, constants last, as one writes offsets by hand
    match get_node(expr):
        case Mul():
            return 0
        case Const():
            return 2
        case _:
            return 1


def _is_written_first(expr: Expr) -> bool:
    """Tell if a difference is written in this order, not as its negative: `x - 3`, the variable first."""
    match get_node(expr):
        case Add(operands):
            return not any(is_subtracted(o) for o in operands if not o.is_const)
        case _:
            return not is_subtracted(expr)
