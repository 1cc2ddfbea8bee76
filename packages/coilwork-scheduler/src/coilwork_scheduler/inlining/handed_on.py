"""Checks of values that are computed inside scatters: these take them over, if they go through all points of
the values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from coilwork_ir.index import Expr, as_int, extent_of, provably_eq, provably_positive, substitute
from coilwork_ir.loops import Check, Graph, Node, Pointwise, Scatter
from coilwork_ir.loops.access import bodies
from coilwork_ir.scalar import Scalar, loads, substitute_ranges
from coilwork_scheduler.fusion.fusion_candidate import fusable
from coilwork_scheduler.fusion_group import stage_of

Takes: TypeAlias = Callable[[int, str], bool]
"""Whether the node at a place computes the buffer of that name itself."""


def holds_nothing(node: Node) -> bool:
    """Tell if `node` is a scatter whose kernel keeps nothing: on GPUs some share kernels, but only with what
    makes their values.
    """
    return isinstance(node, Scatter) and not fusable(stage_of(0, node), on_gpu=False)


def handed_on(graph: Graph, readers: Mapping[str, Sequence[int]], takes: Takes) -> frozenset[str]:
    """Results of pointwise nodes that only scatters read, or pointwise nodes of which the same is true, at
    all of their points.

    That is if all of them do as `takes` says. `readers` of each buffer as `readers_of` gives them.
    """
    found: set[str] = set()
    nodes = graph.nodes
    for node in reversed(nodes):
        if not isinstance(node, Pointwise) or node.into is not None:
            continue
        name = node.output.name
        users = readers.get(name, ())
        if users and all(
            user < len(nodes)
            and takes(user, name)
            and (holds_nothing(nodes[user]) or _is_among(nodes[user], found))
            and _places(nodes[user], node) is not None
            for user in users
        ):
            found.add(name)
    return frozenset(found)


def _is_among(node: Node, names: Collection[str]) -> bool:
    return isinstance(node, Pointwise) and not node.checks and node.output.name in names


def _places(user: Node, node: Pointwise) -> tuple[Expr, ...] | None:
    """Return where `user` reads the result of `node`, over its own ranges; None unless it does so at each of
    its points.
    """
    if not isinstance(user, Pointwise | Scatter):
        return None
    found = {access.index for access in loads(bodies(user)) if access.buffer == node.output.name}
    plain = all(
        not access.indirect and access.mask is None
        for access in loads(bodies(user))
        if access.buffer == node.output.name
    )
    if len(found) != 1 or not plain:
        return None
    (index,) = found
    used: set[Expr] = set()
    for own, place in zip(node.ranges, index, strict=True):
        extent = extent_of(own)
        if as_int(extent) == 1:
            continue
        if place not in user.ranges or place in used or not provably_eq(extent_of(place), extent):
            return None
        used.add(place)
    # where there is nothing along the other ranges, nothing is checked
    return index if all(provably_positive(extent_of(r)) for r in user.ranges if r not in used) else None


def checks_of(
    user: Node,
    nodes: Mapping[str, Pointwise],
    expand: Callable[[tuple[Scalar, ...], str], tuple[Scalar, ...]],
) -> tuple[Check, ...]:
    """Checks of those of `nodes`, by name, that are computed inside `user`, over its ranges; of what others
    depend on first.

    `expand` computes inside a scalar what the node of that name does.
    """
    return tuple(dict.fromkeys(_checks(user, {}, nodes, expand)))


def _checks(
    user: Node,
    mapping: Mapping[Expr, Expr],
    nodes: Mapping[str, Pointwise],
    expand: Callable[[tuple[Scalar, ...], str], tuple[Scalar, ...]],
) -> Iterator[Check]:
    for name in dict.fromkeys(access.buffer for access in loads(bodies(user))):
        node = nodes.get(name)
        if node is None:
            continue
        index = _places(user, node)
        assert index is not None, f"%{name} is handed on"
        inner = {own: substitute(place, mapping) for own, place in zip(node.ranges, index, strict=True)}
        yield from _checks(node, inner, nodes, expand)
        conditions = substitute_ranges(tuple(check.condition for check in node.checks), inner)
        for check, condition in zip(node.checks, expand(conditions, name), strict=True):
            yield Check(condition=condition, message=check.message, error=check.error)
