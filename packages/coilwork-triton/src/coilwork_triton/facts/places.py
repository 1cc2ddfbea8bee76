"""What a kernel stores at given places of its ranges: where these are known, so are quotients, comparisons
and weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, provably_le, substitute
from coilwork_ir.kernels import Store
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Scalar, const, rewrite, substitute_ranges

# Integers that f32 holds.
_WHOLE: Final = 1 << 24


def are_plain(stores: Sequence[Store]) -> bool:
    """Tell if `stores` are of all points, at places that no data choose, and nothing is combined there."""
    return all(store.mode == "store" and not store.indirect and store.mask is None for store in stores)


def stores_at(stores: Sequence[Store], places: Mapping[Expr, Expr]) -> tuple[Store, ...]:
    """`stores`, which are direct ones, at `places` of their ranges, with what is decided there."""
    roots = [
        root for store in stores for root in (store.value, *(() if store.mask is None else (store.mask,)))
    ]
    moved = iter(rewrite(substitute_ranges(roots, places), _decided))
    return tuple(
        replace(
            store,
            index=substitute(store.index, places),
            value=next(moved),
            mask=None if store.mask is None else next(moved),
        )
        for store in stores
    )


def _decided(node: Scalar) -> Scalar:
    """`node`, or the constant or operand that it is known to be now that a point's place in its step is
    known.
    """
    match node:
        case Op(op="cast", operands=(IndexValue(operands=(), expr=expr),)) if node.dtype is DType.F32:
            exact = as_int(expr)
            return node if exact is None or abs(exact) > _WHOLE else const(float(exact), DType.F32)
        case Op(op="mul", operands=(Const() as left, Const() as right)) if node.dtype is DType.F32:
            product = float(left.value) * float(right.value)
            return const(product, DType.F32) if _are_short(left, right) else node
        case Op(op="lt" | "ge" | "le" | "gt", operands=(IndexValue(operands=()), _)):
            return _compared(node)
        case Op(op="bitwise_and", operands=(Const(value=True), other)) if node.dtype is DType.BOOL:
            return other
        case Op(op="bitwise_and", operands=(other, Const(value=True))) if node.dtype is DType.BOOL:
            return other
        case Op(op="where", operands=(Const(value=chosen), then, otherwise)):
            return then if chosen else otherwise
        case Load(mask=Const(value=False)):
            return const(node.other, node.dtype)
        case _:
            return node


def _are_short(*values: Const) -> bool:
    """The product of the two `values` is exact in f32: each is a number of 256ths below 16."""
    return all(abs(v.value) < 16 and (float(v.value) * 256).is_integer() for v in values)


def _compared(node: Op) -> Scalar:
    at, end = node.operands
    assert isinstance(at, IndexValue)
    if isinstance(end, IndexValue) and not end.operands:
        limit = end.expr
    elif isinstance(end, Const) and end.dtype.is_integer:
        limit = as_expr(int(end.value))
    else:
        return node
    lower, upper = {"lt": (at.expr, limit - 1), "le": (at.expr, limit), "ge": (limit, at.expr)}.get(
        node.op, (limit + 1, at.expr)
    )
    if provably_le(lower, upper):
        return const(True, DType.BOOL)
    return const(False, DType.BOOL) if provably_le(upper + 1, lower) else node
