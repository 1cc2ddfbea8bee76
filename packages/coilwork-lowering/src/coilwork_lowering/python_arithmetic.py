"""Python arithmetic on sizes, as it appears between tensor operators in a graph with symbolic shapes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, maximum, minimum, mod
from coilwork_ir.scalar import Scalar, cast, const, op, where
from coilwork_lowering.building.size_table import UNARY_FUNCTIONS
from coilwork_lowering.building.values import NumberValue, Relation, Value
from coilwork_lowering.rules import NotLowered
from coilwork_lowering.scalar_math import index, round_decimals


def _natural_power(base: Expr, exponent: Expr) -> Expr:
    if not exponent.is_const or exponent.value < 0:
        raise NotLowered("a power with an unknown exponent")
    result = as_expr(1)
    for _ in range(exponent.value):
        result = result * base
    return result


_INTEGER: Final[Mapping[Any, Callable[[Expr, Expr], Expr]]] = MappingProxyType(
    {
        operator.add: operator.add,
        operator.sub: operator.sub,
        operator.mul: operator.mul,
        operator.floordiv: operator.floordiv,
        operator.mod: mod,
        operator.pow: _natural_power,
        torch.sym_max: maximum,
        torch.sym_min: minimum,
    }
)
DIVISIONS: Final[Mapping[Any, str]] = MappingProxyType(
    {
        operator.floordiv: "integer division or modulo by zero",
        operator.mod: "integer modulo by zero",
        operator.truediv: "division by zero",
    }
)
"""Functions that Python refuses to compute where the second operand is 0, and what it says."""
_FLOAT: Final[Mapping[Any, str]] = MappingProxyType(
    {
        operator.add: "add",
        operator.sub: "sub",
        operator.mul: "mul",
        operator.truediv: "div",
        operator.pow: "pow",
        torch.sym_max: "maximum",
        torch.sym_min: "minimum",
    }
)
_RELATIONS: Final[Mapping[Any, str]] = MappingProxyType(
    {
        operator.eq: "eq",
        operator.ne: "ne",
        operator.lt: "lt",
        operator.le: "le",
        operator.gt: "gt",
        operator.ge: "ge",
    }
)
_LOGIC: Final[Mapping[Any, str]] = MappingProxyType(
    {operator.and_: "bitwise_and", operator.or_: "bitwise_or"}
)
# of integers, as torch's own expressions say
_BITS: Final = (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift)
# functions of one float, as rows of the op table, by what torch and Python call them
_UNARY: Final[Mapping[str, str]] = MappingProxyType(
    {
        called: function
        for function in UNARY_FUNCTIONS
        for called in (function, f"sym_{function}", f"_sym_{function}")
    }
)


def is_number_function(target: Any) -> bool:
    """Tell if `target` is Python arithmetic rather than a torch operator."""
    return (
        target in (*_INTEGER, *_FLOAT, *_RELATIONS, *_BITS, operator.neg, operator.not_, operator.abs)
        or target
        in (
            torch.sym_float,
            torch.sym_int,
            torch.sym_not,
            torch.sym_ite,
            torch.sym_sum,
            round,
            math.floor,
            math.ceil,
            math.trunc,
        )
        or getattr(target, "__name__", "") in _UNARY
    )


def compute(target: Any, operands: tuple[Value, ...]) -> Value:
    """Return the value of `target(*operands)`.

    Raises:
        NotLowered: the IR has no way to say it.
    """
    if all(isinstance(v, bool | int | float) for v in operands):
        return _require_plain_number(target(*operands))
    if target is round:
        return _lower_round(*operands)
    if target is torch.sym_sum and isinstance(operands[0], tuple):
        total: Value = 0
        for summand in operands[0]:
            total = compute(operator.add, (total, summand))
        return total
    if target in _RELATIONS and all(_is_integer(v) for v in operands):
        return _relation(_RELATIONS[target], *(_integer(v) for v in operands))
    if target in _INTEGER and all(_is_integer(v) for v in operands):
        return _INTEGER[target](*(_integer(v) for v in operands))
    if target is operator.neg and _is_integer(operands[0]):
        return -_integer(operands[0])
    if target is operator.abs and _is_integer(operands[0]):
        return maximum(_integer(operands[0]), -_integer(operands[0]))
    if target is torch.sym_float:
        return NumberValue(_float(operands[0]))
    if target is torch.sym_ite and isinstance(operands[0], Relation) and all(map(_is_integer, operands[1:])):
        chosen, other = (_integer(v) for v in operands[1:])
        return other + truth(operands[0]) * (chosen - other)
    if target is torch.sym_ite and isinstance(operands[0], NumberValue):
        # a boolean out of a tensor as 1 or 0
        return NumberValue(where(lower_condition(operands[0]), _float(operands[1]), _float(operands[2])))
    if target in (operator.not_, torch.sym_not) and isinstance(operands[0], Relation):
        return _negate(operands[0])
    relations = [v for v in operands if isinstance(v, Relation)]
    if target in _LOGIC and len(relations) == len(operands):
        return _lower_connective(target, *relations)
    if target in _LOGIC:
        return NumberValue(op(_LOGIC[target], *(lower_condition(v) for v in operands)))
    if target in (operator.not_, torch.sym_not):
        return NumberValue(op("bitwise_not", lower_condition(operands[0])))
    if target in _FLOAT:
        return NumberValue(op(_FLOAT[target], *(_float(v) for v in operands)))
    if target in (operator.neg, operator.abs):
        return NumberValue(op("neg" if target is operator.neg else "abs", _float(operands[0])))
    if target in _RELATIONS:
        return NumberValue(op(_RELATIONS[target], *(_float(v) for v in operands)))
    name = _UNARY.get(getattr(target, "__name__", ""))
    if name is not None:
        return NumberValue(op(name, _float(operands[0])))
    raise NotLowered(f"{target} of {operands}")


def _lower_round(value: Value, digits: Value = None) -> Value:
    """Return a float to so many digits, or an integer as it is. Without `digits` the result is a size, which
    torch has a word for.
    """
    if not isinstance(digits, int) or (_is_integer(value) and digits < 0):
        raise NotLowered(f"{value!r} rounded to {digits!r} digits")
    return value if _is_integer(value) else NumberValue(round_decimals(_float(value), digits))


def _require_plain_number(value: Any) -> Value:
    if isinstance(value, bool | int | float):
        return value
    raise NotLowered(f"a number of class {type(value).__name__}")


def _is_integer(value: Value) -> bool:
    return isinstance(value, Expr | int)


def _integer(value: Value) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, int):
        return as_expr(int(value))
    raise NotLowered(f"{value!r} is not an integer")


def _float(value: Value) -> Scalar:
    match value:
        case NumberValue(scalar):
            return cast(scalar, DType.F64)
        case Expr():
            return cast(index(value), DType.F64)
        case Relation():
            return cast(lower_condition(value), DType.F64)
        case bool() | int() | float():
            return const(float(value), DType.F64)
    raise NotLowered(f"{value!r} is not a number")


def lower_condition(value: Value) -> Scalar:
    """Return a boolean about sizes as a scalar.

    Raises:
        NotLowered: it is something else.
    """
    match value:
        case bool():
            return const(value, DType.BOOL)
        case Relation(lhs=lhs, relation=relation, rhs=rhs):
            return op(relation, index(lhs), index(rhs))
        case NumberValue(scalar) if scalar.dtype.is_bool:
            return scalar
    raise NotLowered(f"{value!r} is not a condition")


def _relation(name: str, lhs: Expr, rhs: Expr) -> Value:
    if lhs.is_const and rhs.is_const:
        function: Callable[[int, int], bool] = getattr(operator, name)
        return function(lhs.value, rhs.value)
    return Relation(lhs=lhs, relation=name, rhs=rhs)


_OPPOSITE: Final = MappingProxyType({"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"})


def _negate(relation: Relation) -> Relation:
    return Relation(lhs=relation.lhs, relation=_OPPOSITE[relation.relation], rhs=relation.rhs)


def _lower_connective(target: Any, first: Relation, second: Relation) -> Value:
    holds = (minimum if target is operator.and_ else maximum)(truth(first), truth(second))
    return _relation("eq", holds, as_expr(1))


def truth(relation: Relation) -> Expr:
    """1 where the sizes compare so, else 0."""
    more = relation.rhs - relation.lhs
    match relation.relation:
        case "lt":
            return _clamp_to_one(maximum(0, more))
        case "le":
            return _clamp_to_one(maximum(0, more + 1))
        case "ne":
            return _clamp_to_one(maximum(more, -more))
    return 1 - truth(_negate(relation))


def _clamp_to_one(number: Expr) -> Expr:
    return minimum(1, number)
