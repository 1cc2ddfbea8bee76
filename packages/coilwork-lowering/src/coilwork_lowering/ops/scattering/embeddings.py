"""Embeddings: gradients of a table, and bags of its rows (`embedding_bag`) with their gradients.

The gradient adds rows of gradients to the table's rows that they came from. A bag combines rows of a table
without storing them in between; `segment_bag.py` says which elements belong to a bag.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all, provably_le
from coilwork_ir.loops.nodes import CheckError
from coilwork_ir.scalar import Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value, get_dtype
from coilwork_lowering.facts.static_tensors import find_step_from_zero, is_nondecreasing
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.gathers import check_in_range, read_position
from coilwork_lowering.ops.scattering.deterministic_scatter import needs_fixed_order
from coilwork_lowering.ops.scattering.elements import Elements, flatten, unflatten
from coilwork_lowering.ops.scattering.scatters import scatter_into
from coilwork_lowering.ops.scattering.segment_bag import (
    Bags,
    Element,
    OffsetRules,
    check_indices,
    check_offsets,
    make_order_checks,
    number_bags,
)
from coilwork_lowering.ops.scattering.segment_sums import sum_rows
from coilwork_lowering.rules import Call, NotLowered, Rule, require_int, require_size
from coilwork_lowering.scalar_math import div, eq, gt, index, like, logical_and, lt, mul, select, to_dtype
from coilwork_lowering.torch_compat.operators import Overload

# ---- Gradient of an embedding ----


def _dense_backward(builder: Builder, call: Call) -> Value:
    gradient, indices = call.tensor("grad_output"), call.tensor("indices")
    if call["scale_grad_by_freq"] or not gradient.dtype.is_float:
        raise NotLowered("gradients scaled by how often an index occurs")
    rows, padding = require_size(call["num_weights"]), require_size(call["padding_idx"])
    sums = _sum_sorted if needs_fixed_order(builder, call.device, gradient.dtype) else _add_in_memory
    result = sums(builder, call, gradient, indices, rows, padding)
    return builder.pointwise(
        result.shape,
        call.dtype,
        call.device,
        lambda point: to_dtype(builder.read(result, point), call.dtype),
        strides=call.strides(builder),
        name=call.node.name,
    )


def _sum_sorted(
    builder: Builder, call: Call, gradient: TensorValue, indices: TensorValue, rows: Expr, padding: Expr
) -> TensorValue:
    wide = gradient.dtype.compute

    def find_row(flat: Expr) -> Scalar:
        return read_position(builder, indices, unflatten(flat, indices.shape), rows, wraps=False)

    def key(flat: Expr) -> Scalar:
        # what belongs to the row without a gradient sorts behind all rows
        return select(eq(find_row(flat), index(padding)), index(rows), find_row(flat))

    def element(position: Expr, place: Scalar, point: tuple[Expr, ...], mask: Scalar) -> Scalar:
        spot = (*unflatten(position, indices.shape), *point)
        return to_dtype(builder.read(gradient, spot, indirect=(place,), mask=mask), wide)

    return sum_rows(
        builder,
        call.device,
        Elements(
            count=multiply_all(indices.shape),
            rows=rows,
            runs=as_expr(1),
            all_rows=as_int(padding) == -1,
            inner=gradient.shape[len(indices.shape) :],
            key=key if as_int(padding) != -1 else find_row,
            value=element,
            dtype=wide,
            checks=lambda flat: (check_in_range(find_row(flat), rows, call),),
            ordered=as_int(padding) == -1 and is_nondecreasing(call.node.args[1]),
        ),
    ).values


def _add_in_memory(
    builder: Builder, call: Call, gradient: TensorValue, indices: TensorValue, rows: Expr, padding: Expr
) -> TensorValue:
    """Add gradients to the rows of a table of zeros."""
    wide: DType = gradient.dtype.compute
    inner = gradient.shape[len(indices.shape) :]
    depth = len(indices.shape)
    zeros = builder.pointwise((rows, *inner), wide, call.device, lambda point: const(0, wide))

    def find_row(point: tuple[Expr, ...]) -> Scalar:
        return read_position(builder, indices, point[:depth], rows, wraps=False)

    def element(point: tuple[Expr, ...]) -> Scalar:
        value = to_dtype(builder.read(gradient, point), wide)
        return select(eq(find_row(point), index(padding)), like(0, value), value)

    return scatter_into(
        builder,
        zeros,
        gradient.shape,
        lambda point: (placeholder(0), *point[depth:]),
        lambda point: (find_row(point),),
        element,
        "add",
        lambda point: (check_in_range(find_row(point), rows, call),),
    )


# ---- Bags ----


_ONE: Final = const(1, DType.I64)


class Mode(Enum):
    """Modes of combining rows, numbered as in ATen."""

    SUM = 0
    MEAN = 1
    MAX = 2


def _read_bags(builder: Builder, call: Call, rows: Expr, count: Expr) -> Bags:
    indices, offsets = call.tensor("indices"), call.tensor("offsets")
    if len(indices.shape) != 1 or any(as_int(size) == 0 for size in (*indices.shape, count, rows)):
        raise NotLowered("bags without elements")
    in_order = _walks_in_order(call)
    # of means eager looks for the bag of each element first, as its other kernels do
    is_sum = Mode(call.integer("mode")) is Mode.SUM
    error: CheckError = "RuntimeError" if in_order and is_sum else "IndexError"
    return Bags(
        rows=rows,
        indices=check_indices(builder, indices, rows, call),
        offsets=check_offsets(
            builder,
            offsets,
            OffsetRules(elements=indices.shape[0], count=count, in_order=in_order, error=error),
        ),
        count=count,
        padding=require_int(call["padding_idx"]),
        device=indices.device,
        in_bounds=_are_in_bounds(call, indices, offsets),
        error=error,
    )


def _are_in_bounds(call: Call, indices: TensorValue, offsets: TensorValue) -> bool:
    """Tell if offsets are counted up by the program, as those of indices in rows, and all of them are among
    the elements.
    """
    assert isinstance(call.node.target, Overload)
    names = [argument.name for argument in call.node.target._schema.arguments]
    step = find_step_from_zero(call.node.args[names.index("offsets")])
    return step is not None and provably_le((offsets.shape[0] - 1) * step, indices.shape[0])


def _walks_in_order(call: Call) -> bool:
    """Tell if eager's fast kernel for CPUs combines the bags: sums and means of whole rows that all count."""
    weight, by_sample = call.fakes.get("weight"), call.fakes.get("per_sample_weights")
    return (
        isinstance(weight, torch.Tensor)
        and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and weight.stride(-1) == 1
        and Mode(call.integer("mode")) is not Mode.MAX
        and require_int(call["padding_idx"]) < 0
        and (not isinstance(by_sample, torch.Tensor) or by_sample.stride(0) == 1)
    )


