"""Sums of few rows: each row looks at every element, and adds those that are its own.

A table of two rows, or a histogram of a few bins, gets as many elements per row as there are programs to
share them only if rows are cut in pieces, as other reductions are. That reads what is added once per row,
from a cache mostly, and sorts nothing.
"""

from __future__ import annotations

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, product
from coilwork_ir.machine import MachineModel
from coilwork_ir.scalar import Scalar, cast, const
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue
from coilwork_lowering.ops.scattering.elements import PIECE, Elements, Sums
from coilwork_lowering.scalar_math import eq, index, select


def are_few(elements: Elements, machine: MachineModel) -> bool:
    """True if looking at every element for each row takes less time than sorting them. Of unknown sizes it
    may not.
    """
    count, rows, inner = (as_int(e) for e in (elements.count, elements.rows, product(elements.inner)))
    if count is None or rows is None or inner is None or not elements.one_run or elements.ordered:
        return False
    compared_us = rows * count * inner * elements.dtype.itemsize / machine.scatters.compared_bytes_per_us
    # a step of the loop over a row's sorted elements for each piece
    sorted_us = machine.scatters.sort_us + count / max(rows, 1) / PIECE * machine.scatters.step_us
    return compared_us < sorted_us


def sums_by_comparing(
    builder: Builder, device: str, elements: Elements, keys: TensorValue, offset: int
) -> Sums:
    """Append what sums each row's elements; their keys, less `offset`, are in `keys`."""
    shape, axes = (elements.rows, *elements.inner), (elements.count,)
    zero = const(0, elements.dtype)

    def own(row: Expr, position: Expr) -> Scalar:
        key = cast(builder.read(keys, (position,)), DType.I32)
        return eq(key, cast(index(row - offset), DType.I32))

    def value(point: tuple[Expr, ...], at: tuple[Expr, ...]) -> Scalar:
        inside = own(point[0], at[0])
        return select(inside, elements.value(at[0], index(at[0]), point[1:], inside), zero)

    (values,) = builder.reduce("sum", shape, axes, device, value, (elements.dtype,))
    assert values is not None

    def count_of(row: Expr) -> Scalar:
        (counts,) = builder.reduce(
            "sum",
            (elements.rows,),
            axes,
            device,
            lambda point, at: cast(own(point[0], at[0]), DType.I64),
            (DType.I64,),
        )
        assert counts is not None
        return builder.read(counts, (row,))

    return Sums(values=values, count_of=count_of)
