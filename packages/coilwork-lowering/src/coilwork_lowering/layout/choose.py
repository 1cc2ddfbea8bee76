"""The entry: one graph, rewritten or as it was, and the decision."""

from __future__ import annotations

from dataclasses import replace

import torch

from coilwork_lowering.layout.cost import (
    LayoutDecision,
    captured_cost,
    find_convolutions,
    find_scheduled_convolutions,
    judge,
)
from coilwork_lowering.layout.gaps import copy_operands_with_gaps
from coilwork_lowering.layout.rewrite import CannotRewriteError, rewrite_to_channels_last
from coilwork_lowering.layout.shared_weights import copy_shared_weights
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat.fakes import fake_mode_of
from coilwork_lowering.torch_compat.graphs import copied_graph


def lay_out_convolutions(
    gm: torch.fx.GraphModule, options: LayoutOptions
) -> tuple[torch.fx.GraphModule, LayoutDecision]:
    """`gm` with its convolutions in channels-last, if that saves memory traffic, with one copy of each weight
    that the scheduler is to lay out for both halves of a training step, and with dense copies of operands
    that have gaps; else `gm` itself.

    Kernels for matrix units compute convolutions in channels-last, and convert operands and results of
    others, each time. Here operands become channels-last once, by copies in the graph; every later value has
    the strides that torch's meta functions give it. Values and shapes stay, and so do the strides of the
    graph's outputs, of inputs that are written to, and of what operators outside ATen get. Works on inference
    graphs and joint graphs.

    `gm` is never changed. Nodes keep their names and metadata except `val` (and `tensor_meta`, which is
    dropped where `val` changed); copies carry the metadata of the node that they were made for.
    """
    if options.layout == "captured":
        return gm, LayoutDecision(channels_last=False, reason="layouts as captured: asked for")
    laid_out, decision = _in_channels_last(gm, options)
    if laid_out is gm:
        laid_out, shared = copy_shared_weights(gm, find_scheduled_convolutions(gm, options), options)
        if shared:
            reason = f"{decision.reason}; {shared} weights are copied once for both halves"
            decision = replace(decision, reason=reason)
    made, copies = copy_operands_with_gaps(laid_out, options.devices, options.find_model)
    if copies:
        reason = f"{decision.reason}; {copies} operands of convolutions that have gaps are copied"
        decision = replace(decision, reason=reason, dense_copies=copies)
    return made, decision


def _in_channels_last(
    gm: torch.fx.GraphModule, options: LayoutOptions
) -> tuple[torch.fx.GraphModule, LayoutDecision]:
    found = find_convolutions(gm, options)
    convolutions = [call for call in found if call.role != "stays"]
    if not any(call.role == "leads" for call in convolutions):
        reason = "no convolution whose kernels prefer channels-last"
        if options.scheduled_devices:
            reason += (
                f", beside those on {', '.join(options.scheduled_devices)}, which the scheduler lays out"
            )
        return gm, LayoutDecision(channels_last=False, reason=reason)
    if options.layout == "auto" and captured_cost(convolutions) == 0:
        return gm, judge(convolutions, copies=0, copied_bytes=0, options=options)
    mode = fake_mode_of(gm)
    if mode is None:
        return gm, LayoutDecision(
            channels_last=False, reason="nodes carry no fake tensors", convolutions=len(convolutions)
        )
    graph = copied_graph(gm.graph)
    try:
        made = rewrite_to_channels_last(
            graph,
            operands={call.node.name: call.operands for call in convolutions},
            followers=frozenset(call.node.name for call in found if call.role == "follows"),
            kept=frozenset(call.node.name for call in found if call.role == "stays"),
            fake_mode=mode,
        )
    except CannotRewriteError as reason:
        return gm, LayoutDecision(
            channels_last=False, reason=f"as captured: {reason}", convolutions=len(convolutions)
        )
    following = [call for call in convolutions if call.node.name in made.laid_out]
    decision = judge(following, copies=made.copies, copied_bytes=made.copied_bytes, options=options)
    if not decision.channels_last or made.copies == 0:
        return gm, decision
    result = torch.fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    result.meta.update(gm.meta)
    return result, decision
