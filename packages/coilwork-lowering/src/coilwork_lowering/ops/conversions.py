"""Tensors of one element that eager's kernels take for numbers: what does not fit the type of what they are
written to is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Const, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.cross_device_values import recompute_without_memory
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.ops.elementwise import scalar_operand
from coilwork_lowering.scalar_math import both, either, ge, le

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


def conversion_checks(
    builder: Builder, value: Value, dtype: DType
) -> Callable[[tuple[Expr, ...]], Sequence[Check]] | None:
    """Checks that a tensor of one element fits `dtype`; None where all of its type do, or it is known to, and
    of numbers.
    """
    name = _C_NAMES.get(dtype.torch_name)
    if not isinstance(value, TensorValue) or value.dtype is dtype or value.dtype.is_bool or name is None:
        return None
    own, wanted = _range(value.dtype), _range(dtype)
    if own is None or wanted is None or (wanted[0] <= own[0] and own[1] <= wanted[1]):
        return None
    read = builder.read(value, [as_expr(0)] * len(value.shape))
    known = recompute_without_memory(read, builder.buffers.definer, on_cpu=has_trait(value.device, ATEN_CPU))
    # `torch.tensor(-torch.inf)` as written: kernels without checks are fused more freely
    if isinstance(known, Const) and _fits(float(known.value), wanted):
        return None
    low, high = (_inside(bound, value.dtype) for bound in wanted)
    wide = value.dtype.compute

    def checks(point: tuple[Expr, ...]) -> Sequence[Check]:
        number = scalar_operand(builder, value, (), wide)
        fits = both(ge(number, const(low, wide)), le(number, const(high, wide)))
        if wide.is_float:
            # what is infinite, or no number, is so in every type of floats
            fits = either(fits, either(op("isnan", number), op("isinf", number)))
        message = f"value cannot be converted to type {name} without overflow"
        return (Check(condition=fits, message=message, error="RuntimeError"),)

    return checks


def _range(dtype: DType) -> tuple[float, float] | None:
    """The least and the largest number of a type; None for types without an order. Unsigned ones take what
    wraps, too.
    """
    found = getattr(torch, dtype.torch_name)
    if dtype.is_float:
        return -torch.finfo(found).max, torch.finfo(found).max
    if not dtype.is_integer:
        return None
    whole = torch.iinfo(found)
    return (whole.min if whole.min < 0 else -whole.max), whole.max


def _fits(number: float, limits: tuple[float, float]) -> bool:
    return not math.isfinite(number) or limits[0] <= number <= limits[1]


def _inside(bound: float, dtype: DType) -> float:
    """`bound` as a number of `dtype`, which may not reach as far."""
    low, high = _range(dtype) or (-math.inf, math.inf)
    found = min(max(bound, low), high)
    return int(found) if dtype.is_integer else float(found)
