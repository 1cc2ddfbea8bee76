"""Positions that are only compared, or become floats: 32 bits do, though positions are 64 bit numbers by
type.

So it is with floats that are rounded to integers, as the weights of an upsampling are made: to convert from
and to 64 bits takes several times as long as what else there is to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import bounds
from coilwork_ir.scalar import Const, IndexValue, Op, Scalar, postorder
from coilwork_triton.facts.kernel_analysis import Users

_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_FLOATS: Final = frozenset({DType.F32, DType.F64})
# Far enough from 2^31 that the roundings on the way do not matter.
_LIMIT: Final = 2.0**30
Interval: TypeAlias = tuple[float, float]


def narrow_positions(order: Sequence[Scalar], roots: Sequence[Scalar]) -> frozenset[IndexValue]:
    """Return those index values among `order`, all scalars of a kernel, whose width nothing depends on.

    A comparison with a position or a constant is the same in whatever width holds both, and an integer
    becomes the same float. Anything else, wrapping arithmetic above all, wants 64 bits.
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


def short_casts(order: Sequence[Scalar], roots: Sequence[Scalar], users: Users) -> frozenset[Scalar]:
    """Return those casts of floats to 64 bit integers among `order` that only become floats again, of numbers
    that fit 32 bits.

    Such numbers are known to where they are computed from positions.
    """
    known: dict[Scalar, Interval] = {}
    found: set[Scalar] = set()
    for node in order:
        interval = _interval(node, known)
        if interval is not None and interval[0] > -_LIMIT and interval[1] < _LIMIT:
            known[node] = interval
            if _is_whole(node) and all(_any_width(user) for user in users[node]):
                found.add(node)
    return frozenset(found.difference(roots))


def idle_bounds(order: Sequence[Scalar]) -> Mapping[Scalar, Scalar]:
    """Return those among `order` that keep the fraction of a number of at least 0 between 0 and 1, and that
    fraction.
    """
    fractions: set[Scalar] = set()
    found: dict[Scalar, Scalar] = {}
    for node in order:
        if _is_fraction(node):
            fractions.add(node)
        elif isinstance(node, Op) and node.op in ("minimum", "maximum"):
            value, bound = node.operands
            outside = isinstance(bound, Const) and (
                bound.value >= 1 if node.op == "minimum" else bound.value <= 0
            )
            if outside and value in fractions:
                fractions.add(node)
                found[node] = found.get(value, value)
    return found


def _is_fraction(node: Scalar) -> bool:
    match node:
        case Op(
            op="sub",
            operands=(value, Op(op="cast", operands=(Op(op="cast", operands=(same,), dtype=whole),))),
        ):
            # a value that may be infinite has no fraction
            return same is value and whole.is_integer and _is_position(value)
        case _:
            return False


def _is_position(node: Scalar) -> bool:
    """`node` is a finite number of at least 0, for it comes from positions."""
    match node:
        case Op(op="maximum", operands=(value, Const() as least)):
            known: dict[Scalar, Interval] = {}
            for part in postorder((value,)):
                interval = _interval(part, known)
                if interval is not None:
                    known[part] = interval
            return least.value >= 0 and value in known
        case _:
            return False


def _is_whole(node: Scalar) -> bool:
    return (
        isinstance(node, Op)
        and node.op == "cast"
        and node.dtype is DType.I64
        and node.operands[0].dtype in _FLOATS
    )


def _interval(node: Scalar, known: Mapping[Scalar, Interval]) -> Interval | None:
    """Return where the finite value of `node` lies, from where its operands do."""
    match node:
        case Const() if not node.dtype.is_bool and math.isfinite(node.value):
            return float(node.value), float(node.value)
        case IndexValue(operands=()):
            interval = bounds(node.expr)
            if interval.lo is None or interval.hi is None:
                return None
            return float(interval.lo), float(interval.hi)
        case Op() if all(operand in known for operand in node.operands):
            return _combined(node.op, [known[operand] for operand in node.operands])
        case _:
            return None


def _combined(name: str, operands: Sequence[Interval]) -> Interval | None:
    match name, operands:
        case "cast", [(lo, hi)]:
            return lo - 1, hi + 1
        case "add", [(a, b), (c, d)]:
            return a + c, b + d
        case "sub", [(a, b), (c, d)]:
            return a - d, b - c
        case "mul", [(a, b), (c, d)]:
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        case "minimum", [(a, b), (c, d)]:
            return min(a, c), min(b, d)
        case "maximum", [(a, b), (c, d)]:
            return max(a, c), max(b, d)
        case _:
            return None
