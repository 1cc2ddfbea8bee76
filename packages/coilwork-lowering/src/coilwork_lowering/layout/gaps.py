"""Operands of convolutions that lie in memory with gaps: no kernel reads them, so they are copied in the
graph.

Convolution kernels want dense operands. Of others ATen makes a copy before each call, element by element
along the operand's last dimension, which is slow where memory lies across that. A copy in the graph goes by
tiles, computes what comes before it, and is made once for all calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import torch

from coilwork_ir.machine import FindModel, find_like_model
from coilwork_lowering.facts.fx_nodes import convolution_of, insert_call
from coilwork_lowering.layout.formats import (
    channels_last_format,
    hinted_bytes,
    is_dense_in_order,
    same_layout,
    stride_order,
)
from coilwork_lowering.torch_compat.fakes import fake_mode_of
from coilwork_lowering.torch_compat.graphs import copied_graph

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
    graph = copied_graph(gm.graph)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        for operand in _operands_with_gaps(node, devices, find_model):
            copy = copies.get(operand)
            if copy is None:
                copy = _copied(graph, node, operand, mode)
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
    found = []
    call = convolution_of(node)
    for position in () if call is None else call.operands:
        operand = node.args[position]
        value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
        if isinstance(operand, torch.fx.Node) and isinstance(value, torch.Tensor):
            if value.device.type not in devices or not _has_gaps(value):
                continue
            # a smaller copy is a launch, ATen's and ours alike
            if hinted_bytes(value) >= find_model(str(value.device)).memory.launch_bytes:
                found.append(operand)
    return tuple(dict.fromkeys(found))


def _has_gaps(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not is_dense_in_order(tensor, stride_order(tensor))


def _copied(
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
            given = torch.fx.map_arg(node.args, partial(_value_among, values))
            result = call(*given, **node.kwargs)
        if same_layout(result, node.meta["val"]):
            return insert_call(
                graph, node, operand, _aten.clone.default, (operand,), value, {"memory_format": layout}
            )
    return None


def _value_among(values: Mapping[torch.fx.Node, torch.Tensor], node: torch.fx.Node) -> Any:
    return values.get(node, node.meta.get("val"))
