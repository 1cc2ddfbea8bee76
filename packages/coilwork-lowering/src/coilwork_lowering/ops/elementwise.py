"""How an elementwise operator becomes a `Pointwise` node: promotion, broadcasting, rounding to the result's type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Scalar, const
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.torch_types import dtype_of
from coilwork_lowering.building.values import NumberValue, Relation, TensorValue, Value
from coilwork_lowering.numbers import condition_value
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import index, rounded, rounded_number, to_dtype
from coilwork_lowering.torch_compat.operators import PROMOTION, promoted

ScalarFunction: TypeAlias = Callable[..., Scalar]
Promotion: TypeAlias = PROMOTION

DEFAULT = PROMOTION.DEFAULT
TO_FLOAT = PROMOTION.INT_TO_FLOAT
TO_BOOL = PROMOTION.ALWAYS_BOOL
BOOL_TO_LONG = PROMOTION.BOOL_TO_LONG


def plain(fake: Any) -> Any:
    """A stand-in for promotion: symbolic numbers count by their class only."""
    if isinstance(fake, torch.SymBool):
        return True
    if isinstance(fake, torch.SymInt):
        return 1
    return 1.0 if isinstance(fake, torch.SymFloat) else fake


def compute_type(kind: Promotion, fakes: Sequence[Any]) -> DType:
    """The type that arithmetic on `fakes` is carried out in: at least `f32` for floats."""
    compute, _ = promoted(kind, [plain(fake) for fake in fakes if fake is not None])
    return dtype_of(compute).compute


def scalar_operand(builder: Builder, value: Value, point: tuple[Expr, ...], dtype: DType) -> Scalar:
    """An operand at `point`, broadcast and converted to `dtype`.

    Raises:
        NotLowered: it is no number and no tensor.
    """
    match value:
        case TensorValue():
            return to_dtype(builder.read_broadcast(value, point), dtype)
        case NumberValue(scalar):
            return to_dtype(scalar, dtype)
        case Expr():
            return to_dtype(index(value), dtype)
        case Relation():
            return to_dtype(condition_value(value), dtype)
        case bool() | int() | float():
            if dtype.is_integer and isinstance(value, float):
                if not value.is_integer():
                    raise NotLowered("a fractional operand of an integer computation")
                value = int(value)
            return const(wrapped(value, dtype), dtype)
    raise NotLowered(f"operand {value!r}")


def wrapped(value: bool | int | float, dtype: DType) -> bool | int | float:
    """An integer literal brought into the range of `dtype` as C conversion does."""
    if not dtype.is_integer or isinstance(value, float):
        return value
    bits = 8 * dtype.itemsize
    low = int(value) & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.is_signed_integer and low >> (bits - 1) else low


def narrowed(value: Value, call: Call, names: Sequence[str]) -> Value:
    """A number beside 16-bit floats, rounded to their type as torch does before its kernels on CPUs compare or add.

    Its products and quotients take numbers as they are, and on accelerators everything does.
    """
    common, _ = promoted(PROMOTION.NO_OPMATH, [plain(call.fakes[name]) for name in names])
    narrow = dtype_of(common)
    if narrow not in (DType.F16, DType.BF16) or not call.device.startswith("cpu"):
        return value
    match value:
        case NumberValue(scalar):
            return NumberValue(rounded(scalar, narrow))
        case int() | float():
            return rounded_number(value, narrow)
    return value


def on_device(builder: Builder, values: Sequence[Value], device: str) -> list[Value]:
    """`values` with 0-dimensional tensors of other devices brought to `device`."""
    return [
        builder.moved(v, device) if isinstance(v, TensorValue) and v.device != device else v for v in values
    ]


def elementwise(
    builder: Builder,
    call: Call,
    function: ScalarFunction,
    *,
    operands: Sequence[Value],
    compute: Sequence[DType],
    checks: Callable[[Sequence[Scalar]], Sequence[Check]] | None = None,
) -> TensorValue:
    """`function` of the operands, each converted to its type in `compute`, rounded to the result's type.

    `checks` are of the converted operands.
    """
    moved = on_device(builder, operands, call.device)

    def scalars(point: tuple[Expr, ...]) -> list[Scalar]:
        return [scalar_operand(builder, v, point, t) for v, t in zip(moved, compute, strict=True)]

    return builder.pointwise(
        call.shape(builder),
        call.dtype,
        call.device,
        lambda point: to_dtype(function(*scalars(point)), call.dtype),
        strides=call.strides(builder),
        checks=None if checks is None else lambda point: checks(scalars(point)),
    )


def pointwise_rule(
    targets: str,
    function: ScalarFunction,
    *,
    kind: Promotion = DEFAULT,
    names: Sequence[str] = (),
    floats_only: bool = False,
    narrows: Sequence[str] = (),
) -> Rule:
    """A rule for overloads listed in `targets`, separated by blanks: `"add.Tensor relu"`.

    `names` are the arguments that are operands, by default every tensor and number in the schema's order.
    With `floats_only`, other computation types go to the fallback. Numbers among the arguments `narrows` are
    rounded to the type of the others among them.
    """

    def lower(builder: Builder, call: Call) -> Value:
        chosen = tuple(names) or tuple(call.arguments)
        values = [
            narrowed(call.arguments[name], call, narrows) if name in narrows else call.arguments[name]
            for name in chosen
        ]
        compute = compute_type(kind, [call.fakes[name] for name in chosen])
        if floats_only and not compute.is_float:
            raise NotLowered(f"computation in {compute.text}")
        return elementwise(builder, call, function, operands=values, compute=[compute] * len(values))

    return Rule(overloads(targets), lower)


def overloads(targets: str) -> tuple[str, ...]:
    """`"add.Tensor relu"` as qualified names; no overload means `default`."""
    result = []
    for target in targets.split():
        name = target if "." in target else f"{target}.default"
        result.append(name if name.count(".") == 2 else f"aten.{name}")
    return tuple(result)
