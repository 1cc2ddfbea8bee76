"""Atomic updates of a table that no cache holds, a few of its columns at a time, which one does.

Rows that data say come in any order, so that each update finds its sector of memory in the cache only if all
of the table is there. Of the same columns of every row it is: maxima of 16 million elements in 65,536 rows of
256 wait for memory otherwise.
"""

from __future__ import annotations

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.index import Expr, as_expr, as_int, product
from coilwork_ir.machine import MachineModel
from coilwork_lowering.building.values import Shape, TensorValue, coordinate_symbols, is_whole


def group_width(
    table: TensorValue, shape: Shape, machine: MachineModel, *, resident_bytes: int
) -> int | None:
    """How many neighbouring columns updates over `shape` take at a time, or None for all.

    The last range runs along a row of `table`, and `resident_bytes` is how much of a table stays in a cache.
    """
    if has_trait(table.device, PROCESSOR) or not is_whole(table) or not shape:
        return None
    size, columns = as_int(product(table.shape)), as_int(table.shape[-1])
    if size is None or not columns or as_int(shape[-1]) != columns or as_int(table.buffer.strides[-1]) != 1:
        return None
    each = table.dtype.itemsize
    if size * each <= resident_bytes:
        return None
    rows = size // columns
    least = machine.memory.fetched_bytes // each
    widths = [w for w in range(least, columns // 2 + 1, least) if columns % w == 0]
    fitting = [w for w in widths if rows * w * each <= resident_bytes // machine.scatters.cache_parts]
    return max(fitting, default=None)


def group_columns(shape: Shape, width: int) -> tuple[Shape, tuple[Expr, ...]]:
    """`shape` with its columns in groups of `width`, groups outermost, and the point of `shape` at the ranges
    of that.
    """
    columns = as_int(shape[-1])
    assert columns is not None
    ranges = (as_expr(columns // width), *shape[:-1], as_expr(width))
    group, *others, column = coordinate_symbols("i", ranges)
    return ranges, (*others, group * width + column)
