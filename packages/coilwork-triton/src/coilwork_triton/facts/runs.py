"""Loads of neighbouring elements by one point: runs, of which one access brings all.

Where a point of a kernel in steps (see `coilwork_triton.kernel_passes.thread_coarsening`) loads the elements
4*x0, 4*x0 + 1, 4*x0 + 2 and 4*x0 + 3, and 4 of them are at most 16 bytes, it loads them together. What lies
before or behind a run is loaded by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Add, Expr, as_expr, as_int, node, provably_divisible
from coilwork_ir.scalar import Load, Scalar

Run: TypeAlias = tuple[Load, ...]
# Elements that the library has functions for.
LONGEST: Final = 16
_BYTES: Final = 16


def load_runs(order: Iterable[Scalar], inner: Expr) -> Mapping[Load, Run]:
    """The loads among `order` that are part of a run, and that run: two elements, or four, or more, from a
    multiple of so many.

    They are under one mask, and vary along `inner`.
    """
    rows: dict[tuple[object, ...], dict[int, Load]] = {}
    for value in order:
        if isinstance(value, Load) and inner in value.index[0].free_symbols and value.dtype is not DType.BOOL:
            start, place = without_constant(value.index[0])
            key = (value.buffer, start, value.dtype, value.operands, value.mask, value.other)
            rows.setdefault(key, {})[place] = value
    found: dict[Load, Run] = {}
    for row in rows.values():
        for run in _runs_of(row):
            found.update(dict.fromkeys(run, run))
    return found


def _runs_of(row: Mapping[int, Load]) -> list[Run]:
    """The runs among loads that differ in their last term alone, from the first on, each as long
    as may be.
    """
    found: list[Run] = []
    end: int | None = None
    for place in sorted(row):
        if end is not None and place < end:
            continue
        first = row[place]
        width = min(LONGEST, _BYTES // first.dtype.itemsize)
        while width > 1 and not (
            all(place + k in row for k in range(width)) and provably_divisible(first.index[0], width)
        ):
            width //= 2
        if width > 1:
            found.append(tuple(row[place + k] for k in range(width)))
            end = place + width
    return found


def without_constant(expr: Expr) -> tuple[Expr, int]:
    """`expr` without its constant term, and that term."""
    match node(expr):
        case Add(operands):
            constant = sum(as_int(o) or 0 for o in operands)
            return expr - as_expr(constant), constant
        case _:
            return expr, 0
