"""Sizes that go through floating point, `int(0.7 * n)`: no integer expression says how torch rounds them, so
the program computes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.scalar_math import index, round_decimals

if TYPE_CHECKING:
    import sympy

# What makes an integer of a number, by the class's name.
_ROUNDING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "TruncToInt": "trunc",
        "FloorToInt": "floor",
        "floor": "floor",
        "CeilToInt": "ceil",
        "ceiling": "ceil",
        "RoundToInt": "round",
    }
)
_POWER: Final = "PowByNatural"
_BITS: Final[Mapping[str, str]] = MappingProxyType(
    {f"BitwiseFn_{name}": name for name in ("bitwise_and", "bitwise_or", "bitwise_xor")}
)
_BINARY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "IntTrueDiv": "div",
        "FloatTrueDiv": "div",
        "FloatPow": "pow",
        _POWER: "pow",
        "Max": "maximum",
        "Min": "minimum",
    }
)
# Python's functions of one float that torch keeps in expressions, which are rows of the op table.
UNARY_FUNCTIONS: Final = (
    *("sqrt", "log2", "exp", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh"),
)
_UNARY: Final[Mapping[str, str]] = MappingProxyType(
    {f"OpaqueUnaryFn_{function}": function for function in UNARY_FUNCTIONS}
)

Integer = Callable[["sympy.Basic"], Expr | None]


def is_rounded(expression: sympy.Basic) -> bool:
    """Tell whether `expression` is a number rounded to an integer, an integer to the power of one, or made of
    integers' bits.
    """
    return type(expression).__name__ in (*_ROUNDING, *_BITS, _POWER)


def compute_rounded(
    expression: sympy.Basic, integer: Integer, floats: Mapping[sympy.Basic, Scalar]
) -> Scalar:
    """The integer, of type i64, that `expression`, for which `is_rounded`, is; in double precision, as Python
    computes it.

    `integer` gives index expressions of what has an integer form, None of everything else; `floats` are
    numbers that tensors hold.

    Raises:
        ValueError: a function that has no row in the op table.
    """
    name = type(expression).__name__
    if name in _BITS:
        return op(_BITS[name], *(_whole(one, integer, floats) for one in expression.args))
    number = _number(expression if name == _POWER else expression.args[0], integer, floats)
    return cast(op(_ROUNDING.get(name, "round"), number), DType.I64)


def _whole(expression: sympy.Basic, integer: Integer, floats: Mapping[sympy.Basic, Scalar]) -> Scalar:
    known = integer(expression)
    return index(known) if known is not None else cast(_number(expression, integer, floats), DType.I64)


def _number(expression: sympy.Basic, integer: Integer, floats: Mapping[sympy.Basic, Scalar]) -> Scalar:
    if expression in floats:
        return cast(floats[expression], DType.F64)
    whole = integer(expression)
    if whole is not None:
        return cast(index(whole), DType.F64)
    if expression.is_number:
        return const(float(str(expression)), DType.F64)
    name = type(expression).__name__
    if name == "RoundDecimal":
        return round_decimals(_number(expression.args[0], integer, floats), int(str(expression.args[1])))
    if name in _BITS:
        return cast(compute_rounded(expression, integer, floats), DType.F64)
    operands = [_number(one, integer, floats) for one in expression.args]
    if name in ("ToFloat", "Identity"):
        return operands[0]
    if name in ("Add", "Mul"):
        return functools.reduce(functools.partial(op, name.lower()), operands)
    if name in _BINARY and len(operands) == 2:
        return op(_BINARY[name], *operands)
    if name in _UNARY:
        return op(_UNARY[name], *operands)
    if name in _ROUNDING:
        return op(_ROUNDING[name], *operands)
    raise ValueError(f"no way to compute {expression}")
