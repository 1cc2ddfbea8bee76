"""Tensors made from nothing but sizes and numbers."""

from __future__ import annotations

from typing import Final

from coilwork_ir.index import Expr
from coilwork_ir.scalar import Scalar, cast, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.ops.elementwise import overloads, scalar_operand
from coilwork_lowering.ops.placing import begins_filling
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, index, mul, to_dtype


def filled(builder: Builder, call: Call, value: Value) -> TensorValue:
    """The result's shape full of `value`."""
    if call.dtype.is_opaque:
        raise NotLowered(f"values of type {call.dtype.text}")
    number = scalar_operand(builder, value, (), call.dtype)
    return builder.pointwise(
        call.shape(builder), call.dtype, call.device, lambda point: number, strides=call.strides(builder)
    )


def _full(name: str) -> Rule:
    def lower(builder: Builder, call: Call) -> Value:
        return filled(builder, call, call[name])

    targets = {"fill_value": "full full_like new_full", "s": "scalar_tensor"}[name]
    return Rule(overloads(targets), lower)


def _constant(number: int, targets: str) -> Rule:
    def lower(builder: Builder, call: Call) -> Value:
        return filled(builder, call, number)

    return Rule(overloads(targets), lower)


def _lower_empty(builder: Builder, call: Call) -> Value:
    """Any content is right. Where parts are stored into the memory one by one, none is stored before."""
    if call.dtype.is_opaque or not begins_filling(call.node, builder.options):
        return filled(builder, call, 0)
    return builder.allocate(call.shape(builder), call.dtype, call.device)


def _arange(builder: Builder, call: Call) -> Value:
    start, step = call.arguments.get("start", 0), call.arguments.get("step", 1)
    dtype = call.dtype
    # torch counts in the accumulation type: i64 for integers, f64 on the CPU and f32 elsewhere for floats
    if dtype.is_integer:
        first = scalar_operand(builder, start, (), dtype)
        stride = scalar_operand(builder, step, (), dtype)
        body_type = dtype
    elif dtype.is_float:
        body_type = dtype.compute
        first = scalar_operand(builder, start, (), body_type)
        stride = scalar_operand(builder, step, (), body_type)
    else:
        raise NotLowered("arange of booleans")

    def body(point: tuple[Expr, ...]) -> Scalar:
        return to_dtype(add(first, mul(to_dtype(index(point[0]), body_type), stride)), dtype)

    return builder.pointwise(call.shape(builder), dtype, call.device, body)


def _iota(builder: Builder, call: Call) -> Value:
    start, step = call["start"], call["step"]
    dtype = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        return cast(index(point[0] * step + start), dtype)

    return builder.pointwise(call.shape(builder), dtype, call.device, body)


def _eye(builder: Builder, call: Call) -> Value:
    dtype = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        return to_dtype(op("eq", index(point[0]), index(point[1])), dtype)

    return builder.pointwise(call.shape(builder), dtype, call.device, body)


def filled_like(builder: Builder, call: Call) -> TensorValue:
    """`fill`: every element becomes `value`, a number or a tensor of one element."""
    value = call["value"]
    if isinstance(value, TensorValue):
        source = builder.move_to(value, call.device)
        return builder.pointwise(
            call.shape(builder),
            call.dtype,
            call.device,
            lambda point: to_dtype(builder.read(source, ()), call.dtype),
            strides=call.strides(builder),
        )
    return filled(builder, call, value)


RULES: Final[tuple[Rule, ...]] = (
    _full("fill_value"),
    _full("s"),
    # autograd's zeros without memory: kept while a graph is traced, since 0 times infinity is 0 there
    _constant(0, "zeros zeros_like new_zeros zero _efficientzerotensor"),
    _constant(1, "ones ones_like new_ones"),
    Rule(
        overloads(
            "empty.memory_format empty_like new_empty empty_strided new_empty_strided empty_permuted "
            "prims.empty_strided.default"
        ),
        _lower_empty,
    ),
    Rule(overloads("fill.Scalar fill.Tensor"), filled_like),
    Rule(overloads("arange arange.start arange.start_step"), _arange),
    Rule(overloads("prims.iota.default"), _iota),
    Rule(overloads("eye eye.m"), _eye),
)
