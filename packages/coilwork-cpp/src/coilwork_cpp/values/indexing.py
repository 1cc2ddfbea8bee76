"""Index expressions as C++ `i64` arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from coilwork_ir.errors import EmitError
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
    as_int,
    is_subtracted,
    node,
    provably_nonneg,
    provably_positive,
)
from coilwork_ir.syntax.cpp import Binary, Call, Code, Literal, Unary


def index_code(expr: Expr, symbols: Mapping[Expr, Code]) -> Code:
    """`expr` as code; `symbols` says what each symbol is called.

    Divisions are plain `/` and `%` where both operands are provably not negative, else functions that floor.

    Raises:
        EmitError: a symbol that is neither a range nor a size of the kernel.
    """
    match node(expr):
        case Const(value):
            return Literal(str(value) if abs(value) < 1 << 31 else f"{value}ll")
        case Sym(name, symbol):
            if symbol not in symbols:
                raise EmitError(
                    "unbound-symbol", f"index symbol {name} is neither a range nor a size of the kernel"
                )
            return symbols[symbol]
        case Add(operands):
            return _sum(operands, symbols)
        case Mul(operands):
            return _product(operands, symbols)
        case FloorDiv(numerator, denominator):
            return _division("/", "floor_div<i64>", numerator, denominator, symbols)
        case Mod(numerator, denominator):
            return _division("%", "floor_mod<i64>", numerator, denominator, symbols)
        case Min(operands):
            codes = [index_code(operand, symbols) for operand in operands]
            return reduce(lambda a, b: Call("min_i64", (a, b)), codes)
        case Max(operands):
            codes = [index_code(operand, symbols) for operand in operands]
            return reduce(lambda a, b: Call("max_i64", (a, b)), codes)


def _division(
    operator: str, function: str, numerator: Expr, denominator: Expr, symbols: Mapping[Expr, Code]
) -> Code:
    parts = index_code(numerator, symbols), index_code(denominator, symbols)
    if provably_nonneg(numerator) and provably_positive(denominator):
        return Binary(operator, *parts)
    return Call(function, parts)


def _sum(operands: tuple[Expr, ...], symbols: Mapping[Expr, Code]) -> Code:
    # Symbols that are i64 come first, so that products of plain literals never overflow an int.
    subtracted = [op for op in operands if is_subtracted(op)]
    code: Code | None = None
    for operand in (op for op in operands if not is_subtracted(op)):
        part = index_code(operand, symbols)
        code = part if code is None else Binary("+", code, part)
    for operand in subtracted:
        part = index_code(-operand, symbols)
        code = Unary("-", part) if code is None else Binary("-", code, part)
    assert code is not None
    return code


def _product(operands: tuple[Expr, ...], symbols: Mapping[Expr, Code]) -> Code:
    # The canonical form puts the coefficient first; readers expect it last: `row * 768`.
    rest = [index_code(operand, symbols) for operand in operands[1:]]
    first = operands[0]
    if as_int(first) == -1:
        return Unary("-", _chain(rest))
    return _chain([*rest, index_code(first, symbols)])


def _chain(factors: list[Code]) -> Code:
    return reduce(lambda a, b: Binary("*", a, b), factors)
