"""Copies of convolutions' operands that only the whole graph can place; `lay_out_convolutions` is the entry.

The scheduler chooses layouts of convolutions, for each graph by itself. Before graphs are cut, some
convolutions become products (`patch_products.py`), and three things are done here.

- Convolution kernels want dense operands, and ATen copies others before each call, element by element along
  the last dimension; `copy_operands_with_gaps` copies once, in tiles and fused with what comes before.
- `copy_shared_weights` copies a weight in a joint graph once, in front of the convolution, which would be
  copied in both halves.
- `lay_out_frozen_weights` copies a frozen weight, which costs nothing in a call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from coilwork_ir.machine import FindModel, find_like_model
from coilwork_lowering.aten_layouts.convolution_cost import Convolution, find_convolutions, gains_by_copies
from coilwork_lowering.aten_layouts.formats import (
    estimate_bytes,
    find_stride_order,
    get_channels_last_format,
    is_channels_last,
    is_dense_in_order,
    is_same_layout,
)
from coilwork_lowering.aten_layouts.patch_products import multiply_patches
from coilwork_lowering.facts.fx_nodes import insert_call, match_convolution
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat.graphs import copy_graph, find_fake_mode

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
    mode = find_fake_mode(gm)
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
    call = match_convolution(node)
    for position in () if call is None else call.operands:
        operand = node.args[position]
        value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
        if isinstance(operand, torch.fx.Node) and isinstance(value, torch.Tensor):
            if value.device.type not in devices or not _has_gaps(value):
                continue
            # a smaller copy is a launch, ATen's and ours alike
            if estimate_bytes(value) >= find_model(str(value.device)).memory.launch_bytes:
                operands.append(operand)
    return tuple(dict.fromkeys(operands))


def _has_gaps(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not is_dense_in_order(tensor, find_stride_order(tensor))


def _copy_dense(
    graph: torch.fx.Graph, node: torch.fx.Node, operand: torch.fx.Node, mode: AbstractContextManager[object]
) -> torch.fx.Node | None:
    """Return a dense copy of `operand` in front of `node`, whose results have the strides that they had."""
    call: Any = node.target
    for layout in (torch.contiguous_format, get_channels_last_format(operand.meta["val"])):
        if layout is None:
            continue
        with mode:
            value = _aten.clone.default(operand.meta["val"], memory_format=layout)
            values = {operand: value}
            arguments = torch.fx.map_arg(node.args, partial(_value_among, values))
            result = call(*arguments, **node.kwargs)
        if is_same_layout(result, node.meta["val"]):
            return insert_call(
                graph, node, operand, _aten.clone.default, (operand,), value, {"memory_format": layout}
            )
    return None


def _value_among(values: Mapping[torch.fx.Node, torch.Tensor], node: torch.fx.Node) -> Any:
    return values.get(node, node.meta.get("val"))


# weights


def copy_shared_weights(gm: torch.fx.GraphModule, options: LayoutOptions) -> tuple[torch.fx.GraphModule, int]:
    """`gm` with a copy of each parameter that both a convolution and its gradients read, and how many there
    are.

    Where the convolutions would lose less as captured than such copies cost, nothing is copied: small graphs
    in `f32` stay as captured. `gm` is never changed.
    """
    convolutions = find_convolutions(gm, options)
    readers: dict[torch.fx.Node, list[Convolution]] = {}
    for call in convolutions:
        # the gradient of a weight does not read it
        if _weight_of(call).op == "placeholder" and _wants_copy(call) and call.gives_activations:
            readers.setdefault(_weight_of(call), []).append(call)
    shared = {weight: calls for weight, calls in readers.items() if len({len(c.operands) for c in calls}) > 1}
    copied_bytes = sum(2 * estimate_bytes(weight.meta["val"]) for weight in shared)
    if not shared or not gains_by_copies(convolutions, copies=len(shared), copied_bytes=copied_bytes):
        return gm, 0
    # the forward graph's scheduler chooses how the copy lies
    return _copy_weights(gm, shared, torch.preserve_format)


def lay_out_frozen_weights(
    gm: torch.fx.GraphModule, constants: Collection[torch.fx.Node], options: LayoutOptions
) -> tuple[torch.fx.GraphModule, int]:
    """`gm`, an inference graph, with weights among `constants` in channels-last, and how many are copied.

    What only depends on frozen inputs is computed once, so such a copy costs nothing in a call. But a
    convolution computes in channels-last then, which costs copies of what the graph is given and returns:
    they are weighed against what all convolutions convert. `gm` is never changed.
    """
    convolutions = find_convolutions(gm, options)
    weights: dict[torch.fx.Node, list[Convolution]] = {}
    for call in convolutions:
        if _weight_of(call) in constants and _wants_copy(call):
            weights.setdefault(_weight_of(call), []).append(call)
    outside = dict.fromkeys(node for call in convolutions for node in _images_outside(call))
    copied_bytes = sum(2 * estimate_bytes(node.meta["val"]) for node in outside)
    is_asked = options.layout == "channels_last"
    if (
        options.layout == "captured"
        or not weights
        or not (is_asked or gains_by_copies(convolutions, copies=len(outside), copied_bytes=copied_bytes))
    ):
        return gm, 0
    return _copy_weights(gm, weights, None)


def _copy_weights(
    gm: torch.fx.GraphModule,
    weights: Mapping[torch.fx.Node, Sequence[Convolution]],
    layout: torch.memory_format | None,
) -> tuple[torch.fx.GraphModule, int]:
    """`gm` with one copy of each of `weights` for its convolutions, in `layout`; None: in channels-last."""
    mode = find_fake_mode(gm)
    if mode is None:
        return gm, 0
    graph = copy_graph(gm.graph)
    nodes = {node.name: node for node in graph.nodes}
    places = {name: place for place, name in enumerate(nodes)}
    for weight, calls in weights.items():
        users = sorted((call.node.name for call in calls), key=lambda name: places[name])
        held = weight.meta["val"]
        wanted = get_channels_last_format(held) if layout is None else layout
        with mode:
            value = held.clone(memory_format=wanted)
        source, first = nodes[weight.name], nodes[users[0]]
        named = {} if layout is not None else {"memory_format": wanted}
        copy = insert_call(graph, first, first, _aten.clone.default, (source,), value, named)
        for name in users:
            nodes[name].replace_input_with(source, copy)
    result = torch.fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    result.meta.update(gm.meta)
    return result, len(weights)


def _wants_copy(call: Convolution) -> bool:
    """Tell if a kernel converts the weight of `call`, unless it is channels-last."""
    value = call.tensors[-1]
    if not call.is_converted:
        return False
    return not is_channels_last(value) and is_dense_in_order(value, range(value.dim()))


def _images_outside(call: Convolution) -> list[torch.fx.Node]:
    """Return the image of `call` if the graph is given it, and its result if the graph returns it."""
    image = call.node.args[call.operands[0]]
    assert isinstance(image, torch.fx.Node), "a convolution reads a tensor"
    found = [image] if image.op == "placeholder" else []
    return found + ([call.node] if any(user.op == "output" for user in call.node.users) else [])


def _weight_of(call: Convolution) -> torch.fx.Node:
    weight = call.node.args[call.operands[-1]]
    assert isinstance(weight, torch.fx.Node), "a convolution reads a tensor"
    return weight


# entry


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutDecision:
    """The copies that were made for a graph's convolutions.

    Attributes:
        reason: one sentence for a reader of traces.
        patch_products: convolutions, and gradients of some, that are products of patches.
        shared_weights: parameters that are copied once for both halves of a training step.
        dense_copies: copies of operands that lay in memory with gaps.
    """

    reason: str
    patch_products: int = 0
    shared_weights: int = 0
    dense_copies: int = 0

    @property
    def changes(self) -> bool:
        """Tell if anything was done."""
        return bool(self.patch_products or self.shared_weights or self.dense_copies)


def lay_out_convolutions(
    gm: torch.fx.GraphModule, options: LayoutOptions
) -> tuple[torch.fx.GraphModule, LayoutDecision]:
    """Copy weights that both halves of a joint graph read, and operands that have gaps: a copy of `gm`, or
    `gm` itself, and what was done.

    `gm` is never changed. Copies carry the metadata of the node that they were made for.
    """
    if options.layout == "captured":
        return gm, LayoutDecision(reason="layouts as captured: asked for")
    products_gm, products = multiply_patches(gm, options)
    shared_gm, shared = copy_shared_weights(products_gm, options)
    dense_gm, copies = copy_operands_with_gaps(shared_gm, options.devices, options.find_model)
    reason = (
        f"the scheduler lays out convolutions; {products} are products of patches, {shared} weights are "
        f"copied once for both halves, and {copies} operands that have gaps"
    )
    return dense_gm, LayoutDecision(
        reason=reason, patch_products=products, shared_weights=shared, dense_copies=copies
    )
