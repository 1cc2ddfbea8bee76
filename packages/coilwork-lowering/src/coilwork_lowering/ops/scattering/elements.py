"""Describe what is added to rows at positions from tensors, its results, and row-major positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, provably_le
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Scalar
from coilwork_lowering.building.values import Shape, TensorValue

PIECE: Final = 32
"""Sorted positions that are added up together: a power of two, the same everywhere, since sums
depend on it.
"""

# Types for keys, and how many different ones each holds: one radix sort's pass for every byte.
_KEYS: Final = ((DType.I8, 2**8), (DType.I16, 2**16), (DType.I32, 2**32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """The elements that are added to rows.

    Attributes:
        count: how many elements there are.
        rows: how many rows, or how many for each of the runs.
        runs: elements come in so many runs of equal length, one behind the other. Those of run `k` with key
            `i` are added to row `i * runs + k`, so that sorting by key alone sorts by row: elements of equal
            keys keep their order.
        all_rows: every element belongs to a row; none is left out.
        inner: shape of an element and of a row.
        key: the row that element `n` is added to, in `i64`; `rows` for elements to be left out. Of its run's,
            if there are several.
        value: element `position` at a point of `inner`; `position` is an index expression over
            `placeholder(0)`, which the scalar stands for. Where the last argument (bool) is false nothing may
            be read, and the value is 0.
        dtype: the type to add in, which `value` has.
        checks: run-time checks of element `n`.
        ordered: keys never decrease, so that there is nothing to sort.
    """

    count: Expr
    rows: Expr
    runs: Expr
    all_rows: bool
    inner: Shape
    key: Callable[[Expr], Scalar]
    value: Callable[[Expr, Scalar, tuple[Expr, ...], Scalar], Scalar]
    dtype: DType
    checks: Callable[[Expr], Sequence[Check]]
    ordered: bool = False

    @property
    def sums(self) -> Expr:
        """The number of sums: one for each row and run."""
        return self.rows * self.runs

    @property
    def run_length(self) -> Expr:
        """The number of elements of a run."""
        return floordiv(self.count, self.runs)

    @property
    def key_type(self) -> tuple[DType, int]:
        """The narrowest type for keys, and what is taken from them so that they use all of its numbers."""
        different = self.rows if self.all_rows else self.rows + 1
        for width, most in _KEYS:
            if provably_le(different, most // 2):
                return width, 0
            if provably_le(different, most):
                return width, most // 2
        return DType.I64, 0

    @property
    def has_one_run(self) -> bool:
        """Tell if keys are rows."""
        return as_int(self.runs) == 1


def unflatten(flat: Expr, shape: Shape) -> tuple[Expr, ...]:
    """Return coordinates in `shape` of the row-major position `flat`."""
    results: list[Expr] = []
    below = as_expr(1)
    for place, extent in reversed(tuple(enumerate(shape))):
        outermost = all(as_int(e) == 1 for e in shape[:place])
        quotient = floordiv(flat, below)
        if as_int(extent) == 1:
            results.append(as_expr(0))
        else:
            results.append(quotient if outermost else mod(quotient, extent))
        below = below * extent
    return tuple(reversed(results))


def flatten(coordinates: Sequence[Expr], shape: Shape) -> Expr:
    """Return the row-major position of `coordinates` in `shape`."""
    flat = as_expr(0)
    for coordinate, extent in zip(coordinates, shape, strict=True):
        flat = flat * extent + coordinate
    return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The sum of each row's elements, in a tensor of shape `(rows * runs, *inner)`; 0 for rows that have
    none.

    `count_of` says how many elements a row has, as an `i64`.
    """

    values: TensorValue
    count_of: Callable[[Expr], Scalar]
