"""Choose what the forward saves for the backward: a minimum cut of the joint graph.

A value costs its bytes, more the farther the backward is. Cheap calls between saved values and the backward
are computed again. The method, and torch's rules for what is cheap, are those of "min-cut recomputation"
(H. He, Z. Yao, 2022, in torch's functorch); the rules that look along chains of calls are walks over the
graph in order here, so each takes time in proportion to the graph.

A node has two vertices, before and after its memory, and the edge between them is what saving it costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_lowering.joint.indexed_joint import IndexedJoint, is_item
from coilwork_lowering.joint.minimum_cut import Network, find_sink_side
from coilwork_lowering.torch_compat.partitioning import (
    SIZES,
    estimate_size,
    is_input_of_forward,
    is_result_of_user_kernel,
)

# A result this many times smaller than its operands is saved: it is a reduction's.
_REDUCES: Final = 4
# A chain of calls that fuse is computed again over so many calls at most.
_LONGEST_CHAIN: Final = 100
# What a byte costs more per call between it and the backward, and up to how many calls.
_FARTHER: Final = 1.1
_FARTHEST: Final = 100
_OUT_OF_REACH: Final = 10**9
# A value that no kernel needs in memory is not written unless it is saved.
_WRITTEN_FOR_SAVING: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The half that needs each node before anything is saved, by position.

    Attributes:
        forward: 1 where the forward's results or effects need it.
        order: number among the nodes of the forward.
        after_tangents: 1 where it is computed of gradients, or must be in the backward.
        backward: the same, and what the backward returns.
    """

    forward: bytearray
    order: Sequence[int]
    after_tangents: bytearray
    backward: bytearray


def find_sides(joint: IndexedJoint, forward: Sequence[int]) -> Sides:
    """Return the sides of a graph's nodes; `forward` are the positions of those that the forward alone
    needs.
    """
    after = bytearray(joint.must_be_in_backward)
    for at, node in enumerate(joint.nodes):
        if node.op == "placeholder" and "tangents" in str(node.target):
            after[at] = 1
        if after[at]:
            for user in joint.users[at]:
                after[user] = 1
    backward = bytearray(after)
    for result in joint.list_results(forward=False):
        if isinstance(result, torch.fx.Node):
            backward[joint.positions[result]] = 1
    marks = bytearray(len(joint.nodes))
    order = [0] * len(joint.nodes)
    for number, at in enumerate(sorted(forward)):
        marks[at] = 1
        order[at] = number
    return Sides(forward=marks, order=order, after_tangents=after, backward=backward)


def choose_saved_values(joint: IndexedJoint, sides: Sides, free: frozenset[int]) -> list[int]:
    """Positions of the nodes whose values the forward saves, in order.

    Args:
        free: inputs that are in memory anyway, as parameters are.

    Raises:
        UnboundedCutError: the backward needs what can neither be saved nor computed again.
    """
    network, sources, sinks = _build_network(joint, sides, free)
    side = find_sink_side(network, sources, sinks)
    return [at for at in range(len(joint.nodes)) if side[2 * at + 1] and not side[2 * at]]


def _build_network(
    joint: IndexedJoint, sides: Sides, free: frozenset[int]
) -> tuple[Network, list[int], list[int]]:
    """Vertex `2 * at` is before the memory of a node, the next one after it."""
    nodes, users = joint.nodes, joint.users
    fusion = _Fusion(joint)
    distances = _measure_distances(joint, sides)
    again = bytearray(joint.must_be_recomputed(at) for at in range(len(nodes)))
    sizes = [estimate_size(node.meta.get("val")) for node in nodes]
    kept = _find_kept(joint, sides, fusion, again, sizes)
    _keep_distant_uses(joint, sides, fusion, again, kept)
    _keep_long_chains(joint, sides, fusion, again, kept)
    network = Network(2 * len(nodes))
    sources: list[int] = [2 * at for at in range(len(nodes)) if kept[at]]
    sinks: list[int] = []
    costs = [_FARTHER**distance for distance in range(_FARTHEST + 1)]
    for at, node in enumerate(nodes):
        if sides.backward[at]:
            sinks.append(2 * at if sides.after_tangents[at] else 2 * at + 1)
            if sides.after_tangents[at]:
                continue
        if again[at]:
            sinks.append(2 * at)
            continue
        value = node.meta.get("val")
        cost: float
        if isinstance(value, SIZES):
            cost = 4 if isinstance(value, torch.SymFloat) else 1
        elif not isinstance(value, torch.Tensor):
            cost = inf
        elif at in free:
            cost = 0
        else:
            cost = int(sizes[at] * costs[max(min(distances[at], _FARTHEST), 1)])
            is_written = (
                node.op == "placeholder"
                or joint.is_returned[at]
                or not all(fusion.joins(at, user) for user in users[at])
            )
            cost *= 1 if is_written else _WRITTEN_FOR_SAVING
        network.add(2 * at, 2 * at + 1, cost)
        for user in users[at]:
            network.add(2 * at + 1, 2 * user, inf)
    return network, sources, sinks


