"""Reads at checked positions, computed inside consumers that cannot hold the checks.

A node that looks something up checks the positions that it does so at. A kernel can check them only where it goes through
all of them: not where a scatter, or a read at yet other positions, is what the values are for. There the positions
become a node of their own, which keeps the checks and is small: one position stands for a row. What is looked up is then as any other
value. Whoever computes it reads the checked positions, and thus runs after the checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Buffer, contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, bounds, provably_positive
from coilwork_ir.loops import Check, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import bodies
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
)
from coilwork_scheduler.fusion.cluster import fusable
from coilwork_scheduler.stage import extent_of, stage_of

_I32_POINTS: Final = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A node taken apart: nodes of `positions` that keep its checks, and its `body` over what these store."""

    positions: tuple[Pointwise, ...]
    body: Scalar


def take_apart(node: Pointwise, taken: Collection[str]) -> Apart | None:
    """`node`, which has checks, with its positions in nodes of their own, whose names are not among `taken`.

    None if some check is of anything but one position that `node` looks something up at, or if the positions alone might have
    points where the node has none: nothing is checked where nothing is read.
    """
    looked_up = tuple(dict.fromkeys(value for access in loads((node.body,)) for value in access.indirect))
    checks: dict[Scalar, list[Check]] = {}
    for check in node.checks:
        found = [value for value in looked_up if _is_of(check.condition, value)]
        if len(found) != 1:
            return None
        checks.setdefault(found[0], []).append(check)
    if any(inner is not value and inner in checks for value in checks for inner in postorder((value,))):
        return None
    made: dict[Scalar, Pointwise] = {}
    for number, (value, own) in enumerate(checks.items()):
        used = range_symbols((value,))
        ranges = tuple(r for r in node.ranges if r in used)
        if not all(provably_positive(extent_of(r)) for r in node.ranges if r not in used):
            return None
        name = f"{node.output.name}_positions{number or ''}"
        if name in taken:
            return None
        dtype = _stored_type(value, own)
        shape = tuple(extent_of(r) for r in ranges)
        made[value] = Pointwise(
            output=Buffer(
                name=name,
                dtype=dtype,
                shape=shape,
                strides=contiguous_strides(shape),
                device=node.output.device,
            ),
            ranges=ranges,
            body=value if dtype is value.dtype else cast(value, dtype),
            checks=tuple(own),
            origins=node.origins,
        )
    stored = {
        value: cast(load(apart.output.name, apart.ranges, apart.output.dtype), value.dtype)
        for value, apart in made.items()
    }
    (body,) = rewrite((node.body,), lambda scalar: stored.get(scalar, scalar))
    return Apart(positions=tuple(made.values()), body=body)


def _is_of(condition: Scalar, value: Scalar) -> bool:
    """Whether `condition` reads nothing but what goes into `value`, which is part of it."""
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
                end = node.operands[1]
                most = (
                    bounds(end.expr).hi
                    if isinstance(end, IndexValue) and not end.operands
                    else int(end.value)
                    if isinstance(end, Const)
                    else None
                )
                if most is not None and most <= _I32_POINTS:
                    return DType.I32
    return value.dtype


def not_held(graph: Graph, readers: Mapping[str, Sequence[int]]) -> frozenset[str]:
    """Results of pointwise nodes that go, through other pointwise nodes or not, to where no kernel holds their checks.

    `readers` of each buffer as `readers_of` gives them.
    """
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if isinstance(node, Pointwise) and node.into is None:
            name = node.output.name
            users = readers.get(name, ())
            if len(graph.nodes) in users:
                # the caller wants it: it is stored
                continue
            if any(_goes_on(graph.nodes[user], name, found) for user in users):
                found.add(name)
    return frozenset(found)


def _goes_on(user: Node, name: str, found: Collection[str]) -> bool:
    """Whether what `user` makes of `name` is computed where checks of `name` are not held; of later nodes these are `found`."""
    match user:
        case Scatter():
            return not fusable(stage_of(0, user))
        case Pointwise() | Reduce() | Scan() | Sort():
            if isinstance(user, Pointwise) and not user.checks and user.output.name in found:
                return True
            own = [access for access in loads(bodies(user)) if access.buffer == name]
            return any(access.indirect for access in own)
        case _:
            return False
