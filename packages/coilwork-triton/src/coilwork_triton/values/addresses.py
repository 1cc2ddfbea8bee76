"""Addresses that are cheaper in two steps: of the elements of a window, of those that an upsampling reads,
and of columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Add, Expr, as_expr, as_int, node, stride_of, substitute, total
from coilwork_ir.scalar import Load, Scalar
from coilwork_ir.syntax.python import Binary, Expression, Name, Number
from coilwork_triton.facts.vectorization import without_constant
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.space import LOOP_OFFSET, Space

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


def in_own_order(order: Iterable[Scalar], inner: Expr) -> frozenset[str]:
    """The buffers that some load among `order` reads in an order of its own along `inner`: at clamped places,
    say.

    From the address of the row that it has, other loads of the row may start as well.
    """
    return frozenset(
        value.buffer
        for value in order
        if isinstance(value, Load) and not value.indirect and stride_of(value.index[0], inner) is None
    )


def rows_and_columns(
    shape: Shape, space: Space, expr: Expr, *, affine: bool = False
) -> tuple[Expr, Expr] | None:
    """The offset `expr` from a buffer as that of a row and that from there, along the innermost range.

    None where the sum is no more work: within one range, or, without `affine`, of elements at a fixed
    distance, whose addresses the compiler computes from each other.
    """
    axes = [tile for tile in shape.tiles if tile.axis is not None]
    if not axes:
        return None
    inner = frozenset({axes[-1].inner})
    parallel = frozenset(part for tile in axes for part in (tile.index, *(part for part, _ in tile.parts)))
    match node(expr):
        case Add(operands):
            columns = [o for o in operands if o.free_symbols & parallel == inner]
            rows = [o for o in operands if o.free_symbols.isdisjoint(inner)]
            if len(columns) + len(rows) < len(operands) or not columns:
                return None
            if all(row.free_symbols.isdisjoint(parallel) for row in rows):
                return None
            if not affine and any(stride_of(expr, symbol) is not None for symbol in inner):
                return None
            return total(rows), total(columns)
        case _:
            return None


def in_row(
    shape: Shape, space: Space, load: Load, index: Expr, own_order: Container[str]
) -> Expression | None:
    """One address per row, and to it a column, which is one instruction, for `index` of the
    buffer of `load`.
    """
    if load.indirect:
        return None
    apart = rows_and_columns(shape, space, index, affine=load.buffer in own_order)
    if apart is None:
        return None
    rows, columns = (space.index(part) for part in apart)
    return Binary("+", Binary("+", Name(load.buffer), rows), columns)


def down_column(shape: Shape, space: Space, load: Load) -> Expression | None:
    """The addresses of elements of columns as those of the first row of a block, and to them the distance of
    its rows.

    Where a loop goes down columns element by element, what its rows are apart within a block is then part of
    the instructions, as far as the loop's own part is added first: 20 instructions per element of a sum
    without, 13 with. None where it does not, or rows are not apart.
    """
    tile = shape.reduced
    if load.indirect or tile is None or tile.parts or shape.walk != "looped" or not shape.scalar_access:
        return None
    if shape.in_runs or shape.index_dtype is not DType.I32 or shape.rank < 2 or shape.vectors is not None:
        return None
    step = stride_of(space.simplified(load.index[0]), tile.index)
    distance = None if step is None else as_int(step)
    if distance is None or distance in (0, 1):
        return None
    first = space.index(substitute(load.index[0], {tile.index: as_expr(0)}))
    start = Binary("+", first, Binary("*", LOOP_OFFSET, Number(distance)))
    rows = Binary("*", space.lane(tile), Number(distance))
    return Binary("+", Binary("+", Name(load.buffer), start), rows)
