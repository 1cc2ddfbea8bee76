"""A joint graph as lists of integers: what the partition reads of each node, read once."""

from __future__ import annotations

import operator
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_lowering.facts.fx_nodes import name_of_target
from coilwork_lowering.torch_compat.operators import Overload
from coilwork_lowering.torch_compat.partitioning import (
    SIZES,
    CallKinds,
    get_packet,
    has_memory_budget,
    is_input_of_forward,
    is_mutable,
    is_seed,
    list_call_kinds,
    list_outputs,
    list_overwritten,
)

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


@dataclass(frozen=True, slots=True)
class CallTraits:
    """The facts about a call that its operator alone decides; `is_tied`: tokens order it among calls with
    effects.
    """

    fuses: bool = False
    is_view: bool = False
    can_be_recomputed: bool = False
    is_concatenation: bool = False
    is_copied_constant: bool = False
    is_copy: bool = False
    is_collective: bool = False
    is_tied: bool = False
    is_mutable: bool = False
    is_random: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedJoint:
    """The nodes of a joint graph that do something, in order; the output is left out.

    Attributes:
        operands, users: positions of the nodes that a node reads, and of those that read it.
        is_returned: 1 where the graph returns the node.
        is_impure: 1 where a node has effects, and stays without users.
        must_be_in_forward, must_be_in_backward: 1 where the other half must not hold the node.
        traits: by operator.
        results: of both halves: nodes, numbers and None; the first `forward_results` are the forward's.
        notes: what AOTAutograd notes of each result.
        overwritten: of calls with mutations made functional, by position: the operands written over.
    """

    nodes: Sequence[torch.fx.Node]
    positions: dict[torch.fx.Node, int]
    operands: Sequence[Sequence[int]]
    users: Sequence[Sequence[int]]
    is_returned: bytearray
    is_impure: bytearray
    must_be_in_forward: bytearray
    must_be_in_backward: bytearray
    traits: Sequence[CallTraits]
    results: Sequence[Any]
    notes: Sequence[Any]
    forward_results: int
    overwritten: dict[int, frozenset[object]]

    def list_forward_inputs(self) -> list[int]:
        """Inputs that the forward takes, seeds last."""
        inputs = [at for at, node in enumerate(self.nodes) if is_input_of_forward(node)]
        seeds = {at for at in inputs if is_seed(self.nodes[at], forward=True)}
        return [at for at in inputs if at not in seeds] + [at for at in inputs if at in seeds]

    def list_results(self, forward: bool) -> list[Any]:
        """Results of one half."""
        count = self.forward_results
        return list(self.results[:count] if forward else self.results[count:])

    def must_be_recomputed(self, at: int) -> bool:
        """Tell if a checkpoint asks for a node's computation in the backward."""
        return asks_for_recomputation(self.nodes[at])


def asks_for_recomputation(node: torch.fx.Node) -> bool:
    """Tell if a checkpoint, or a pass of ours, wants the backward to compute `node` again."""
    return node.meta.get("recompute") in _AGAIN