def _forward(builder: Builder, call: Call) -> Value:
    weight, mode = call.tensor("weight"), Mode(call.integer("mode"))
    by_sample = call["per_sample_weights"]
    output, offset2bag, bag_size, max_indices = call.result
    shape = builder.sizes.exprs(output.shape)
    if not weight.dtype.is_float or weight.dtype.is_opaque or any(as_int(size) == 0 for size in shape):
        raise NotLowered("a table without columns")
    if by_sample is not None and call.tensor("per_sample_weights").dtype is not weight.dtype:
        raise NotLowered("weights of another type than the table's, which ATen refuses")
    # as many as the result has rows: the last offset may be an end alone
    bags = _read_bags(builder, call, weight.shape[0], shape[0])
    wide = weight.dtype.compute

    def value(one: Element) -> Scalar:
        read = builder.read(weight, (placeholder(0), *one.point), indirect=(one.row,), mask=one.readable)
        if not isinstance(by_sample, TensorValue):
            return cast(read, wide)
        own = builder.read(by_sample, (placeholder(0),), indirect=(one.at,), mask=one.readable)
        return mul(cast(read, wide), cast(own, wide))

    if mode is Mode.MAX:
        total = bags.reduce(builder, "max", shape[1:], -math.inf, wide, value)
    else:
        total = bags.reduce(builder, "sum", shape[1:], 0, wide, value)
    many = _counts(builder, bags)

    def body(point: tuple[Expr, ...]) -> Scalar:
        result = builder.read(total, point)
        if mode is Mode.SUM:
            return to_dtype(result, weight.dtype)
        count = many(point[0])
        if mode is Mode.MEAN:
            result = div(result, cast(op("maximum", count, like(1, count)), wide))
        return to_dtype(select(gt(count, like(0, count)), result, like(0, result)), weight.dtype)

    combined = builder.pointwise(
        shape,
        weight.dtype,
        weight.device,
        body,
        strides=builder.result_strides(output),
        checks=lambda point: make_order_checks(builder, bags, point[0]),
    )
    places = number_bags(builder, bags)
    chosen = _find_row_of_maximum(builder, bags, total, value) if mode is Mode.MAX else None
    # eager's kernel for CPUs has no use for the sizes of bags that it sums, and gives them twice with a mean
    on_cpu = has_trait(weight.device, ATEN_CPU)
    sized = mode is not Mode.SUM or not on_cpu

    def size(point: tuple[Expr, ...]) -> Scalar:
        zero = index(as_expr(0))
        # there may be one more entry than there are bags
        return select(lt(index(point[0]), index(bags.count)), many(point[0]), zero) if sized else zero

    return (
        combined,
        _store(builder, offset2bag, weight.device, lambda point: builder.read(places, point)),
        _store(builder, bag_size, weight.device, size),
        _store(
            builder,
            max_indices,
            weight.device,
            chosen or (size if on_cpu else lambda point: index(as_expr(0))),
        ),
    )


