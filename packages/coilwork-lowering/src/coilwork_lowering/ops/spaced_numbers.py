"""`linspace` and `logspace` in 16 bits, where eager's kernels round the step between two numbers, and most
round every position, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.scalar import Scalar, cast, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.ops.elementwise import bring_to_device, overloads, scalar_operand
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, div, eq, index, lt, mul, round_to, select, sub, to_dtype

_OVERLOADS: Final = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


def _lower_linspace(builder: Builder, call: Call) -> Value:
    """Numbers from `start` on in the first half, and back from `end` in the second; a single one
    is `start`.
    """
    single = cast(_end(builder, call, "start"), DType.F32)
    return _numbers(builder, call, lambda number: number, single, rounds=True)


def _powers(builder: Builder, call: Call) -> Value:
    """`base` to the power of such numbers.

    On CPUs the ends and their distance alone are rounded; elsewhere everything is, the base, too.
    """
    on_cpu = has_trait(call.device, ATEN_CPU)
    base = scalar_operand(builder, call.arguments.get("base", 10.0), (), DType.F64)
    known = op("pow", base, _end(builder, call, "start"))

    def power(exponent: Scalar) -> Scalar:
        if on_cpu:
            return op("pow", base, cast(exponent, DType.F64))
        return op("pow", round_to(cast(base, DType.F32), call.dtype), exponent)

    return _numbers(builder, call, power, known, rounds=not on_cpu)


def _numbers(
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

    def kept(number: Scalar) -> Scalar:
        return narrow(number) if rounds else number

    def times(step: Scalar, position: Expr) -> Scalar:
        return kept(mul(step, kept(cast(index(position), wide))))

    start, end = (narrow(cast(_end(builder, call, name), wide)) for name in ("start", "end"))
    step = kept(div(narrow(sub(end, start)), kept(cast(index(count - 1), wide))))

    def body(point: tuple[Expr, ...]) -> Scalar:
        (at,) = point
        forward, backward = add(start, times(step, at)), sub(end, times(step, count - 1 - at))
        found = function(kept(select(lt(index(at), index(count // 2)), forward, backward)))
        alone = eq(index(count), index(as_expr(1)))
        return to_dtype(select(alone, cast(single, found.dtype), found), dtype)

    return builder.pointwise(call.shape(builder), dtype, call.device, body)


def _end(builder: Builder, call: Call, name: str) -> Scalar:
    """An end, a number or a tensor of one element, in double precision."""
    (value,) = bring_to_device(builder, [call[name]], call.device)
    return scalar_operand(builder, value, (), DType.F64)


def _all(name: str) -> tuple[str, ...]:
    return overloads(" ".join(f"{name}.{overload}" for overload in _OVERLOADS))


RULES: Final[tuple[Rule, ...]] = (
    Rule(_all("linspace"), _lower_linspace),
    Rule(_all("logspace"), _powers),
)
