"""Operands and results of attention as rows in memory, which a copy engine takes block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    find_stride,
    floordiv,
    provably_divisible,
    substitute,
)
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.kernels.attention import find_sharing, roles_of

_VECTOR_BYTES: Final = 16
# Dimensions that the engine counts.
_MOST_DIMENSIONS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension: its `extent`, elements from one place to the next, and the place of a program."""

    extent: Expr
    stride: Expr
    place: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Rows that lie in whole vectors of neighbours.

    Attributes:
        buffer: the argument that they lie in, from element `start` on.
        outer: dimensions of the other ranges.
        rows: how many rows there are at a place of these.
        stride: elements from one row to the next.
        length: of a row.
    """

    buffer: str
    start: Expr
    outer: tuple[Dimension, ...]
    rows: Expr
    stride: Expr
    length: Expr


def find_stored_rows(
    kernel: Kernel, buffer: str, place: Expr, far: Range, near: Range, itemsize: int
) -> StoredRows | str:
    """Return the elements at `place` of `buffer`, in rows along `near`, one for each point of `far`; or the
    reason why they are none. `kernel` is attention.
    """
    argument = next(arg for arg in kernel.args if arg.name == buffer)
    if not argument.aligned:
        return f"{buffer} may begin anywhere"
    step = find_stride(place, near.symbol)
    if step is None or as_int(step) != 1:
        return f"neighbours in {buffer} are no neighbours of a row"
    stride = find_stride(place, far.symbol)
    shared = find_sharing(kernel, roles_of(kernel), place)
    if stride is None or shared is None:
        return f"rows of {buffer} lie at no fixed distance"
    outer: list[Dimension] = []
    for one in shared:
        if one.symbol in place.free_symbols:
            step = find_stride(substitute(place, {one.symbol: one.symbol * one.count}), one.symbol)
            assert step is not None
            extent = ceildiv(one.extent, one.count)
            outer.append(Dimension(extent=extent, stride=step, place=floordiv(one.symbol, one.count)))
    ranges = (far, near, *roles_of(kernel).others)
    start = substitute(place, {r.symbol: as_expr(0) for r in ranges})
    vector = _VECTOR_BYTES // itemsize
    if not all(provably_divisible(step, vector) for step in (start, stride, *(one.stride for one in outer))):
        return f"rows of {buffer} begin between vectors"
    if len(outer) + 2 > _MOST_DIMENSIONS:
        return f"{buffer} has more than {_MOST_DIMENSIONS} dimensions"
    return StoredRows(
        buffer=buffer, start=start, outer=tuple(outer), rows=far.extent, stride=stride, length=near.extent
    )
