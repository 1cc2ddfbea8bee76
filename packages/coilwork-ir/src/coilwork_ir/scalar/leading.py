"""Rows that end where data says: reductions whose operand counts only at the first points along the axis.

Such an operand is `where(r < n, value, identity)`, with an `n` that does not vary along the axis `r`: behind
it nothing is combined. Code generators may stop there, and cost models need not count what comes after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, provably_le
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar.nodes import Const, IndexValue, Op, Scalar
from coilwork_ir.scalar.walk import range_symbols

# What combining does not notice, for kinds that rows may leave off with.
_IDENTITY: Final[Mapping[ReduceKind, float]] = MappingProxyType({"sum": 0, "prod": 1, "xor_sum": 0, "any": 0})
_FAR: Final[Mapping[ReduceKind, float]] = MappingProxyType({"min": math.inf, "max": -math.inf})


def leading_points(kind: ReduceKind, operand: Scalar, axes: tuple[Expr, ...]) -> Scalar | None:
    """How many points along the only long axis count at most: a value that does not vary along it.

    None if that is not known to be less than all of them.
    """
    long = [a for a in axes if a.extent is None or as_int(a.extent) != 1]
    if len(long) != 1 or not isinstance(operand, Op) or operand.op != "where":
        return None
    condition, _, otherwise = operand.operands
    if not isinstance(otherwise, Const) or otherwise.value != _neutral(kind, otherwise.dtype):
        return None
    if not isinstance(condition, Op) or condition.op != "lt":
        return None
    position, count = condition.operands
    if isinstance(position, Op) and position.op == "cast" and _holds_all(position.dtype, long[0]):
        (position,) = position.operands
    if not isinstance(position, IndexValue) or position.operands or position.expr is not long[0]:
        return None
    return None if long[0] in range_symbols((count,)) else count


def _neutral(kind: ReduceKind, dtype: DType) -> float | None:
    """None for kinds without such a number, and types that it is not known of."""
    if kind not in _FAR:
        return _IDENTITY.get(kind)
    if dtype.is_float:
        return _FAR[kind]
    if not dtype.is_signed_integer:
        return None
    largest = (1 << (8 * dtype.itemsize - 1)) - 1
    return largest if kind == "min" else -largest - 1


def _holds_all(dtype: DType, axis: Expr) -> bool:
    """Every position along `axis` is the same number as a `dtype`."""
    if axis.extent is None or not dtype.is_integer:
        return False
    return provably_le(as_expr(axis.extent), 2 ** (8 * dtype.itemsize - 1))
