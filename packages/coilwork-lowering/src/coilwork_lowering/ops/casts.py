"""Conversions between types, and checks that a value fits the type that it is converted to.

`fast` numerics keep what an operator computed before it was rounded to its type. A program that converts to
16 bits and goes on in a wider type asks for the rounding itself: it simulates a narrow type, or measures its
error. Such a conversion rounds under all numerics.

Where eager's kernels take a tensor of one element for a number, they refuse values that do not fit the type
they are written to. `make_conversion_checks` gives the run-time check for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.loops import Check
from coilwork_ir.operators import find_target_info
from coilwork_ir.scalar import Const, Scalar, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.cross_device_values import recompute_without_memory
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.facts.alias_analysis import view_source
from coilwork_lowering.ops.elementwise import elementwise, overloads, scalar_operand
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import ge, le, logical_and, logical_or, round_to, to_dtype

# ---- Conversions ----


def _convert(builder: Builder, call: Call) -> Value:
    # no promotion: the value goes from memory's type straight to the result's
    source = call.tensor("a" if "a" in call.arguments else "self")
    narrow = _make_narrowing(call, source)
    return elementwise(builder, call, narrow, operands=[source], compute=[source.dtype])


def _to_copy(builder: Builder, call: Call) -> Value:
    """Return a copy in another type and layout; one of memory to another device is left to the fallback."""
    value = call.tensor("self")
    dtype = call.dtype
    if value.device != call.device:
        again = builder.rematerialize(value, call.device, strides=call.strides(builder))
        if again is None or again.dtype is not dtype:
            raise NotLowered("a copy to another device")
        return again
    narrow = _make_narrowing(call, value)
    return builder.pointwise(
        value.shape,
        dtype,
        value.device,
        lambda point: to_dtype(narrow(builder.read(value, point)), dtype),
        strides=call.strides(builder),
    )


def _make_narrowing(call: Call, source: TensorValue) -> Callable[[Scalar], Scalar]:
    """Return what rounds elements of `source` to the type of the result before they are converted, where that
    is to be seen.
    """
    is_conversion = find_target_info(call.captured_operator).is_conversion
    narrows = call.dtype.is_low_precision and source.dtype.is_float and is_conversion
    if narrows and _is_wider_somewhere(call.node):
        return partial(round_to, narrow=call.dtype)
    return lambda a: a


def _is_wider_somewhere(node: torch.fx.Node) -> bool:
    """Tell whether a call that takes `node`, or a view of it, has a result in a wider float type."""
    narrow = node.meta["val"].dtype
    seen, stack = {node}, [node]
    while stack:
        for user in stack.pop().users:
            result = user.meta.get("val")
            for item in result if isinstance(result, list | tuple) else (result,):
                if not isinstance(item, torch.Tensor):
                    continue
                if item.dtype.is_floating_point and item.dtype.itemsize > narrow.itemsize:
                    return True
            if user not in seen and view_source(user) in seen:
                seen.add(user)
                stack.append(user)
    return False


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("prims.convert_element_type.default"), _convert),
    Rule(overloads("_to_copy"), _to_copy),
)


# ---- Overflow checks ----


# What torch calls a type in the message.
_C_NAMES: Final[Mapping[str, str]] = {
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "float32": "float",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "int32": "int",
}


def make_conversion_checks(
    builder: Builder, value: Value, dtype: DType
) -> Callable[[tuple[Expr, ...]], Sequence[Check]] | None:
    """Return checks that a tensor of one element fits `dtype`; None for numbers, and where every value is
    known to fit.
    """
    name = _C_NAMES.get(dtype.torch_name)
    if not isinstance(value, TensorValue) or value.dtype is dtype or value.dtype.is_bool or name is None:
        return None
    own, wanted = _number_range(value.dtype), _number_range(dtype)
    if own is None or wanted is None or (wanted[0] <= own[0] and own[1] <= wanted[1]):
        return None
    read = builder.read(value, [as_expr(0)] * len(value.shape))
    known = recompute_without_memory(read, builder.buffers.definer, on_cpu=has_trait(value.device, ATEN_CPU))
    # `torch.tensor(-torch.inf)` as written: kernels without checks are fused more freely
    if isinstance(known, Const) and _is_within_limits(float(known.value), wanted):
        return None
    low, high = (_clamp_to_type(bound, value.dtype) for bound in wanted)
    wide = value.dtype.compute

    def checks(point: tuple[Expr, ...]) -> Sequence[Check]:
        number = scalar_operand(builder, value, (), wide)
        fits = logical_and(ge(number, const(low, wide)), le(number, const(high, wide)))
        if wide.is_float:
            # what is infinite, or no number, is so in every type of floats
            fits = logical_or(fits, logical_or(op("isnan", number), op("isinf", number)))
        message = f"value cannot be converted to type {name} without overflow"
        return (Check(condition=fits, message=message, error="RuntimeError"),)

    return checks


def _number_range(dtype: DType) -> tuple[float, float] | None:
    """Return the least and the largest number of a type; None for types without an order. Unsigned ones take
    what wraps, too.
    """
    result = getattr(torch, dtype.torch_name)
    if dtype.is_float:
        return -torch.finfo(result).max, torch.finfo(result).max
    if not dtype.is_integer:
        return None
    whole = torch.iinfo(result)
    return (whole.min if whole.min < 0 else -whole.max), whole.max


def _is_within_limits(number: float, limits: tuple[float, float]) -> bool:
    return not math.isfinite(number) or limits[0] <= number <= limits[1]


def _clamp_to_type(bound: float, dtype: DType) -> float:
    """`bound` as a number of `dtype`, which may not reach as far."""
    low, high = _number_range(dtype) or (-math.inf, math.inf)
    result = min(max(bound, low), high)
    return int(result) if dtype.is_integer else float(result)
