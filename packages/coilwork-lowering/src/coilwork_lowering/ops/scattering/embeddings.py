"""The gradient of an embedding: rows of gradients added to the rows of the table that they came from."""

from __future__ import annotations

from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, product
from coilwork_ir.scalar import Scalar, const, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.facts.known_order import is_in_order
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.indexing import check_in_range, position_of
from coilwork_lowering.ops.scattering.deterministic_scatter import adds_repeatably
from coilwork_lowering.ops.scattering.elements import Elements, unflatten
from coilwork_lowering.ops.scattering.scatters import scatter_into
from coilwork_lowering.ops.scattering.segment_sums import sums_of_rows
from coilwork_lowering.rules import Call, NotLowered, Rule, as_size
from coilwork_lowering.scalar_math import eq, index, like, select, to_dtype


def _dense_backward(builder: Builder, call: Call) -> Value:
    gradient, indices = call.tensor("grad_output"), call.tensor("indices")
    if call["scale_grad_by_freq"] or not gradient.dtype.is_float:
        raise NotLowered("gradients scaled by how often an index occurs")
    rows, padding = as_size(call["num_weights"]), as_size(call["padding_idx"])
    sums = _sum_sorted if adds_repeatably(builder, call.device, gradient.dtype) else _add_in_memory
    found = sums(builder, call, gradient, indices, rows, padding)
    return builder.pointwise(
        found.shape,
        call.dtype,
        call.device,
        lambda point: to_dtype(builder.read(found, point), call.dtype),
        strides=call.strides(builder),
        name=call.node.name,
    )


def _sum_sorted(
    builder: Builder, call: Call, gradient: TensorValue, indices: TensorValue, rows: Expr, padding: Expr
) -> TensorValue:
    wide = gradient.dtype.compute

    def found(flat: Expr) -> Scalar:
        return position_of(builder, indices, unflatten(flat, indices.shape), rows, wraps=False)

    def key(flat: Expr) -> Scalar:
        # what belongs to the row without a gradient sorts behind all rows
        return select(eq(found(flat), index(padding)), index(rows), found(flat))

    def element(position: Expr, place: Scalar, point: tuple[Expr, ...], mask: Scalar) -> Scalar:
        spot = (*unflatten(position, indices.shape), *point)
        return to_dtype(builder.read(gradient, spot, indirect=(place,), mask=mask), wide)

    return sums_of_rows(
        builder,
        call.device,
        Elements(
            count=product(indices.shape),
            rows=rows,
            runs=as_expr(1),
            all_rows=as_int(padding) == -1,
            inner=gradient.shape[len(indices.shape) :],
            key=key if as_int(padding) != -1 else found,
            value=element,
            dtype=wide,
            checks=lambda flat: (check_in_range(found(flat), rows, call),),
            ordered=as_int(padding) == -1 and is_in_order(call.node.args[1]),
        ),
    ).values


def _add_in_memory(
    builder: Builder, call: Call, gradient: TensorValue, indices: TensorValue, rows: Expr, padding: Expr
) -> TensorValue:
    """By adding to the rows of a table of zeros."""
    wide: DType = gradient.dtype.compute
    inner = gradient.shape[len(indices.shape) :]
    depth = len(indices.shape)
    zeros = builder.pointwise((rows, *inner), wide, call.device, lambda point: const(0, wide))

    def found(point: tuple[Expr, ...]) -> Scalar:
        return position_of(builder, indices, point[:depth], rows, wraps=False)

    def element(point: tuple[Expr, ...]) -> Scalar:
        value = to_dtype(builder.read(gradient, point), wide)
        return select(eq(found(point), index(padding)), like(0, value), value)

    return scatter_into(
        builder,
        zeros,
        gradient.shape,
        lambda point: (placeholder(0), *point[depth:]),
        lambda point: (found(point),),
        element,
        "add",
        lambda point: (check_in_range(found(point), rows, call),),
    )


RULES: Final[tuple[Rule, ...]] = (Rule(overloads("embedding_dense_backward"), _dense_backward),)
