"""Integers divided by 0: eager's kernels for CPUs refuse it, those for accelerators do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, provably_lt
from coilwork_ir.loops import Check
from coilwork_ir.operators import find_target_info
from coilwork_ir.scalar import Scalar, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.rules import Call
from coilwork_lowering.scalar_math import either, eq, index, like


def divisor_checks(
    builder: Builder, call: Call, compute: DType
) -> Callable[[Sequence[Scalar]], Sequence[Check]] | None:
    """Checks of the operands of a division that is computed in `compute`; None if the divisor cannot be 0."""
    divisor = call["other"]
    # what torch decomposes into divisions asks of no divisor of its own making whether it is 0
    captured = find_target_info(call.captured)
    refused = compute.is_integer and has_trait(call.device, ATEN_CPU) and captured.rejects_zero_divisor
    if not refused or _is_never_0(divisor, compute):
        return None
    # Eager looks at a divisor when it divides something.
    own = divisor.shape if isinstance(divisor, TensorValue) else ()
    spread = (size for size in call.shape(builder) if size not in own)
    empty = [eq(index(size), index(as_expr(0))) for size in spread if not provably_lt(as_expr(0), size)]

    def checks(operands: Sequence[Scalar]) -> Sequence[Check]:
        condition = reduce(either, empty, op("ne", operands[1], like(0, operands[1])))
        return (Check(condition=condition, message="ZeroDivisionError", error="RuntimeError"),)

    return checks


def _is_never_0(divisor: Value, compute: DType) -> bool:
    """Tell if `divisor` is not 0 in `compute`, to which a number that does not fit is cut: 256 is 0 in 8
    bits.
    """
    values = 1 << (8 * compute.itemsize)
    if isinstance(divisor, Expr):
        is_cut = compute.itemsize < 8 and not (
            provably_lt(divisor, as_expr(values)) and provably_lt(as_expr(-values), divisor)
        )
        return not is_cut and (provably_lt(as_expr(0), divisor) or provably_lt(divisor, as_expr(0)))
    return isinstance(divisor, bool | int | float) and int(divisor) % values != 0
