"""Rows that end where data says: reductions whose operand counts only at the first points along the reduction.

Such an operand is `where(r < n, value, identity)`: behind `n`, which does not vary along `r`, nothing is combined. The loop
over `r` may then end at the largest `n` of the program's rows, however long the range is, and lengths of rows may differ a
great deal. The sums of sorted segments are of this kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.index import Expr, as_int
from coilwork_ir.scalar import Const, IndexValue, Op, Reduce, Scalar, postorder, range_symbols

# What combining changes nothing, for kinds that rows may leave off with.
_IDENTITY: Final[Mapping[str, float]] = MappingProxyType({"sum": 0, "prod": 1, "xor_sum": 0, "any": 0})


def points_of(node: Reduce) -> Scalar | None:
    """How many points along its only long axis `node` combines at most: a value that does not vary along it.

    None if that is not known to be less than all of them.
    """
    axes = [a for a in node.axes if a.extent is None or as_int(a.extent) != 1]
    operand = node.operands[0]
    if len(axes) != 1 or len(node.operands) > 1 or node.kind not in _IDENTITY:
        return None
    if not isinstance(operand, Op) or operand.op != "where":
        return None
    condition, _, otherwise = operand.operands
    if not isinstance(otherwise, Const) or otherwise.value != _IDENTITY[node.kind]:
        return None
    if not isinstance(condition, Op) or condition.op != "lt":
        return None
    position, count = condition.operands
    if not isinstance(position, IndexValue) or position.operands or position.expr is not axes[0]:
        return None
    return None if _varies(count, axes[0]) else count


def is_ragged(roots: Iterable[Scalar]) -> bool:
    """True if there are reductions below `roots`, and all of them end where data says."""
    found = [points_of(node) for node in postorder(tuple(roots)) if isinstance(node, Reduce)]
    return bool(found) and all(count is not None for count in found)


def _varies(value: Scalar, axis: Expr) -> bool:
    return axis in range_symbols((value,))
