"""Tensors made of sizes and numbers: `full`, `empty`, `arange`, `eye`, `linspace` and `logspace`.

`linspace` and `logspace` are lowered in 16 bits only. There eager's kernels round the step between two
numbers, and most kernels round every position as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.scalar import Scalar, cast, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.ops.elementwise import bring_to_device, overloads, scalar_operand
from coilwork_lowering.ops.storage_aliasing import is_filled_by_calls, is_filled_by_updates
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, div, eq, index, lt, mul, round_to, select, sub, to_dtype

# ---- Constants and ranges ----


def fill_tensor(builder: Builder, call: Call, value: Value) -> TensorValue:
    """Return the result's shape full of `value`."""
    if call.dtype.is_opaque:
        raise NotLowered(f"values of type {call.dtype.text}")
    number = scalar_operand(builder, value, (), call.dtype)
    return builder.pointwise(
        call.shape(builder), call.dtype, call.device, lambda point: number, strides=call.strides(builder)
    )


def _make_fill_rule(name: str) -> Rule:
    def lower(builder: Builder, call: Call) -> Value:
        return fill_tensor(builder, call, call[name])

    targets = {"fill_value": "full full_like new_full", "s": "scalar_tensor"}[name]
    return Rule(overloads(targets), lower)


def _constant(number: int, targets: str) -> Rule:
    def lower(builder: Builder, call: Call) -> Value:
        return fill_tensor(builder, call, number)

    return Rule(overloads(targets), lower)


def _lower_empty(builder: Builder, call: Call) -> Value:
    """Return memory with any contents. Where parts are stored into it one by one, or a call stores into it,
    none is stored before."""
    if is_filled_by_calls(call.node):
        return builder.allocate(
            call.shape(builder), call.dtype, call.device, strides=builder.result_strides(call.fake)
        )
    if call.dtype.is_opaque or not is_filled_by_updates(call.node, builder.options):
        return fill_tensor(builder, call, 0)
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


def lower_fill(builder: Builder, call: Call) -> TensorValue:
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
    return fill_tensor(builder, call, value)


# ---- linspace and logspace ----


_OVERLOADS: Final = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


def _lower_linspace(builder: Builder, call: Call) -> Value:
    """Return numbers counted from `start` in the first half, and back from `end` in the second; a single one
    is `start`.
    """
    single = cast(_read_end(builder, call, "start"), DType.F32)
    return _lower_spaced_numbers(builder, call, lambda number: number, single, rounds=True)


def _lower_logspace(builder: Builder, call: Call) -> Value:
    """Return `base` to the power of evenly spaced numbers.

    On CPUs the ends and their distance alone are rounded; elsewhere everything is, the base, too.
    """
    on_cpu = has_trait(call.device, ATEN_CPU)
    base = scalar_operand(builder, call.arguments.get("base", 10.0), (), DType.F64)
    known = op("pow", base, _read_end(builder, call, "start"))

    def power(exponent: Scalar) -> Scalar:
        if on_cpu:
            return op("pow", base, cast(exponent, DType.F64))
        return op("pow", round_to(cast(base, DType.F32), call.dtype), exponent)

    return _lower_spaced_numbers(builder, call, power, known, rounds=not on_cpu)


def _lower_spaced_numbers(
    builder: Builder, call: Call, function: Callable[[Scalar], Scalar], single: Scalar, *, rounds: bool
) -> Value:
    """`function` of each number; `single` is the only element of one step. `rounds` says whether steps and
    positions are rounded.
    """
    dtype, wide = call.dtype, DType.F32
    if dtype.torch_name not in ("float16", "bfloat16"):
        raise NotLowered("numbers of more than 16 bits")
    (count,) = call.shape(builder)

    def narrow(number: Scalar) -> Scalar:
        return round_to(number, dtype)

    def round_step(number: Scalar) -> Scalar:
        return narrow(number) if rounds else number

    def times(step: Scalar, position: Expr) -> Scalar:
        return round_step(mul(step, round_step(cast(index(position), wide))))

    start, end = (narrow(cast(_read_end(builder, call, name), wide)) for name in ("start", "end"))
    step = round_step(div(narrow(sub(end, start)), round_step(cast(index(count - 1), wide))))

    def body(point: tuple[Expr, ...]) -> Scalar:
        (at,) = point
        forward, backward = add(start, times(step, at)), sub(end, times(step, count - 1 - at))
        result = function(round_step(select(lt(index(at), index(count // 2)), forward, backward)))
        alone = eq(index(count), index(as_expr(1)))
        return to_dtype(select(alone, cast(single, result.dtype), result), dtype)

    return builder.pointwise(call.shape(builder), dtype, call.device, body)


def _read_end(builder: Builder, call: Call, name: str) -> Scalar:
    """Return an end, a number or a tensor of one element, in double precision."""
    (value,) = bring_to_device(builder, [call[name]], call.device)
    return scalar_operand(builder, value, (), DType.F64)


def _list_spaced_overloads(name: str) -> tuple[str, ...]:
    return overloads(" ".join(f"{name}.{overload}" for overload in _OVERLOADS))


RULES: Final[tuple[Rule, ...]] = (
    _make_fill_rule("fill_value"),
    _make_fill_rule("s"),
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
    Rule(overloads("fill.Scalar fill.Tensor"), lower_fill),
    Rule(overloads("arange arange.start arange.start_step"), _arange),
    Rule(overloads("prims.iota.default"), _iota),
    Rule(overloads("eye eye.m"), _eye),
    Rule(_list_spaced_overloads("linspace"), _lower_linspace),
    Rule(_list_spaced_overloads("logspace"), _lower_logspace),
)
