"""Numbers in tensors on another device than the node that computes with them.

A number that Python reads from a tensor (`item()`) is a value like any other here, and stays where it is
until somebody computes with it. That may be a node on another device, whose kernels do not reach the tensor's
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeAlias

from coilwork_ir.buffers import Buffer
from coilwork_ir.loops import Check, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.scalar import Load, Scalar, load, loads, rewrite

_Computing: TypeAlias = Pointwise | Reduce | Scan | Sort | Scatter


def move_numbers_nearby(
    node: Node, device_of: Callable[[str], str], move: Callable[[str, str], Buffer]
) -> Node:
    """`node`, which reads from `move(buffer, device)` what it read from a buffer on another device than its
    own.
    """
    if not isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
        return node
    device = _device(node)
    values = {name: value for name, value in _scalars(node).items() if value}
    away = {
        found.buffer
        for found in loads([one for value in values.values() for one in value])
        if device_of(found.buffer) != device
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
        made = rewrite(value, visit)
        if name == "checks":
            changed[name] = tuple(
                Check(condition=condition, message=check.message, error=check.error)
                for check, condition in zip(node.checks, made, strict=True)
            )
        else:
            changed[name] = made if name in ("indirect", "others") else made[0]
    return replace(node, **changed)


def _device(node: _Computing) -> str:
    if isinstance(node, Pointwise | Scatter):
        return node.output.device
    return next(output.device for output in node.outputs if output is not None)


def _scalars(node: _Computing) -> dict[str, tuple[Scalar, ...]]:
    """Return what `node` computes, by field."""
    found: dict[str, tuple[Scalar, ...]] = {"checks": tuple(check.condition for check in node.checks)}
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name in ("body", "value", "mask") and value is not None:
            found[field.name] = (value,)
        elif field.name in ("indirect", "others"):
            found[field.name] = tuple(value)
    return found
