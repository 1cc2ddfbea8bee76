"""Positions that are only compared, or become floats: 32 bits do, though positions are 64 bit numbers by type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Const, IndexValue, Op, Scalar

_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_FLOATS: Final = frozenset({DType.F32, DType.F64})


def narrow_positions(order: Sequence[Scalar], roots: Sequence[Scalar]) -> frozenset[IndexValue]:
    """Those index values among `order`, all scalars of a kernel, whose width nothing depends on.

    A comparison with a position or a constant is the same in whatever width holds both, and an integer becomes the same
    float. Anything else, wrapping arithmetic above all, wants 64 bits.
    """
    found = {node for node in order if isinstance(node, IndexValue)}
    found.difference_update(root for root in roots if isinstance(root, IndexValue))
    for node in order:
        if not _any_width(node):
            found.difference_update(o for o in node.operands if isinstance(o, IndexValue))
    return frozenset(found)


def _any_width(node: Scalar) -> bool:
    if not isinstance(node, Op):
        return False
    if node.op == "cast":
        return node.dtype in _FLOATS
    return node.op in _COMPARISONS and all(isinstance(o, IndexValue | Const) for o in node.operands)