def _store(
    builder: Builder, fake: torch.Tensor, device: str, body: Callable[[tuple[Expr, ...]], Scalar]
) -> TensorValue:
    dtype = get_dtype(fake.dtype)
    return builder.pointwise(
        builder.sizes.exprs(fake.shape), dtype, device, lambda point: cast(body(point), dtype)
    )


def _counts(builder: Builder, bags: Bags) -> Callable[[Expr], Scalar]:
    """Return how many elements of a bag count, in `i64`."""
    if bags.padding < 0:
        return lambda bag: bags.length(builder, bag)
    result = bags.reduce(builder, "sum", (), 0, DType.I64, lambda one: const(1, DType.I64))
    return lambda bag: builder.read(result, (bag,))


def _find_row_of_maximum(
    builder: Builder, bags: Bags, total: TensorValue, value: Callable[[Element], Scalar]
) -> Callable[[tuple[Expr, ...]], Scalar]:
    """Return the row that a maximum is of: the first element's that has it; 0 where there is none."""
    none = const((1 << 63) - 1, DType.I64)
    first = bags.reduce(
        builder,
        "min",
        total.shape[1:],
        (1 << 63) - 1,
        DType.I64,
        lambda one: select(eq(value(one), one.of_bag(total)), one.at, none),
    )

    def read(point: tuple[Expr, ...]) -> Scalar:
        at = builder.read(first, point)
        known = op("ne", at, none)
        row = bags.row(builder, placeholder(0), (select(known, at, like(0, at)),), known)
        return select(known, row, like(0, row))

    return read


def _backward(builder: Builder, call: Call) -> Value:
    gradient, mode = call.tensor("grad"), Mode(call.integer("mode"))
    if call["scale_grad_by_freq"] or call["sparse"]:
        raise NotLowered("gradients scaled by how often an index occurs, or sparse ones")
    if not gradient.dtype.is_float or as_int(gradient.shape[1]) == 0:
        raise NotLowered("gradients of a table without columns")
    rows = require_size(call["num_weights"])
    bags = _read_bags(builder, call, rows, gradient.shape[0])
    given = _give_largest if mode is Mode.MAX else _give_elements
    result = given(builder, call, bags, gradient, mode)
    return builder.pointwise(
        (rows, gradient.shape[1]),
        call.dtype,
        call.device,
        lambda point: to_dtype(result(point), call.dtype),
        strides=call.strides(builder),
    )


def _give_elements(
    builder: Builder, call: Call, bags: Bags, gradient: TensorValue, mode: Mode
) -> Callable[[tuple[Expr, ...]], Scalar]:
    """Each element that counts gives its row what its bag was given."""
    wide, by_sample = gradient.dtype.compute, call["per_sample_weights"]
    places = number_bags(builder, bags)
    shares = _shares(builder, bags, wide) if mode is Mode.MEAN else None

    def value(at: Expr, column: Expr, indirect: tuple[Scalar, ...], mask: Scalar) -> Scalar:
        bag = cast(builder.read(places, (at,), indirect=indirect, mask=mask), DType.I64)
        inside = logical_and(mask, lt(bag, index(bags.count)))
        read = builder.read(gradient, (placeholder(0), column), indirect=(bag,), mask=inside)
        result = cast(read, wide)
        if shares is not None:
            share = builder.read(shares, (placeholder(0),), indirect=(bag,), mask=inside, other=1)
            result = div(result, share)
        if isinstance(by_sample, TensorValue):
            own = builder.read(by_sample, (at,), indirect=indirect, mask=mask)
            result = mul(result, cast(own, wide))
        return result

    if needs_fixed_order(builder, bags.device, gradient.dtype):

        def key(flat: Expr) -> Scalar:
            row = bags.row(builder, flat)
            return select(bags.counts(row), row, index(bags.rows))

        sums = sum_rows(
            builder,
            bags.device,
            Elements(
                count=bags.elements,
                rows=bags.rows,
                runs=as_expr(1),
                all_rows=bags.padding < 0,
                inner=gradient.shape[1:],
                key=key,
                value=lambda at, place, point, mask: value(at, point[0], (place,), mask),
                dtype=wide,
                checks=lambda flat: (),
            ),
        ).values
        return lambda point: builder.read(sums, point)

    def element(point: tuple[Expr, ...]) -> Scalar:
        counted = bags.counts(bags.row(builder, point[0]))
        return select(counted, value(point[0], point[1], (), counted), const(0, wide))

    added = scatter_into(
        builder,
        _zeros(builder, bags, gradient),
        (bags.elements, gradient.shape[1]),
        lambda point: (placeholder(0), point[1]),
        lambda point: (bags.row(builder, point[0]),),
        element,
        "add",
        lambda point: (),
    )
    return lambda point: builder.read(added, point)


