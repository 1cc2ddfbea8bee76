"""Passes that only do something at the first points of their rows: they walk these alone, and then a sort need find no others.

A store of the first elements of a sorted row is masked, `r < 64`, whatever else the row is used for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coilwork_cpp.planning.passes import Pass
from coilwork_cpp.rewrites.guards import compared
from coilwork_ir.index import Expr, as_int, extent_of
from coilwork_ir.kernels import Store
from coilwork_ir.scalar import Op, Sort


def at_first_points(passes: Sequence[Pass], axis: Expr) -> tuple[Pass, ...]:
    """`passes` along `axis`, those that read sorted rows without masks that let the same first points through in all of their stores."""
    return tuple(_at_first(step, axis) if step.ordered else step for step in passes)


def _at_first(step: Pass, axis: Expr) -> Pass:
    if step.reduces or step.scans or step.sorts or step.keeps:
        return step
    counts = {_count(store, axis) for store in step.stores}
    count = counts.pop() if len(counts) == 1 else None
    if count is None:
        return step
    return replace(step, stores=tuple(replace(s, mask=None) for s in step.stores), first=count)


def _count(store: Store, axis: Expr) -> int | None:
    """How many of the first points along `axis` the store's mask leaves, if that is all that it says, and rows have as many."""
    if store.mask is None or not isinstance(store.mask, Op) or store.mask.op != "lt":
        return None
    sides, length = compared(store.mask), as_int(extent_of(axis))
    count = as_int(sides[1]) if sides is not None and sides[0] is axis else None
    return count if count is not None and length is not None and 1 <= count <= length else None


def first_of(sort: Sort, passes: Sequence[Pass]) -> int | None:
    """How many elements of a row in order are read at most, where `passes` know."""
    counts = {step.first for step in passes if any(_same_row(sort, other) for other in step.ordered)}
    return counts.pop() if len(counts) == 1 else None


def _same_row(one: Sort, other: Sort) -> bool:
    return one.operands[0] is other.operands[0] and one.descending == other.descending
