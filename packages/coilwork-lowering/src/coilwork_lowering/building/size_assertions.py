"""Run-time assertions on sizes: the program's own, torch's guards on integers, and those for `squeeze`.

Torch captures `squeeze` of a dimension of unknown size as a dimension that stays. Where the size turns out to
be 1, eager drops the dimension. The captured graph holds for all other sizes and asserts them; the caller
runs the original code where the assertion fails.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.fx_metadata import SQUEEZED_ONE
from coilwork_ir.index import Expr, as_expr, provably_eq, provably_le, provably_lt
from coilwork_ir.loops import AssertSize, Check
from coilwork_ir.loops.nodes import CheckError
from coilwork_ir.scalar import Scalar, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import NumberValue, Relation, Value
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.scalar_math import index
from coilwork_lowering.torch_compat.sizes import (
    find_plain_symbols,
    find_shape_env,
    is_from_data,
    is_surely,
    list_guarded_comparisons,
)

# assertions


TORCH_ASSERTION_PREFIX: Final = "Runtime assertion failed for expression "
_ASSERTION: Final = torch.ops.aten._assert_scalar.default
# each relation as one of the four that the IR has, and whether the sides change places
_FORMS: Final = (
    ("eq", "eq", False),
    ("ne", "ne", False),
    ("lt", "lt", False),
    ("le", "le", False),
    ("gt", "lt", True),
    ("ge", "le", True),
)
_SIGNS: Final[Mapping[str, str]] = MappingProxyType(
    {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
)


def lower_assertion(builder: Builder, condition: Value, message: str, node: torch.fx.Node) -> None:
    """`condition` must hold when the program runs; one that provably holds costs nothing.

    It is no proof that a number which data decides lies within its bounds: torch knows them from assertions
    like this one.

    Raises:
        LoweringError[symbol]: the condition is no comparison of sizes.
    """
    if condition is True:
        return
    if condition is False:
        condition = Relation(lhs=as_expr(0), relation="eq", rhs=as_expr(1))
    if isinstance(condition, Expr):
        condition = Relation(lhs=condition, relation="ne", rhs=as_expr(0))
    if isinstance(condition, NumberValue) and condition.scalar.dtype.is_bool:
        _append_check(builder, condition.scalar, message)
        return
    if not isinstance(condition, Relation):
        raise LoweringError(
            "symbol",
            f"the condition of {node.target} compares no sizes: {condition!r}",
            node=node.format_node() or node.name,
            origins=builder.origins,
            remedy="assert on tensor sizes and on integers made with .item()",
        )
    form, lhs, rhs = _normalize(condition.lhs, condition.relation, condition.rhs)
    if not _holds(form, builder.sizes.strip_asserted_bounds(lhs), builder.sizes.strip_asserted_bounds(rhs)):
        _append(builder, lhs, form, rhs, message)


def assert_guards(builder: Builder, gm: torch.fx.GraphModule) -> None:
    """Append the conditions that torch promises of integers that `gm` is given and that are no tensor's size.

    Calls through Dynamo have passed its guards. Others have not, and kernels that read memory at such an
    integer would read whatever is there: `x[i]` was traced for an `i` below `x.shape[0]`. Sizes of tensors
    are checked with their layouts.
    """
    env = find_shape_env(gm)
    if env is None:
        return
    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    inputs, shown = (
        find_plain_symbols(values),
        find_plain_symbols(
            size for value in values if isinstance(value, torch.Tensor) for size in value.shape
        ),
    )
    numbers = sorted(inputs - shown, key=str)
    for number in numbers:
        ours = builder.sizes.symbol(number, env)
        for lhs, rhs in ((ours.lo, ours), (ours, ours.hi)):
            if lhs is not None and rhs is not None:
                _append(
                    builder, as_expr(lhs), "le", as_expr(rhs), f"compiled for integers with {lhs} <= {rhs}"
                )
    for left, relation, right in list_guarded_comparisons(env, numbers, inputs | shown):
        message = f"compiled for integers with {left} {_SIGNS[relation]} {right}"
        if not (left.is_integer and right.is_integer):
            sides = (builder.sizes.compute(side, env) for side in (left, right))
            _append_check(builder, op(relation, *sides), message)
            continue
        form, lhs, rhs = _normalize(
            builder.sizes.convert(left, env), relation, builder.sizes.convert(right, env)
        )
        if not _holds(form, lhs, rhs):
            _append(builder, lhs, form, rhs, message)


def _normalize(lhs: Expr, relation: str, rhs: Expr) -> tuple[str, Expr, Expr]:
    """One of the four relations that the IR has, and its sides."""
    form, swapped = next((form, swapped) for name, form, swapped in _FORMS if name == relation)
    return (form, rhs, lhs) if swapped else (form, lhs, rhs)


def find_user_equality(number: torch.fx.Node) -> str | None:
    """The user's message for what `number` must equal, if any: torch uses that value from then on."""
    equalities = [user for user in number.users if user.target is operator.eq]
    checks = [check for equality in equalities for check in equality.users if check.target is _ASSERTION]
    texts = [str(check.args[1]) for check in checks]
    return next((text for text in texts if not text.startswith(TORCH_ASSERTION_PREFIX)), None)