def index_joint(joint: torch.fx.GraphModule, forward_results: int) -> IndexedJoint:
    """Read the graph of `joint`, whose first `forward_results` results are the forward's."""
    results, notes = list_outputs(joint.graph)
    returned = {node for node in results if isinstance(node, torch.fx.Node)}
    ordered = [node for node in joint.graph.nodes if node.op != "output"]
    alive: set[torch.fx.Node] = set(returned)
    impure: set[torch.fx.Node] = set()
    effects: dict[object, bool] = {}
    for node in reversed(ordered):
        if node.op == "placeholder":
            alive.add(node)
        elif node.op != "get_attr" and _has_effects(node, effects):
            impure.add(node)
            alive.add(node)
        if node in alive:
            alive.update(node.all_input_nodes)
    nodes = [node for node in ordered if node in alive]
    positions = {node: at for at, node in enumerate(nodes)}
    operands = [[positions[operand] for operand in node.all_input_nodes] for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for at, read in enumerate(operands):
        for operand in read:
            users[operand].append(at)
    traits = _list_traits(nodes)
    backward = bytearray(len(nodes))
    forward = bytearray(len(nodes))
    for at, node in enumerate(nodes):
        tag = node.meta.get("partitioner_tag")
        if tag == "must_be_in_backward" or (traits[at].is_mutable and tag == "is_backward"):
            backward[at] = 1
        elif tag == "must_be_in_forward" or traits[at].is_mutable:
            forward[at] = 1
    overwritten = {at: written for at, node in enumerate(nodes) if (written := _list_overwritten(node))}
    return IndexedJoint(
        nodes=nodes,
        positions=positions,
        operands=operands,
        users=users,
        is_returned=_mark(nodes, returned),
        is_impure=_mark(nodes, impure),
        must_be_in_forward=forward,
        must_be_in_backward=backward,
        traits=traits,
        results=results,
        notes=notes,
        forward_results=forward_results,
        overwritten=overwritten,
    )


def find_foreign_value(joint: IndexedJoint) -> torch.fx.Node | None:
    """Return the first node that is no tensor, number or tuple of these, or whose memory has a budget; or
    None.
    """
    plain = (torch.Tensor, *SIZES, int, float, bool, list, tuple, dict, type(None))
    for node in joint.nodes:
        if not isinstance(node.meta.get("val"), plain) or has_memory_budget(node):
            return node
    return None


def find_random_recomputation(joint: IndexedJoint) -> torch.fx.Node | None:
    """Return the first operator that draws random numbers and that a checkpoint computes again, or None."""
    for at, node in enumerate(joint.nodes):
        if joint.traits[at].is_random and asks_for_recomputation(node):
            return node
    return None


def _has_effects(node: torch.fx.Node, known: dict[object, bool]) -> bool:
    """Tell if `node` does more than compute; draws of random numbers count as computed. `known`: by
    overload.
    """
    if not isinstance(node.target, Overload):
        return node.is_impure(False)
    found = known.get(node.target)
    if found is None:
        found = known[node.target] = node.is_impure(False)
    return found


def _mark(nodes: Sequence[torch.fx.Node], chosen: Set[torch.fx.Node]) -> bytearray:
    return bytearray(node in chosen for node in nodes)


def _list_traits(nodes: Sequence[torch.fx.Node]) -> list[CallTraits]:
    kinds = list_call_kinds()
    known: dict[object, CallTraits] = {}
    nothing = CallTraits()
    traits: list[CallTraits] = []
    for node in nodes:
        if node.op != "call_function":
            traits.append(nothing)
            continue
        target: Any = node.target
        found = known.get(target)
        if found is None:
            found = known[target] = _read_traits(target, kinds)
        traits.append(found)
    return traits


def _read_traits(target: Any, kinds: CallKinds) -> CallTraits:
    packet = get_packet(target)
    return CallTraits(
        fuses=packet in kinds.fusible,
        is_view=packet in kinds.views,
        can_be_recomputed=packet in kinds.recomputable,
        is_concatenation=packet is torch.ops.aten.cat,
        is_copied_constant=packet in (torch.ops.aten.lift_fresh_copy, torch.ops.aten.lift_fresh),
        is_copy=target is torch.ops.aten.copy_.default,
        is_collective=getattr(target, "namespace", None) == "_c10d_functional",
        is_tied=name_of_target(target) == "with_effects",
        is_mutable=is_mutable(target),
        is_random=torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()),
    )


def _list_overwritten(node: torch.fx.Node) -> frozenset[object]:
    if node.op != "call_function" or isinstance(node.target, Overload):
        return frozenset()
    return list_overwritten(node)


def is_item(node: torch.fx.Node) -> bool:
    """Tell if `node` takes a value out of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem
