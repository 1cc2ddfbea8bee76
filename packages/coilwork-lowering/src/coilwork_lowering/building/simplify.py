"""Simplify scalar graphs, keeping the value bit for bit: NaN, infinities and the sign of zero included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coilwork_ir.dtypes import DType, round_to_dtype
from coilwork_ir.scalar import Const, Load, Op, Scalar, const, join_conversions, op, rewrite

_DIGITS: Final[Mapping[DType, int]] = {DType.F64: 53, DType.F32: 24}


def simplify(root: Scalar) -> Scalar:
    """`root` with constants folded where that is exact, neutral operands dropped and casts joined."""
    return rewrite((root,), _visit)[0]


def _visit(node: Scalar) -> Scalar:
    if isinstance(node, Load) and isinstance(node.mask, Const) and node.mask.value is False:
        return const(node.other, node.dtype)
    if not isinstance(node, Op):
        return node
    match node.op:
        case "cast":
            return _cast(node)
        case "bitcast":
            return join_conversions(node)
        case "where":
            return _simplify_where(node)
        case "mul":
            return _simplify_mul(node)
        case "add" | "sub":
            return _simplify_add(node)
        case "div":
            return _simplify_div(node)
        case "pow":
            return _simplify_pow(node)
        case "bitwise_and" | "bitwise_or":
            return _simplify_logic(node)
        case "bitwise_not":
            return _simplify_not(node)
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return _simplify_compare(node)
    return node


def _cast(node: Op) -> Scalar:
    source = node.operands[0]
    if isinstance(source, Const):
        return _cast_const(source, node)
    return join_conversions(node)


def _cast_const(source: Const, node: Op) -> Scalar:
    value, target = _round_constant(source), node.dtype
    if target.is_bool:
        # NaN is true, as in torch
        return const(value != 0, target)
    if target in (DType.F64, DType.F32) and not isinstance(value, float):
        limit = 2 ** _DIGITS[target]
        return const(float(value), target) if abs(int(value)) <= limit else node
    if target is DType.F64:
        return const(value, target)
    if target.is_integer and not isinstance(value, float):
        bits = 8 * target.itemsize
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if target.is_signed_integer else (0, 2**bits)
        return const(int(value), target) if low <= int(value) < high else node
    if target.is_float and isinstance(value, float) and value in (0.0, 1.0, -1.0, 0.5, 2.0):
        return const(value, target)
    return node


def _round_constant(node: Const) -> bool | int | float:
    """Return the number that a constant's type makes of its value."""
    return round_to_dtype(float(node.value), node.dtype) if node.dtype.is_float else node.value


def _simplify_where(node: Op) -> Scalar:
    condition, then, otherwise = node.operands
    if isinstance(condition, Const):
        return then if condition.value else otherwise
    return then if then is otherwise else node


def _is_value(node: Scalar, value: float) -> bool:
    return isinstance(node, Const) and not isinstance(node.value, bool) and node.value == value


def _simplify_mul(node: Op) -> Scalar:
    a, b = node.operands
    if _is_value(b, 1):
        return a
    if _is_value(a, 1):
        return b
    if node.dtype.is_integer and (_is_value(a, 0) or _is_value(b, 0)):
        return const(0, node.dtype)
    return node


def _simplify_add(node: Op) -> Scalar:
    a, b = node.operands
    # x + 0.0 turns -0.0 into 0.0, so floats keep it; x - 0.0 does not
    if _is_value(b, 0) and (node.dtype.is_integer or (node.op == "sub" and _is_plus_zero(b))):
        return a
    if node.op == "add" and node.dtype.is_integer and _is_value(a, 0):
        return b
    return node


def _is_plus_zero(node: Scalar) -> bool:
    return isinstance(node, Const) and str(node.value) in ("0.0", "0")


def _simplify_div(node: Op) -> Scalar:
    a, b = node.operands
    if _is_value(b, 1):
        return a
    # dividing by a power of two is multiplying by its reciprocal, exactly, for moderate exponents
    if isinstance(b, Const) and isinstance(b.value, float) and abs(b.value) in _POWERS:
        inverse = 1.0 / b.value
        if round_to_dtype(inverse, node.dtype) == inverse and round_to_dtype(b.value, node.dtype) == b.value:
            return op("mul", a, const(inverse, node.dtype))
    return node


_POWERS = frozenset(2.0**k for k in range(-60, 61))


def _simplify_pow(node: Op) -> Scalar:
    base, exponent = node.operands
    if not isinstance(exponent, Const):
        return node
    if exponent.value == 1:
        return base
    if exponent.value == 2:
        return op("mul", base, base)
    if exponent.value == 0:
        return const(1, node.dtype)
    return node


def _simplify_logic(node: Op) -> Scalar:
    a, b = node.operands
    if a is b:
        return a
    if not node.dtype.is_bool:
        return node
    keeps = node.op == "bitwise_and"
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return y if bool(x.value) is keeps else const(not keeps, DType.BOOL)
    return node


def _simplify_not(node: Op) -> Scalar:
    inner = node.operands[0]
    if isinstance(inner, Op) and inner.op == "bitwise_not":
        return inner.operands[0]
    if node.dtype.is_bool and isinstance(inner, Const):
        return const(not inner.value, DType.BOOL)
    return node


def _simplify_compare(node: Op) -> Scalar:
    a, b = node.operands
    if not (isinstance(a, Const) and isinstance(b, Const)):
        return node
    x, y = _round_constant(a), _round_constant(b)
    results = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
    return const(results[node.op], DType.BOOL)