def lower_divisor(builder: Builder, divisor: Value, message: str) -> None:
    """`divisor`, if it is an integer, must not be 0, or `message` is raised as Python's own error."""
    if isinstance(divisor, Expr):
        lower_nonzero(builder, divisor, message, "ZeroDivisionError")


def lower_nonzero(builder: Builder, number: Expr, message: str, error: CheckError) -> None:
    """`number` must not be 0 when the program runs, or `message` is raised as `error`."""
    if _holds("ne", number, as_expr(0)):
        return
    if error == "RuntimeError":
        _append(builder, number, "ne", as_expr(0), message)
    else:
        _append_check(builder, op("ne", index(number), index(as_expr(0))), message, error=error)


def _append_check(
    builder: Builder, condition: Scalar, message: str, *, error: CheckError = "RuntimeError"
) -> None:
    """A node of no result but its check, for conditions that are no single comparison of sizes."""
    builder.pointwise(
        (),
        DType.BOOL,
        "cpu",
        lambda point: condition,
        checks=lambda point: (Check(condition=condition, message=message, error=error),),
    )


def _append(builder: Builder, lhs: Expr, form: str, rhs: Expr, message: str) -> None:
    for relation in ("eq", "ne", "lt", "le"):
        if relation == form:
            builder.add(
                AssertSize(lhs=lhs, relation=relation, rhs=rhs, message=message, origins=builder.origins)
            )


def _holds(form: str, lhs: Expr, rhs: Expr) -> bool:
    match form:
        case "eq":
            return provably_eq(lhs, rhs)
        case "le":
            return provably_le(lhs, rhs)
        case "lt":
            return provably_lt(lhs, rhs)
    return provably_lt(lhs, rhs) or provably_lt(rhs, lhs)


# squeeze


aten: Final = torch.ops.aten
_SQUEEZES: Final = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)


def squeeze_decompositions() -> dict[Any, Callable[..., Any]]:
    """`squeeze` as it is, behind the assertion."""
    return dict.fromkeys(_SQUEEZES, _squeeze)


def _squeeze(value: torch.Tensor, dims: int | Sequence[int] | None = None) -> Any:
    for size in _find_squeezed(value, dims):
        if not is_surely(size != 1):
            _ASSERTION(size != 1, SQUEEZED_ONE)
    return NotImplemented


def _find_squeezed(value: torch.Tensor, dims: int | Sequence[int] | None = None) -> list[torch.SymInt]:
    """Return the sizes from data that `squeeze` is asked to drop if they are 1."""
    chosen = range(value.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    sizes: list[Any] = [value.shape[k] for k in chosen if value.dim() > 0]
    return [size for size in sizes if is_from_data(size)]


def is_squeezed_size_assertion(node: torch.fx.Node) -> bool:
    """Tell if `node` is that assertion."""
    return node.target is _ASSERTION and node.args[1] == SQUEEZED_ONE


def has_squeezed_size_assertion(node: torch.fx.Node) -> bool:
    """Tell whether `node` is that assertion, or calls a graph that holds it."""
    whole = node.graph.owning_module
    if whole is None or node.op != "call_function":
        return False
    called = (
        whole.get_submodule(str(operand.target))
        for operand in node.all_input_nodes
        if _is_graph(whole, operand)
    )
    return is_squeezed_size_assertion(node) or any(
        has_squeezed_size_assertion(inner)
        for part in called
        if isinstance(part, torch.fx.GraphModule)
        for inner in part.graph.nodes
    )


def _is_graph(whole: torch.nn.Module, operand: torch.fx.Node) -> bool:
    return operand.op == "get_attr" and isinstance(getattr(whole, str(operand.target), None), torch.nn.Module)


def drop_squeezed_sizes(backward: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Drop assertions of squeezed sizes, which the forward graph makes, from `backward`; return it."""
    for node in backward.graph.nodes:
        if is_squeezed_size_assertion(node):
            backward.graph.erase_node(node)
    return backward
