"""One copy of a convolution's weight for both halves of a training step.

The scheduler lays out each half by itself. A parameter lies as the user made it, so each half would copy it
for its own calls. Here a joint graph copies it once, in front of the convolution: the forward graph decides
how the copy lies, saves it, and the backward graph finds it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from coilwork_ir.convolution_rates import FEWEST_CHANNELS
from coilwork_lowering.facts.fx_nodes import insert_call
from coilwork_lowering.layout.cost import Convolution, judge
from coilwork_lowering.layout.formats import hinted_bytes, is_channels_last, is_dense_in_order
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat.fakes import fake_mode_of
from coilwork_lowering.torch_compat.graphs import copied_graph

_aten: Final = torch.ops.aten


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
    copied_bytes = sum(2 * hinted_bytes(weight.meta["val"]) for weight in shared)
    decision = judge(convolutions, copies=len(shared), copied_bytes=copied_bytes, options=options)
    if not shared or not decision.channels_last or mode is None:
        return gm, 0
    graph = copied_graph(gm.graph)
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
