"""`_foreach_*`: one call of the single-tensor operator per tensor, so that fusion sees them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.facts.operand_checks import has_valid_types
from coilwork_lowering.facts.scalar_overflow import has_valid_numbers
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule
from coilwork_lowering.torch_compat.operators import Overload

# `_foreach_` overload -> the operator it stands for
_UNARY: Final = (
    "abs neg exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan tanh sigmoid sign floor "
    "ceil round trunc "
    "erf erfc lgamma acos asin atan cosh sinh"
)
_BINARY: Final = (
    ("add", "add", "other"),
    ("sub", "sub", "other"),
    ("mul", "mul", "other"),
    ("div", "div", "other"),
)
_EXTREMES: Final = (
    ("maximum", "clamp_min"),
    ("minimum", "clamp_max"),
    ("clamp_min", "clamp_min"),
    ("clamp_max", "clamp_max"),
)


def _lower_each(
    builder: Builder,
    call: Call,
    lower: Lower,
    target: str,
    arguments: Mapping[str, Any],
    fakes: Mapping[str, Any],
) -> Value:
    """Call `lower` once per result; list arguments give their k-th item, others are shared.

    Raises:
        NotLowered: the operator refuses one of them.
    """
    operator = _operator(target)
    results: list[Value] = []
    for k, fake in enumerate(call.result):
        single = Call(
            node=call.node,
            target=target,
            arguments={n: _item(v, k) for n, v in arguments.items()},
            fakes={n: _item(v, k) for n, v in fakes.items()},
            result=fake,
            updates=call.updates,
        )
        if not has_valid_types(operator, single.fakes) or not has_valid_numbers(operator, single.fakes):
            raise NotLowered("operands that the operator refuses")
        results.append(lower(builder, single))
    return tuple(results)


def _operator(target: str) -> Overload:
    _, name, overload = target.split(".")
    result = getattr(getattr(torch.ops.aten, name), overload)
    assert isinstance(result, Overload)
    return result


def _item(value: Any, k: int) -> Any:
    return value[k] if isinstance(value, list | tuple) else value


def make_foreach_rule(
    table: Mapping[str, Rule], name: str, target: str, renames: Mapping[str, str], extra: Mapping[str, Any]
) -> Rule:
    """`_foreach` overload `name` as calls of `target`, arguments renamed, `extra` ones added
    where missing.
    """
    single = table[target].lower

    def lower(builder: Builder, call: Call) -> Value:
        if not isinstance(call.result, list | tuple):
            raise NotLowered("a foreach operator without results")
        arguments = {renames.get(n, n): v for n, v in call.arguments.items()}
        fakes = {renames.get(n, n): v for n, v in call.fakes.items()}
        # operands are taken in the order of the arguments, so what is missing goes last
        missing = {n: v for n, v in extra.items() if n not in arguments}
        return _lower_each(builder, call, single, target, {**arguments, **missing}, {**fakes, **missing})

    return Rule((f"aten._foreach_{name}",), lower)


def make_foreach_rules(table: Mapping[str, Rule]) -> tuple[Rule, ...]:
    """Rules for the foreach operators, from the rules of the operators that they repeat."""
    none: Mapping[str, str] = MappingProxyType({})
    rows: list[Rule] = [
        make_foreach_rule(table, f"{n}.default", f"aten.{n}.default", none, {}) for n in _UNARY.split()
    ]
    for name, single, _ in _BINARY:
        extra: dict[str, Any] = {"alpha": 1} if name in ("add", "sub") else {}
        base = f"aten.{single}.Tensor"
        rows += [
            make_foreach_rule(table, f"{name}.List", base, none, extra),
            make_foreach_rule(table, f"{name}.Scalar", base, {"scalar": "other"}, extra),
            make_foreach_rule(table, f"{name}.ScalarList", base, {"scalars": "other"}, extra),
        ]
        if name != "sub":
            rows.append(make_foreach_rule(table, f"{name}.Tensor", base, none, extra))
    for name, single in _EXTREMES:
        limit = "min" if single == "clamp_min" else "max"
        rows += [
            make_foreach_rule(table, f"{name}.List", f"aten.{single}.Tensor", {"other": limit}, {}),
            make_foreach_rule(table, f"{name}.Scalar", f"aten.{single}.default", {"scalar": limit}, {}),
        ]
    for name in ("addcmul", "addcdiv"):
        base = f"aten.{name}.default"
        rows += [
            make_foreach_rule(table, f"{name}.Scalar", base, none, {}),
            make_foreach_rule(table, f"{name}.ScalarList", base, {"scalars": "value"}, {}),
        ]
    rows += [
        make_foreach_rule(
            table, "lerp.List", "aten.lerp.Tensor", {"tensors1": "end", "weights": "weight"}, {}
        ),
        make_foreach_rule(table, "lerp.Scalar", "aten.lerp.Scalar", {"tensors1": "end"}, {}),
        make_foreach_rule(table, "pow.Scalar", "aten.pow.Tensor_Scalar", none, {}),
        make_foreach_rule(table, "pow.List", "aten.pow.Tensor_Tensor", none, {}),
        make_foreach_rule(table, "pow.ScalarAndTensor", "aten.pow.Scalar", none, {}),
    ]
    return tuple(rows)
