"""Nodes that look something up, taken apart into checked positions and what is read there.

The positions become nodes of their own, which keep the checks and are small: one position stands for a row.
What is looked up is then as any other value. Whoever computes it reads the checked positions, and thus runs
after the checks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from coilwork_ir.buffers import Buffer, contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, bounds, extent_of, provably_positive, symbol
from coilwork_ir.loops import Check, Pointwise
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    cast,
    load,
    loads,
    postorder,
    range_symbols,
    rewrite,
    substitute_ranges,
)

_I32_POINTS: Final = 1 << 31


Known: TypeAlias = "dict[tuple[Scalar, tuple[Check, ...], tuple[Expr, ...], str], Buffer]"
"""Where positions are stored: by their value, their checks, the ranges that both are over, and the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A node taken apart.

    Attributes:
        nodes: its positions, with its checks, as far as these were not known.
        stored: memory of all of its positions.
        body: what it computes, reading these.
    """

    nodes: tuple[Pointwise, ...]
    stored: tuple[Buffer, ...]
    body: Scalar


def take_apart(node: Pointwise, known: Known, taken: Collection[str]) -> Apart | None:
    """`node`, which has checks, taken apart; what it stores, under names that are not `taken`, is added to
    `known`.

    None if some check is of anything but one position that `node` looks something up at, or if the positions
    alone might have points where the node has none: nothing is checked where nothing is read.
    """
    checks = _checked_positions(node)
    if checks is None:
        return None
    nodes: list[Pointwise] = []
    stored: list[Buffer] = []
    reads: dict[Scalar, Scalar] = {}
    for number, (value, own) in enumerate(checks.items()):
        used = range_symbols((value,))
        if not all(provably_positive(extent_of(r)) for r in node.ranges if r not in used):
            return None
        places = tuple(r for r in node.ranges if r in used)
        ranges = tuple(symbol(f"i{k}", extent=extent_of(r)) for k, r in enumerate(places))
        moved = dict(zip(places, ranges, strict=True))
        found, *conditions = substitute_ranges((value, *(check.condition for check in own)), moved)
        moved_checks = tuple(
            Check(condition=condition, message=check.message, error=check.error)
            for condition, check in zip(conditions, own, strict=True)
        )
        key = (found, moved_checks, ranges, node.output.device)
        buffer = known.get(key)
        if buffer is None:
            name = f"{node.output.name}_positions{number or ''}"
            if name in taken:
                return None
            dtype = _stored_type(value, own)
            shape = tuple(extent_of(r) for r in ranges)
            buffer = known[key] = Buffer(
                name=name,
                dtype=dtype,
                shape=shape,
                strides=contiguous_strides(shape),
                device=node.output.device,
            )
            nodes.append(
                Pointwise(
                    output=buffer,
                    ranges=ranges,
                    body=_converted(found, dtype),
                    checks=moved_checks,
                    origins=node.origins,
                )
            )
        stored.append(buffer)
        reads[value] = _converted(load(buffer.name, places, buffer.dtype), value.dtype)
    (body,) = rewrite((node.body,), lambda scalar: reads.get(scalar, scalar))
    return Apart(nodes=tuple(nodes), stored=tuple(stored), body=body)


def _checked_positions(node: Pointwise) -> dict[Scalar, list[Check]] | None:
    """The checks of `node` by the position that each is of; None if one is of something else, or positions
    depend on others.
    """
    looked_up = tuple(dict.fromkeys(value for access in loads((node.body,)) for value in access.indirect))
    checks: dict[Scalar, list[Check]] = {}
    for check in node.checks:
        found = [value for value in looked_up if _is_of(check.condition, value)]
        if len(found) != 1:
            return None
        checks.setdefault(found[0], []).append(check)
    nested = any(inner is not value and inner in checks for value in checks for inner in postorder((value,)))
    return None if nested else checks


def _converted(value: Scalar, dtype: DType) -> Scalar:
    return value if value.dtype is dtype else cast(value, dtype)


def _is_of(condition: Scalar, value: Scalar) -> bool:
    """Tell if `condition` reads nothing but what goes into `value`, which is part of it."""
    pending, seen = [condition], {condition}
    found = False
    while pending:
        node = pending.pop()
        if node is value:
            found = True
            continue
        if isinstance(node, Load):
            return False
        fresh = [operand for operand in node.operands if operand not in seen]
        seen.update(fresh)
        pending += fresh
    return found


def _stored_type(value: Scalar, checks: Sequence[Check]) -> DType:
    """32 bits where `checks` leave no larger positions."""
    for check in checks:
        for node in postorder((check.condition,)):
            if isinstance(node, Op) and node.op == "lt" and node.operands[0] is value:
                most = _most(node.operands[1])
                if most is not None and most <= _I32_POINTS:
                    return DType.I32
    return value.dtype


def _most(value: Scalar) -> int | None:
    """The largest value of a size; None if that is not known."""
    match value:
        case IndexValue(expr=expr, operands=()):
            return bounds(expr).hi
        case Const(value=number):
            return int(number)
        case _:
            return None
