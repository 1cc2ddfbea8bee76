"""Index expressions as C++ over `int64_t`, with the floor semantics of the IR, and those that a manifest
holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Final

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
    as_expr,
    ceildiv,
    floordiv,
    is_subtracted,
    maximum,
    minimum,
    mod,
    node,
    provably_nonneg,
    provably_positive,
)
from coilwork_ir.syntax.cpp import Binary, Braces, Call, Code, Name, integer
from coilwork_runtime.manifest.size_bytecode import Op, SizeBytecode

_COMBINED: Final[Mapping[Op, Callable[[Expr, Expr], Expr]]] = MappingProxyType(
    {
        Op.ADD: lambda a, b: a + b,
        Op.SUBTRACT: lambda a, b: a - b,
        Op.MULTIPLY: lambda a, b: a * b,
        Op.FLOOR_DIVIDE: floordiv,
        Op.MODULO: mod,
        Op.CEIL_DIVIDE: ceildiv,
        Op.MINIMUM: minimum,
        Op.MAXIMUM: maximum,
    }
)


def index_code(expr: Expr, name_of: Callable[[Expr], str]) -> Code:
    """`expr` as C++; `name_of` gives the identifier of a symbol.

    C++ rounds quotients towards zero and remainders follow; where neither operand can be negative that is
    the floor, and elsewhere `rt::floordiv` and `rt::mod` correct it.
    """
    match node(expr):
        case Const(value):
            return integer(value)
        case Sym(_, symbol):
            return Name(name_of(symbol))
        case Add(terms):
            return _sum(terms, name_of)
        case Mul(factors):
            return _chain("*", [index_code(f, name_of) for f in factors])
        case FloorDiv(left, right):
            return _quotient("/", "rt::floordiv", left, right, name_of)
        case Mod(left, right):
            return _quotient("%", "rt::mod", left, right, name_of)
        case Min(operands):
            return _nest("rt::least", [index_code(o, name_of) for o in operands])
        case Max(operands):
            return _nest("rt::greatest", [index_code(o, name_of) for o in operands])


def braces_code(values: Iterable[Expr], name_of: Callable[[Expr], str]) -> Code:
    """Sizes or strides."""
    return Braces(tuple(index_code(v, name_of) for v in values))


def _sum(terms: tuple[Expr, ...], name_of: Callable[[Expr], str]) -> Code:
    """Terms with a negative coefficient are subtracted."""
    result = index_code(terms[0], name_of)
    for term in terms[1:]:
        if is_subtracted(term):
            result = Binary("-", result, index_code(-term, name_of))
        else:
            result = Binary("+", result, index_code(term, name_of))
    return result


def _quotient(operator: str, function: str, left: Expr, right: Expr, name_of: Callable[[Expr], str]) -> Code:
    operands = (index_code(left, name_of), index_code(right, name_of))
    if provably_nonneg(left) and provably_positive(right):
        return Binary(operator, *operands)
    return Call(function, operands)


def _chain(operator: str, parts: list[Code]) -> Code:
    return reduce(lambda left, right: Binary(operator, left, right), parts)


def _nest(function: str, parts: list[Code]) -> Code:
    return reduce(lambda left, right: Call(function, (left, right)), parts)


def read_size_code(code: SizeBytecode, sizes: Sequence[Expr]) -> Expr:
    """The expression that `code` computes of a launch's `sizes`.

    Raises:
        EmitError: `cpp-unsupported`, it compares, selects, or reads a compile-time parameter: C++ kernels
            need none.
    """
    stack: list[Expr] = []
    for op, operand in code.steps:
        if op is Op.CONSTANT:
            stack.append(as_expr(operand))
        elif op is Op.SIZE:
            stack.append(sizes[operand])
        elif op in _COMBINED:
            right = stack.pop()
            stack[-1] = _COMBINED[op](stack[-1], right)
        else:
            raise EmitError("cpp-unsupported", f"a kernel's size is computed by {op.name.lower()}")
    return stack[0]
