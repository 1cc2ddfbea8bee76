"""Choose the memory layout of a graph's convolutions; `lay_out_convolutions` is the entry.

Besides channels-last there are two smaller passes. Convolution kernels want dense operands, and ATen copies
others before each call, element by element along the last dimension; `copy_operands_with_gaps` copies once,
in tiles and fused with what comes before. `copy_shared_weights` copies a weight in a joint graph once, in
front of the convolution: the scheduler lays out each half by itself and would copy it in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from coilwork_ir.convolution_rates import FEWEST_CHANNELS
from coilwork_ir.machine import FindModel, find_like_model
from coilwork_lowering.facts.fx_nodes import convolution_of, insert_call
from coilwork_lowering.layout.channels_last import CannotRewriteError, rewrite_to_channels_last
from coilwork_lowering.layout.convolution_cost import (
    Convolution,
    LayoutDecision,
    estimate_captured_cost,
    find_convolutions,
    find_scheduled_convolutions,
    judge,
)
from coilwork_lowering.layout.formats import (
    bytes_hint,
    channels_last_format,
    is_channels_last,
    is_dense_in_order,
    same_layout,
    stride_order,
)
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat.graphs import copy_graph, fake_mode_of

# operands with gaps


_aten: Final = torch.ops.aten


def copy_operands_with_gaps(
    gm: torch.fx.GraphModule, devices: tuple[str, ...], find_model: FindModel = find_like_model
) -> tuple[torch.fx.GraphModule, int]:
    """`gm` with a dense copy of each large operand of a convolution on `devices` that has gaps, and how many
    there are.

    The copy is such that the convolution's results keep their strides; where none is, the call stays as it
    was. `gm` is never changed: without any copy it is returned itself.
    """
    if not any(_operands_with_gaps(node, devices, find_model) for node in gm.graph.nodes):
        return gm, 0
    mode = fake_mode_of(gm)
    if mode is None:
        return gm, 0
    graph = copy_graph(gm.graph)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        for operand in _operands_with_gaps(node, devices, find_model):
            copy = copies.get(operand)
            if copy is None:
                copy = _copy_dense(graph, node, operand, mode)
                if copy is None:
                    continue
                copies[operand] = copy
            node.replace_input_with(operand, copy)
    if not copies:
        return gm, 0
    result = torch.fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    result.meta.update(gm.meta)
    return result, len(copies)


def _operands_with_gaps(
    node: torch.fx.Node, devices: tuple[str, ...], find_model: FindModel
) -> tuple[torch.fx.Node, ...]:
    operands = []
    call = convolution_of(node)
    for position in () if call is None else call.operands:
        operand = node.args[position]
        value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
        if isinstance(operand, torch.fx.Node) and isinstance(value, torch.Tensor):
            if value.device.type not in devices or not _has_gaps(value):
                continue
            # a smaller copy is a launch, ATen's and ours alike
            if bytes_hint(value) >= find_model(str(value.device)).memory.launch_bytes:
                operands.append(operand)
    return tuple(dict.fromkeys(operands))


def _has_gaps(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not is_dense_in_order(tensor, stride_order(tensor))


def _copy_dense(
    graph: torch.fx.Graph, node: torch.fx.Node, operand: torch.fx.Node, mode: AbstractContextManager[object]
) -> torch.fx.Node | None:
    """A dense copy of `operand` in front of `node`, whose results have the strides that they had."""
    call: Any = node.target
    for layout in (torch.contiguous_format, channels_last_format(operand.meta["val"])):
        if layout is None:
            continue
        with mode:
            value = _aten.clone.default(operand.meta["val"], memory_format=layout)
            values = {operand: value}
            arguments = torch.fx.map_arg(node.args, partial(_value_among, values))
            result = call(*arguments, **node.kwargs)
        if same_layout(result, node.meta["val"]):
            return insert_call(
                graph, node, operand, _aten.clone.default, (operand,), value, {"memory_format": layout}
            )
    return None


def _value_among(values: Mapping[torch.fx.Node, torch.Tensor], node: torch.fx.Node) -> Any:
    return values.get(node, node.meta.get("val"))


# shared weights


def copy_shared_weights(
    gm: torch.fx.GraphModule, convolutions: Sequence[Convolution], options: LayoutOptions
) -> tuple[torch.fx.GraphModule, int]:
    """`gm` with a copy of each parameter that both a convolution and its gradients read, and how many there
    are.

    `convolutions` are those of `gm` that the scheduler lays out. Where they would lose less as captured than
    such copies cost, nothing is copied: small graphs in `f32` stay as captured. `gm` is never changed.
    """
    readers: dict[torch.fx.Node, list[Convolution]] = {}
    for call in convolutions:
        if _wants_copy(call):
            readers.setdefault(_weight_of(call), []).append(call)
    shared = {weight: calls for weight, calls in readers.items() if len({len(c.operands) for c in calls}) > 1}
    mode = fake_mode_of(gm)
    copied_bytes = sum(2 * bytes_hint(weight.meta["val"]) for weight in shared)
    decision = judge(convolutions, copies=len(shared), copied_bytes=copied_bytes, options=options)
    if not shared or not decision.channels_last or mode is None:
        return gm, 0
    graph = copy_graph(gm.graph)
    nodes = {node.name: node for node in graph.nodes}
    places = {name: place for place, name in enumerate(nodes)}
    for weight, calls in shared.items():
        users = sorted((call.node.name for call in calls), key=lambda name: places[name])
        with mode:
            value = weight.meta["val"].clone()
        source, first = nodes[weight.name], nodes[users[0]]
        copy = insert_call(graph, first, first, _aten.clone.default, (source,), value)
        for name in users:
            nodes[name].replace_input_with(source, copy)
    result = torch.fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    result.meta.update(gm.meta)
    return result, len(shared)


def _wants_copy(call: Convolution) -> bool:
    """Tell if `call` reads a parameter, which its kernel converts unless it is channels-last."""
    weight, value = _weight_of(call), call.tensors[-1]
    if weight.op != "placeholder" or call.groups > 1 or call.channels < FEWEST_CHANNELS:
        return False
    if is_channels_last(value) or not is_dense_in_order(value, range(value.dim())):
        return False
    # the gradient of a weight does not read it
    return call.gives_activations


def _weight_of(call: Convolution) -> torch.fx.Node:
    weight = call.node.args[call.operands[-1]]
    assert isinstance(weight, torch.fx.Node), "a convolution reads a tensor"
    return weight


# entry


def lay_out_convolutions(
    gm: torch.fx.GraphModule, options: LayoutOptions
) -> tuple[torch.fx.GraphModule, LayoutDecision]:
    """Lay out the convolutions of `gm`: a rewritten copy, or `gm` itself, and the decision.

    Convolutions become channels-last where that saves memory traffic. Else each weight that the scheduler is
    to lay out gets one copy for both halves of a training step. Operands that have gaps get dense copies.

    Kernels for matrix units compute convolutions in channels-last, and convert operands and results of
    others, each time. Here operands become channels-last once, by copies in the graph; every later value has
    the strides that torch's meta functions give it. Values and shapes stay, as do the strides of the graph's
    outputs, of inputs that are written to, and of operands of operators outside ATen. Works on inference
    graphs and joint graphs.

    `gm` is never changed. Nodes keep their names and metadata except `val` (and `tensor_meta`, which is
    dropped where `val` changed); copies carry the metadata of the node that they were made for.
    """
    if options.layout == "captured":
        return gm, LayoutDecision(channels_last=False, reason="layouts as captured: asked for")
    laid_out, decision = _rewrite_if_cheaper(gm, options)
    if laid_out is gm:
        laid_out, shared = copy_shared_weights(gm, find_scheduled_convolutions(gm, options), options)
        if shared:
            reason = f"{decision.reason}; {shared} weights are copied once for both halves"
            decision = replace(decision, reason=reason)
    dense, copies = copy_operands_with_gaps(laid_out, options.devices, options.find_model)
    if copies:
        reason = f"{decision.reason}; {copies} operands of convolutions that have gaps are copied"
        decision = replace(decision, reason=reason, dense_copies=copies)
    return dense, decision


def _rewrite_if_cheaper(
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
    if options.layout == "auto" and estimate_captured_cost(convolutions) == 0:
        return gm, judge(convolutions, copies=0, copied_bytes=0, options=options)
    mode = fake_mode_of(gm)
    if mode is None:
        return gm, LayoutDecision(
            channels_last=False, reason="nodes carry no fake tensors", convolutions=len(convolutions)
        )
    graph = copy_graph(gm.graph)
    try:
        rewritten = rewrite_to_channels_last(
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
    following = [call for call in convolutions if call.node.name in rewritten.laid_out]
    decision = judge(following, copies=rewritten.copies, copied_bytes=rewritten.copied_bytes, options=options)
    if not decision.channels_last or rewritten.copies == 0:
        return gm, decision
    result = torch.fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    result.meta.update(gm.meta)
    return result, decision
