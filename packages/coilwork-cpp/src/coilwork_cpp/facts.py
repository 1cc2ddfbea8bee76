"""Facts about values: the ranges and reductions they depend on, their uses, costs and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
    iterate_postorder,
)

# Instructions per element of a sort: of its values, or of its positions.
_SORT: Final = 32
_ORDERINGS: Final = frozenset({"lt", "le", "gt", "ge"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about the values below some roots.

    Attributes:
        varies: the ranges along which a value varies (a `Reduce` does not vary along its axes).
        stage: the number of passes over the reduction ranges that must be over before the value can be had;
            for a `Reduce`, the pass in which it is accumulated, for a `Sort` that in which its row is filled.
        uses: the number of users of a value, roots included.
    """

    varies: Mapping[Scalar, frozenset[Expr]]
    stage: Mapping[Scalar, int]
    uses: Mapping[Scalar, int]

    def ready(self, value: Scalar) -> int:
        """Return the first pass in which users of `value` can run."""
        return self.stage[value] + (1 if isinstance(value, Reduce | Sort) else 0)


def collect_facts(
    roots: Sequence[Scalar], ranges: Iterable[Expr], *, columns: frozenset[Expr] = frozenset()
) -> Facts:
    """Return the facts about all values below `roots`.

    Reductions and scans count as varying along `columns` even where their operands do not: the ranges whose
    points each have a variable of their own.
    """
    known = frozenset(ranges)
    varies: dict[Scalar, frozenset[Expr]] = {}
    stage: dict[Scalar, int] = {}
    uses: dict[Scalar, int] = dict.fromkeys(roots, 0)
    for root in roots:
        uses[root] += 1
    for value in iterate_postorder(roots):
        own: frozenset[Expr] = frozenset()
        match value:
            case Load():
                own = value.index[0].free_symbols & known
            case IndexValue():
                own = value.expr.free_symbols & known
            case Scan() | Sort():
                own = columns | {value.axis}
            case Reduce():
                own = columns
            case Parameter():
                # what a core gives at a point
                own = known
            case _:
                pass
        for operand in value.operands:
            own |= varies[operand]
            uses[operand] = uses.get(operand, 0) + 1
        if isinstance(value, Reduce):
            own -= frozenset(value.axes) - columns
        varies[value] = own
        stage[value] = max(
            (stage[o] + (1 if isinstance(o, Reduce | Sort) else 0) for o in value.operands),
            default=0,
        )
    return Facts(varies=varies, stage=stage, uses=uses)


def count_instructions(roots: Iterable[Scalar]) -> int:
    """Estimated instructions to compute `roots` at one point, every value once."""
    total = 0
    for value in iterate_postorder(roots):
        match value:
            case Op():
                total += SCALAR_OPS[value.op].cost
            case Const():
                pass
            case Sort():
                total += _SORT
            case _:
                total += 1
    return total


def recompute_cost(value: Scalar, inner: frozenset[Expr], facts: Facts) -> int:
    """Estimated instructions to compute `value` again in a later pass over `inner`, loads being cheap."""
    total = 0
    for node in iterate_postorder((value,)):
        if isinstance(node, Op) and facts.varies[node] & inner:
            total += SCALAR_OPS[node.op].cost
    return total


def is_made_of_positions(guard: Scalar | None) -> bool:
    """Tell if `guard` is a condition that a compiler may know for some lanes: no operand of it is read."""
    if guard is None or isinstance(guard, Const):
        return False
    return not any(isinstance(value, Load | Reduce | Scan | Sort) for value in iterate_postorder([guard]))


def is_made_of_comparisons(position: Scalar) -> bool:
    """Tell whether an integer counts or chooses by truth values, not only by numbers from memory."""
    stack, seen = [position], {position}
    while stack:
        node = stack.pop()
        if node.dtype.is_bool:
            return True
        if isinstance(node, Op) and node.op == "where":
            if all(isinstance(branch, Const) for branch in node.operands[1:]):
                return True
            # what it chooses by is no number in the position
            below = node.operands[1:]
        else:
            below = node.operands if isinstance(node, Op | IndexValue) else ()
        new = [operand for operand in below if operand not in seen]
        seen.update(new)
        stack += new
    return False


def split_comparison(node: Scalar) -> tuple[Expr, Expr] | None:
    """Both sides of an ordering of two index values that no loaded value takes part in."""
    if not isinstance(node, Op) or node.op not in _ORDERINGS:
        return None
    left, right = (_index_expression(operand) for operand in node.operands)
    return None if left is None or right is None else (left, right)


def _index_expression(value: Scalar) -> Expr | None:
    if isinstance(value, IndexValue) and not value.operands:
        return value.expr
    if isinstance(value, Const) and value.dtype is DType.I64:
        return as_expr(int(value.value))
    return None