class _Fusion:
    """Tells which calls one kernel may compute together."""

    def __init__(self, joint: IndexedJoint) -> None:
        self._joint = joint
        self._traits = joint.traits
        self._apart = {
            at for at, node in enumerate(joint.nodes) if is_item(node) and is_result_of_user_kernel(node)
        }

    def joins(self, at: int, user: int) -> bool:
        """Tell if the kernel that computes `user` may compute its operand `at`, too."""
        reader = self._traits[user]
        if reader.is_concatenation:
            return True
        written = self._joint.overwritten.get(user)
        if written is not None and self._joint.nodes[at] in written:
            return True
        return reader.fuses and self._traits[at].fuses and at not in self._apart


def _measure_distances(joint: IndexedJoint, sides: Sides) -> list[int]:
    """Return the calls from each node of the forward to the next one that is not of the forward."""
    distances = [0] * len(joint.nodes)
    for at in reversed(range(len(joint.nodes))):
        if sides.forward[at]:
            nearest = min((distances[user] + 1 for user in joint.users[at]), default=_OUT_OF_REACH)
            distances[at] = min(nearest, _OUT_OF_REACH)
    return distances


def _find_kept(
    joint: IndexedJoint, sides: Sides, fusion: _Fusion, again: bytearray, sizes: Sequence[int]
) -> bytearray:
    """1 where a node is not computed again: inputs, what is not cheap, what both halves have in memory, and
    reductions. `_may_keep` says where the user's wish, or none of these, counts.
    """
    materialized = _find_materialized(joint, sides, fusion)
    kept = bytearray(len(joint.nodes))
    for at, node in enumerate(joint.nodes):
        if (sides.after_tangents[at] and sides.backward[at]) or not _may_keep(joint, again, at):
            continue
        must_be_saved = node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE
        if is_input_of_forward(node) or (must_be_saved and joint.must_be_in_forward[at]):
            kept[at] = 1
        elif not sides.forward[at] or node.op != "call_function" or is_item(node):
            continue
        elif must_be_saved:
            kept[at] = 1
        elif not joint.traits[at].is_copied_constant:
            operands = [argument for argument in node.args if isinstance(argument, torch.fx.Node)]
            kept[at] = (
                not joint.traits[at].can_be_recomputed
                or materialized[at]
                or sizes[at] * _REDUCES < sum(sizes[joint.positions[operand]] for operand in operands)
            )
    return kept


def _may_keep(joint: IndexedJoint, again: bytearray, at: int) -> bool:
    return not (
        joint.traits[at].is_view or again[at] or isinstance(joint.nodes[at].meta.get("val"), torch.SymFloat)
    )


def _find_materialized(joint: IndexedJoint, sides: Sides, fusion: _Fusion) -> bytearray:
    """1 where a node behind the forward, or a result, reads the value, or a view of it, from memory."""
    found = bytearray(len(joint.nodes))
    for at in reversed(range(len(joint.nodes))):
        found[at] = joint.is_returned[at] or any(
            (joint.traits[user].is_view and found[user])
            or (not sides.forward[user] and not fusion.joins(at, user))
            for user in joint.users[at]
        )
    return found


def _keep_distant_uses(
    joint: IndexedJoint, sides: Sides, fusion: _Fusion, again: bytearray, kept: bytearray
) -> None:
    """Mark users of a value that come after the first call that does not fuse with what its users compute.

    Computed again, such a user would be in another kernel than the near ones.
    """
    order = sides.order
    count = len(joint.nodes)
    # of what a node's value reaches through calls that fuse: the first call that does not
    first = [count] * count
    for at in reversed(range(count)):
        if sides.forward[at]:
            first[at] = min(
                (
                    first[user] if fusion.joins(at, user) else order[user]
                    for user in joint.users[at]
                    if sides.forward[user]
                ),
                default=count,
            )
    for at in range(count):
        near = [user for user in joint.users[at] if sides.forward[user]] if sides.forward[at] else []
        if len(near) > 1:
            limit = min(first[user] for user in near)
            for user in near:
                if order[user] > limit and fusion.joins(at, user) and _may_keep(joint, again, user):
                    kept[user] = 1


def _keep_long_chains(
    joint: IndexedJoint, sides: Sides, fusion: _Fusion, again: bytearray, kept: bytearray
) -> None:
    """Mark the call at which a chain of calls that fuse becomes long, where the chain is one call wide.

    Residual streams would be computed again from the first layer on.
    """
    visited = bytearray(len(joint.nodes))
    for start in range(len(joint.nodes)):
        if not sides.forward[start]:
            continue
        limit = sides.order[start] + _LONGEST_CHAIN
        pending = [start]
        while pending:
            at = heapq.heappop(pending)
            if visited[at]:
                continue
            visited[at] = 1
            if sides.order[at] > limit and not pending:
                if _may_keep(joint, again, at):
                    kept[at] = 1
                break
            for user in joint.users[at]:
                if sides.forward[user] and not kept[user] and fusion.joins(at, user):
                    heapq.heappush(pending, user)
