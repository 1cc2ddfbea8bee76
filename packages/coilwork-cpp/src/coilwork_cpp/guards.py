"""Comparisons of index values that the extents of ranges decide, folded away with what they guard.

Guards are written for any point (`2*x - 1 >= 0`). On a piece of a range they often are always true, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from coilwork_cpp.facts import split_comparison
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, provably_le, provably_lt
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.roots import kernel_roots, with_roots
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Scalar, const, load, rewrite

_Proof = Callable[[Expr, Expr], bool]
# When a comparison holds, and when it does not.
_PROOFS: Final[Mapping[str, tuple[_Proof, _Proof]]] = {
    "lt": (provably_lt, lambda a, b: provably_le(b, a)),
    "le": (provably_le, lambda a, b: provably_lt(b, a)),
    "gt": (lambda a, b: provably_lt(b, a), provably_le),
    "ge": (lambda a, b: provably_le(b, a), provably_lt),
}


def fold_decided_guards(kernel: Kernel) -> Kernel:
    """`kernel` without comparisons that hold, or fail, at all of its points. A store that never
    happens goes.
    """
    changed = with_roots(kernel, rewrite(kernel_roots(kernel), _fold_guard))
    stores = []
    for store in changed.stores:
        if isinstance(store.mask, Const):
            if not store.mask.value:
                continue
            store = replace(store, mask=None)
        stores.append(store)
    return replace(changed, stores=tuple(stores))


def _fold_guard(node: Scalar) -> Scalar:
    if isinstance(node, Load) and isinstance(node.mask, Const):
        if not node.mask.value:
            return const(node.other, node.dtype)
        return load(node.buffer, node.index, node.dtype, indirect=node.indirect)
    if isinstance(node, IndexValue):
        known = as_int(node.expr)
        return node if known is None else const(known, DType.I64)
    if not isinstance(node, Op):
        return node
    if node.op == "cast" and isinstance(node.operands[0], Const):
        return _fold_cast(node, node.operands[0])
    sides = split_comparison(node)
    if sides is not None:
        for proof, answer in zip(_PROOFS[node.op], (True, False), strict=True):
            if proof(*sides):
                return const(answer, DType.BOOL)
        return node
    if node.op == "where" and isinstance(node.operands[0], Const):
        return node.operands[1 if node.operands[0].value else 2]
    if node.op == "bitwise_not" and isinstance(node.operands[0], Const) and node.dtype.is_bool:
        return const(not node.operands[0].value, DType.BOOL)
    if node.op in ("bitwise_and", "bitwise_or") and node.dtype.is_bool:
        return _fold_connective(node)
    return node


def _fold_cast(node: Op, source: Const) -> Scalar:
    """Numbers that every arithmetic type holds exactly; a divisor that is known is a multiplication, say."""
    if source.dtype is DType.I64 and 0 <= source.value < 128 and not node.dtype.is_bool:
        return const(int(source.value) if node.dtype.is_integer else float(source.value), node.dtype)
    return node


def _fold_connective(node: Op) -> Scalar:
    neutral = node.op == "bitwise_and"
    left, right = node.operands
    for this, other in ((left, right), (right, left)):
        if isinstance(this, Const):
            return other if bool(this.value) is neutral else const(not neutral, DType.BOOL)
    return node
