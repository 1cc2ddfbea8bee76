"""Split a joint graph into forward and backward, with few bytes saved between them.

Torch's own pass does it where the user asks for something that only it does; `find_reason_for_torch` lists
what that is.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_lowering.joint.halves import (
    ForeignResultError,
    build_backward,
    build_forward,
    extract,
    settle_saved,
)
from coilwork_lowering.joint.indexed_joint import (
    IndexedJoint,
    asks_for_recomputation,
    find_foreign_value,
    find_random_recomputation,
    index_joint,
)
from coilwork_lowering.joint.minimum_cut import UnboundedCutError
from coilwork_lowering.joint.saved_values import choose_saved_values, find_sides
from coilwork_lowering.torch_compat.partitioning import (
    find_partitioner_setting,
    has_random_subgraphs,
    is_seed,
    partition_by_min_cut,
)

log = logging.getLogger("coilwork.lowering")


def split_joint(
    joint_gm: torch.fx.GraphModule,
    joint_inputs: Sequence[Any],
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **kw: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """AOTAutograd's partition function: the forward and the backward graph of a joint graph.

    `static_lifetime_input_indices` are the forward's inputs that stay in memory, as parameters do.
    """
    joint = index_joint(joint_gm, num_fwd_outputs)
    reason = find_reason_for_torch(joint_gm, joint)
    if reason is None:
        try:
            return _split(joint_gm, joint, static_lifetime_input_indices or ())
        except ForeignResultError as error:
            reason = f"{error} is computed in the other half"
        except UnboundedCutError:
            # torch's error names the nodes that are in conflict
            reason = "no cut is finite"
    log.debug("joint graph: torch's partitioner splits it: %s", reason)
    return partition_by_min_cut(
        joint_gm,
        joint_inputs,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_indices=static_lifetime_input_indices,
        **kw,
    )


def find_reason_for_torch(joint_gm: torch.fx.GraphModule, joint: IndexedJoint) -> str | None:
    """Return why torch's own pass has to split a graph, or None.

    The reasons are settings of torch's partitioner, a budget of memory, values that are neither tensors nor
    numbers, random numbers that a checkpoint draws again, and a graph without a backward.
    """
    setting = find_partitioner_setting()
    if setting is not None:
        return f"{setting} is set"
    foreign = find_foreign_value(joint)
    if foreign is not None:
        return f"{foreign.name} is no tensor or number, or has a budget of memory"
    drawn = find_random_recomputation(joint)
    if drawn is not None:
        return f"the backward draws {drawn.name} again"
    if has_random_subgraphs(joint_gm):
        return "a nested graph takes the state of a generator"
    return None


def _split(
    joint_gm: torch.fx.GraphModule, joint: IndexedJoint, static: Sequence[int]
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    settle_wishes(joint)
    inputs = joint.list_forward_inputs()
    alone = extract(joint, "forward", inputs, joint.list_results(forward=True))
    sides = find_sides(joint, [*inputs, *alone.calls])
    own = [at for at in inputs if not is_seed(joint.nodes[at], forward=True)]
    free = frozenset(own[place] for place in static if place < len(own))
    saved = settle_saved(joint, choose_saved_values(joint, sides, free))
    return build_forward(joint, joint_gm, saved), build_backward(joint, joint_gm, saved)


def settle_wishes(joint: IndexedJoint) -> None:
    """Mark, in the nodes' metadata, what must not be computed twice.

    These are values between two checkpoints, values whose gradient a hook of the user's sees, results of
    collectives and of calls with effects, and what both halves write into one input.
    """
    for at, node in enumerate(joint.nodes):
        if asks_for_recomputation(node):
            if _ends_checkpoint(joint, at):
                _keep(node)
        elif joint.traits[at].is_collective:
            _keep(node)
        elif joint.traits[at].is_tied and node.meta.get("partitioner_tag") != "is_backward":
            _keep_items(node)
    copies = [at for at, traits in enumerate(joint.traits) if traits.is_copy]
    written = {joint.operands[at][0] for at in copies if _is_bound(joint.nodes[at], "backward")}
    for at in copies:
        if _is_bound(joint.nodes[at], "forward") and joint.operands[at][0] in written:
            source = joint.nodes[at].args[1]
            if isinstance(source, torch.fx.Node):
                _keep(source)


def _ends_checkpoint(joint: IndexedJoint, at: int) -> bool:
    """Tell if another checkpoint begins behind a node, or its gradient has a hook."""
    meta = joint.nodes[at].meta
    again = [joint.nodes[user] for user in joint.users[at] if joint.must_be_recomputed(user)]
    region = meta.get("ac_graph_id")
    if region is not None and any(user.meta.get("ac_graph_id", region) > region for user in again):
        return True
    return bool(meta.get("has_backward_hook")) and not again


def _is_bound(node: torch.fx.Node, half: str) -> bool:
    return node.meta.get("partitioner_tag") == f"must_be_in_{half}"


def _keep(node: torch.fx.Node) -> None:
    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _keep_items(node: torch.fx.Node) -> None:
    for user in node.users:
        if user.target is operator.getitem:
            _keep_items(user)
            if not isinstance(user.meta.get("val"), tuple | list):
                _keep(user)
