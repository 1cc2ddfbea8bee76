"""Lower an elementwise operator to a `Pointwise` node: promotion, broadcasting, rounding to the result's
type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Scalar, const
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import NumberValue, Relation, TensorValue, Value, get_dtype
from coilwork_lowering.python_arithmetic import lower_condition
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import index, round_to, to_dtype
from coilwork_lowering.torch_compat.operators import PROMOTION, promote_types

ScalarFunction: TypeAlias = Callable[..., Scalar]
Promotion: TypeAlias = PROMOTION
Rounds: TypeAlias = Literal["never", "on CPUs", "on accelerators", "always"]

DEFAULT = PROMOTION.DEFAULT
TO_FLOAT = PROMOTION.INT_TO_FLOAT
TO_BOOL = PROMOTION.ALWAYS_BOOL
BOOL_TO_LONG = PROMOTION.BOOL_TO_LONG


def strip_symbols(fake: Any) -> Any:
    """Return a stand-in for promotion: symbolic numbers count by their class only."""
    if isinstance(fake, torch.SymBool):
        return True
    if isinstance(fake, torch.SymInt):
        return 1
    return 1.0 if isinstance(fake, torch.SymFloat) else fake


def compute_type(kind: Promotion, fakes: Sequence[Any]) -> DType:
    """Return the type that arithmetic on `fakes` is carried out in: at least `f32` for floats."""
    compute, _ = promote_types(kind, [strip_symbols(fake) for fake in fakes if fake is not None])
    return get_dtype(compute).compute


def common_type(fakes: Sequence[Any]) -> DType:
    """Return the type that torch promotes `fakes` to."""
    _, common = promote_types(DEFAULT, [strip_symbols(fake) for fake in fakes if fake is not None])
    return get_dtype(common)


def scalar_operand(builder: Builder, value: Value, point: tuple[Expr, ...], dtype: DType) -> Scalar:
    """Return an operand at `point`, broadcast and converted to `dtype`.

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
            return to_dtype(lower_condition(value), dtype)
        case bool() | int() | float():
            if dtype.is_integer and isinstance(value, float):
                if not value.is_integer():
                    raise NotLowered("a fractional operand of an integer computation")
                value = int(value)
            return const(wrap_literal(value, dtype), dtype)
    raise NotLowered(f"operand {value!r}")


def wrap_literal(value: bool | int | float, dtype: DType) -> bool | int | float:
    """Return an integer literal brought into the range of `dtype` as C conversion does."""
    if not dtype.is_integer or isinstance(value, float):
        return value
    bits = 8 * dtype.itemsize
    low = int(value) & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.is_signed_integer and low >> (bits - 1) else low


def bring_to_device(builder: Builder, values: Sequence[Value], device: str) -> list[Value]:
    """`values` with 0-dimensional tensors of other devices brought to `device`."""
    return [
        builder.move_to(v, device) if isinstance(v, TensorValue) and v.device != device else v for v in values
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
    moved = bring_to_device(builder, operands, call.device)

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


def promote_operands(
    function: ScalarFunction, operands: Sequence[Value], common: DType, *, but: Sequence[Value] = ()
) -> ScalarFunction:
    """`function` of operands that torch brings to their `common` type first: numbers, and tensors of other
    types, are rounded to it.

    Those in `but` are not.
    """
    there = [
        (isinstance(value, TensorValue) and value.dtype is common) or any(value is item for item in but)
        for value in operands
    ]

    def apply(*given: Scalar) -> Scalar:
        pairs = zip(given, there, strict=True)
        return function(*(a if is_there else round_to(a, common) for a, is_there in pairs))

    return apply


def is_single(value: Value) -> bool:
    """Tell whether an operand is one number or one element: as the right one of a product or quotient,
    torch's kernels for CPUs take it as it is.
    """
    return not isinstance(value, TensorValue) or all(as_int(size) == 1 for size in value.shape)


def _is_number(value: Value, device: str) -> bool:
    """Tell if torch's kernels get an operand as a number: on accelerators that is a tensor of the
    CPU, too.
    """
    return not isinstance(value, TensorValue) or value.device != device


def pointwise_rule(
    targets: str,
    function: ScalarFunction,
    *,
    kind: Promotion = DEFAULT,
    names: Sequence[str] = (),
    floats_only: bool = False,
    rounds: Rounds = "never",
    single: str = "",
    silent: Sequence[str] = (),
    on_cpus: ScalarFunction | None = None,
    by_number: ScalarFunction | None = None,
) -> Rule:
    """Return a rule for overloads listed in `targets`, separated by blanks: `"add.Tensor relu"`.

    `names` are the arguments that are operands, by default every tensor and number in the schema's order.
    With `floats_only`, other computation types go to the fallback. `rounds` says where torch's kernels get
    numbers among the operands in the tensors' type, and not in the type that they compute in. Tensors of
    other types are always brought to it, but on CPUs for the operand `single` where it is one element. The
    operands `silent` have no say in the type. `on_cpus` is what torch's kernels for CPUs compute, where that
    differs; `by_number` what those for accelerators do of floats where `single` is a number, which matters to
    the bits that `numerics="eager"` promises.
    """
    rounding_on = {"never": (), "on CPUs": (True,), "on accelerators": (False,), "always": (True, False)}[
        rounds
    ]

    def lower(builder: Builder, call: Call) -> Value:
        chosen = tuple(names) or tuple(call.arguments)
        values = [call.arguments[name] for name in chosen]
        fakes = [call.fakes[name] for name in chosen if name not in silent]
        compute = compute_type(kind, fakes)
        if floats_only and not compute.is_float:
            raise NotLowered(f"computation in {compute.text}")
        on_cpu = has_trait(call.device, ATEN_CPU)
        rounding = on_cpu in rounding_on
        chosen_function = on_cpus if on_cpu and on_cpus is not None else function
        eager = builder.options.numerics == "eager" and not on_cpu and compute.is_float
        if by_number is not None and eager and _is_number(call[single], call.device):
            chosen_function = by_number
        common = common_type(fakes)
        taken = [value for value in values if not rounding and _is_number(value, call.device)]
        if single and on_cpu and is_single(call[single]):
            taken.append(call[single])
        apply = promote_operands(chosen_function, values, common, but=taken)
        return elementwise(builder, call, apply, operands=values, compute=[compute] * len(values))

    return Rule(overloads(targets), lower)


def overloads(targets: str) -> tuple[str, ...]:
    """`"add.Tensor relu"` as qualified names; no overload means `default`."""
    result = []
    for target in targets.split():
        name = target if "." in target else f"{target}.default"
        result.append(name if name.count(".") == 2 else f"aten.{name}")
    return tuple(result)
