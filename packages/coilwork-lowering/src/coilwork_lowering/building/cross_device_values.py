"""Values on another device than the node that reads them: recomputed there, or copied.

`torch.tensor(0.5)` and `torch.arange(n).to(x.device)` are on the CPU as written. Values made of numbers,
sizes and positions by exact operations are recomputed where they are read, and cost neither a kernel nor a
copy. Approximate operations, such as the root in `torch.sqrt(torch.tensor(64.0))`, differ between devices; of
numbers alone torch computes them here, as eager would.

A number that Python reads from a tensor (`item()`) stays on its device until a node on another one computes
with it. `move_scalars_to_reader` then copies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from itertools import chain
from typing import Any, Final, TypeAlias

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import measure_tree
from coilwork_ir.interpretation.ops import apply_op, literal
from coilwork_ir.loops import Check, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    const,
    iterate_postorder,
    list_loads,
    load,
    rewrite,
    substitute_ranges,
)

# recomputation


# Operations with one exact result on every device; others are approximated, differently on each.
_EXACT: Final = frozenset(
    {
        *("cast", "where", "add", "sub", "mul", "neg", "abs", "minimum", "maximum", "isnan"),
        *("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
    }
)
# Operations that are exact for these types.
_EXACT_OF_INTEGERS: Final = frozenset({"floordiv", "truncdiv", "mod"})
_EXACT_OF_F64: Final = frozenset({"div", "sqrt"})
# Most scalar nodes of a value that is worth recomputing, and most nodes of its index expressions.
_MOST: Final = 64
_MOST_OF_INDEX: Final = 256


def recompute_without_memory(
    value: Scalar, definer: Callable[[str], Node | None], *, on_cpu: bool
) -> Scalar | None:
    """`value` with its loads replaced by the scalars that the loaded nodes compute.

    None if some of it is only in memory, inexact, or too long. `on_cpu`: eager computes it on a CPU.
    """
    while accesses := list_loads((value,)):
        bodies: dict[Scalar, Scalar] = {}
        for access in accesses:
            body = _find_defining_body(access, definer(access.buffer))
            if body is None:
                return None
            bodies[access] = body
        value = _replace_load(value, bodies)
        if on_cpu:
            (value,) = rewrite((value,), _fold_constants)
        # what is approximated may turn out to be so of numbers
        if _is_long(value) or not (on_cpu or _is_exact(value)):
            return None
    return value if _is_exact(value) else None


def _is_long(value: Scalar) -> bool:
    """Tell if `value` takes more to compute than it is worth, or its index arithmetic does."""
    nodes = tuple(iterate_postorder((value,)))
    places = (node.index for node in nodes if isinstance(node, Load))
    numbers = (node.expr for node in nodes if isinstance(node, IndexValue))
    written = sum(measure_tree(expr).nodes for expr in chain(numbers, *places))
    return len(nodes) > _MOST or written > _MOST_OF_INDEX


def _find_defining_body(access: Load, node: Node | None) -> Scalar | None:
    """Return the scalar that `node` computes at the place of `access`; None unless it is plain and
    pointwise.
    """
    if not isinstance(node, Pointwise) or node.into is not None or node.checks:
        return None
    if access.indirect or access.mask is not None:
        return None
    (body,) = substitute_ranges((node.body,), dict(zip(node.ranges, access.index, strict=True)))
    return body


def _replace_load(value: Scalar, bodies: Mapping[Scalar, Scalar]) -> Scalar:
    (replaced,) = rewrite((value,), lambda node: bodies.get(node, node))
    return replaced


def _fold_constants(node: Scalar) -> Scalar:
    """Fold an operation on constants as torch computes it."""
    if not isinstance(node, Op) or not all(isinstance(operand, Const) for operand in node.operands):
        return node
    numbers = [
        literal(operand.value, operand.dtype) for operand in node.operands if isinstance(operand, Const)
    ]
    return const(apply_op(node.op, numbers, node.dtype).item(), node.dtype) if numbers else node


def _is_exact(value: Scalar) -> bool:
    nodes = tuple(iterate_postorder((value,)))
    return len(nodes) <= _MOST and all(
        isinstance(node, Const | IndexValue | Load) or (isinstance(node, Op) and _has_one_result(node))
        for node in nodes
    )


def _has_one_result(node: Op) -> bool:
    return (
        node.op in _EXACT
        or (node.op in _EXACT_OF_INTEGERS and node.dtype.is_integer)
        or (node.op in _EXACT_OF_F64 and node.dtype is DType.F64)
    )


# scalar transfer


_Computing: TypeAlias = Pointwise | Reduce | Scan | Sort | Scatter


def move_scalars_to_reader(
    node: Node, device_of: Callable[[str], str], move: Callable[[str, str], Buffer]
) -> Node:
    """`node` with every read from another device's buffer replaced by one from `move(buffer, device)`."""
    if not isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
        return node
    device = _device(node)
    values = {name: value for name, value in _scalars_by_field(node).items() if value}
    away = {
        access.buffer
        for access in list_loads([scalar for value in values.values() for scalar in value])
        if device_of(access.buffer) != device
    }
    if not away:
        return node
    nearby = {name: move(name, device).name for name in sorted(away)}

    def visit(value: Scalar) -> Scalar:
        if not isinstance(value, Load) or value.buffer not in nearby:
            return value
        return load(
            nearby[value.buffer],
            value.index,
            value.dtype,
            indirect=value.indirect,
            mask=value.mask,
            other=value.other,
        )

    changed: dict[str, Any] = {}
    for name, value in values.items():
        rewritten = rewrite(value, visit)
        if name == "checks":
            changed[name] = tuple(
                Check(condition=condition, message=check.message, error=check.error)
                for check, condition in zip(node.checks, rewritten, strict=True)
            )
        else:
            changed[name] = rewritten if name in ("indirect", "others") else rewritten[0]
    return replace(node, **changed)


def _device(node: _Computing) -> str:
    if isinstance(node, Pointwise | Scatter):
        return node.output.device
    return next(output.device for output in node.outputs if output is not None)


def _scalars_by_field(node: _Computing) -> dict[str, tuple[Scalar, ...]]:
    """Return the scalars that `node` computes, by field."""
    scalars: dict[str, tuple[Scalar, ...]] = {"checks": tuple(check.condition for check in node.checks)}
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name in ("body", "value", "mask") and value is not None:
            scalars[field.name] = (value,)
        elif field.name in ("indirect", "others"):
            scalars[field.name] = tuple(value)
    return scalars
