"""Along which ranges each value varies, and in which pass over the data it can be computed.

A value varies along the ranges of its index expressions and of its operands; a `Reduce` or `Contraction`
removes its axes, and a `Scan` is made for every point of the kernel. Values that vary along a reduction range
live in *stages*, the passes over the reduction tile: stage s may use results of reductions whose operands
live in stages before s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coilwork_ir.index import Expr
from coilwork_ir.scalar import Contraction, IndexValue, Load, Reduce, Scalar, Scan, Sort, postorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Facts about every value of a kernel.

    Attributes:
        varies: the kernel's range symbols that a value depends on.
        stage: the pass in which a value that varies along a reduction range is first available; for other
            values, the pass before which they are.
    """

    varies: Mapping[Scalar, frozenset[Expr]]
    stage: Mapping[Scalar, int]


def index_symbols(exprs: Iterable[Expr], ranges: frozenset[Expr]) -> frozenset[Expr]:
    """The range symbols among the free symbols of `exprs`."""
    found: frozenset[Expr] = frozenset()
    for expr in exprs:
        found |= expr.free_symbols & ranges
    return found


def find_levels(roots: Iterable[Scalar], ranges: frozenset[Expr], *, chosen: Expr | None = None) -> Levels:
    """Levels of all values reachable from `roots`, over the kernel's range symbols `ranges`.

    Sorts vary along `chosen` instead of their axis if it is given: see
    `coilwork_triton.kernel_passes.topk_range`.
    """
    varies: dict[Scalar, frozenset[Expr]] = {}
    stage: dict[Scalar, int] = {}
    for node in postorder(roots):
        own: frozenset[Expr] = frozenset()
        for operand in node.operands:
            own |= varies[operand]
        at = max((stage[operand] for operand in node.operands), default=0)
        match node:
            case IndexValue():
                own |= index_symbols((node.expr,), ranges)
            case Load():
                own |= index_symbols(node.index, ranges)
            case Reduce() | Contraction():
                own -= frozenset(node.axes)
                at += 1
            case Scan():
                # of a block that is one point along an axis, Triton's threads have copies, and scan these as
                # well
                own |= ranges
            case Sort():
                own = (own - {node.axis}) | {node.axis if chosen is None else chosen}
            case _:
                pass
        varies[node] = own
        stage[node] = at
    return Levels(varies=varies, stage=stage)