def _shares(builder: Builder, bags: Bags, wide: DType) -> TensorValue:
    """Return what the mean of each bag divides by."""
    many = _counts(builder, bags)
    return builder.pointwise(
        (bags.count,), wide, bags.device, lambda point: cast(op("maximum", many(point[0]), _ONE), wide)
    )


def _give_largest(
    builder: Builder, call: Call, bags: Bags, gradient: TensorValue, mode: Mode
) -> Callable[[tuple[Expr, ...]], Scalar]:
    """Each column of a bag gives the row that its maximum was of what it was given."""
    wide, largest = gradient.dtype.compute, call.tensor("maximum_indices")
    many, targets = _counts(builder, bags), (bags.rows, gradient.shape[1])

    def row(point: tuple[Expr, ...]) -> Scalar:
        return cast(builder.read(largest, point), DType.I64)

    def count_elements(point: tuple[Expr, ...]) -> Scalar:
        count = many(point[0])
        return gt(count, like(0, count))

    if needs_fixed_order(builder, bags.device, gradient.dtype):

        def key(flat: Expr) -> Scalar:
            point = unflatten(flat, gradient.shape)
            target = op("add", mul(row(point), index(targets[1])), index(point[1]))
            return select(count_elements(point), target, index(multiply_all(targets)))

        def read_gradient(at: Expr, place: Scalar, point: tuple[Expr, ...], mask: Scalar) -> Scalar:
            spot = unflatten(at, gradient.shape)
            return cast(builder.read(gradient, spot, indirect=(place,), mask=mask), wide)

        sums = sum_rows(
            builder,
            bags.device,
            Elements(
                count=multiply_all(gradient.shape),
                rows=multiply_all(targets),
                runs=as_expr(1),
                all_rows=False,
                inner=(),
                key=key,
                value=read_gradient,
                dtype=wide,
                checks=lambda flat: (),
            ),
        ).values
        return lambda point: builder.read(sums, (flatten(point, targets),))

    added = scatter_into(
        builder,
        _zeros(builder, bags, gradient),
        gradient.shape,
        lambda point: (placeholder(0), point[1]),
        lambda point: (select(count_elements(point), row(point), const(0, DType.I64)),),
        lambda point: select(
            count_elements(point), cast(builder.read(gradient, point), wide), const(0, wide)
        ),
        "add",
        lambda point: (),
    )
    return lambda point: builder.read(added, point)


def _zeros(builder: Builder, bags: Bags, gradient: TensorValue) -> TensorValue:
    wide = gradient.dtype.compute
    return builder.pointwise((bags.rows, gradient.shape[1]), wide, bags.device, lambda point: const(0, wide))


def _differentiate_samples(builder: Builder, call: Call) -> Value:
    """Return what a bag was given, times the row, summed."""
    gradient, weight = call.tensor("grad"), call.tensor("weight")
    if Mode(call.integer("mode")) is not Mode.SUM or any(as_int(size) == 0 for size in gradient.shape):
        raise NotLowered("a weighted mean or maximum")
    bags = _read_bags(builder, call, weight.shape[0], gradient.shape[0])
    wide, places = gradient.dtype.compute, number_bags(builder, bags)

    def body(point: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
        row = bags.row(builder, point[0])
        bag = cast(builder.read(places, point), DType.I64)
        counted = logical_and(bags.counts(row), lt(bag, index(bags.count)))
        given, own = (
            cast(builder.read(tensor, (placeholder(0), axes[0]), indirect=(at,), mask=counted), wide)
            for tensor, at in ((gradient, bag), (weight, row))
        )
        return mul(given, own)

    (total,) = builder.reduce("sum", (bags.elements,), (gradient.shape[1],), bags.device, body, (wide,))
    assert total is not None
    return builder.pointwise(
        (bags.elements,),
        call.dtype,
        call.device,
        lambda point: to_dtype(builder.read(total, point), call.dtype),
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("embedding_dense_backward"), _dense_backward),
    Rule(overloads("_embedding_bag _embedding_bag_forward_only"), _forward),
    Rule(overloads("_embedding_bag_backward"), _backward),
    Rule(overloads("_embedding_bag_per_sample_weights_backward"), _differentiate_samples),
)
