"""Addresses that are cheaper in two steps: of the elements of a window, and of those that an upsampling reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from coilwork_ir.index import Add, Expr, as_expr, as_int, node, stride_of, total
from coilwork_ir.scalar import Load, Scalar
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.space import Space

# Loads that a common address is worth a line of text for.
_WINDOW: Final = 3


def windows(order: Iterable[Scalar]) -> frozenset[Load]:
    """The loads among `order` that are constant distances apart, three or more from one buffer.

    From a common address, the distance is part of the load's instruction.
    """
    loads = [value for value in order if isinstance(value, Load) and not value.indirect]
    count = Counter((load.buffer, without_constant(load.index[0])[0]) for load in loads)
    return frozenset(
        load for load in loads if count[load.buffer, without_constant(load.index[0])[0]] >= _WINDOW
    )


def without_constant(expr: Expr) -> tuple[Expr, int]:
    """`expr` without its constant term, and that term."""
    match node(expr):
        case Add(operands):
            constant = sum(as_int(o) or 0 for o in operands)
            return expr - as_expr(constant), constant
        case _:
            return expr, 0


def rows_and_columns(shape: Shape, space: Space, load: Load) -> tuple[Expr, Expr] | None:
    """The offset of `load` from its buffer as that of its row and that from there, along the innermost range.

    None where the sum is no more work: within one range, or of elements at a fixed distance, whose addresses the compiler
    computes from each other.
    """
    axes = [tile for tile in shape.tiles if tile.axis is not None]
    if load.indirect or not axes:
        return None
    inner = frozenset({part for part, _ in axes[-1].parts[-1:]} or {axes[-1].index})
    parallel = frozenset(part for tile in axes for part in (tile.index, *(part for part, _ in tile.parts)))
    expr = load.index[0]
    match node(expr):
        case Add(operands):
            columns = [o for o in operands if o.free_symbols & parallel == inner]
            rows = [o for o in operands if o.free_symbols.isdisjoint(inner)]
            if len(columns) + len(rows) < len(operands) or not columns:
                return None
            if all(row.free_symbols.isdisjoint(parallel) for row in rows):
                return None
            if any(stride_of(expr, symbol) is not None for symbol in inner):
                return None
            return total(rows), total(columns)
        case _:
            return None
