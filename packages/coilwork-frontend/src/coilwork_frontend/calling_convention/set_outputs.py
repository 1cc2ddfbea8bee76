"""Inputs whose memory is exchanged for another one's, shape and strides included: `x.data = y`,
`layer.weight.data *= mask`.

AOTAutograd leaves `set_` at the end of the graph. A program neither frees memory that it was given nor keeps
what it made, so the tensors that take the inputs' places are further results of it, and the inputs are set to
them after the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

from coilwork_ir.calling_convention import InputRole, Value

_SET: Final = torch.ops.aten.set_.source_Tensor


def returning_exchanged(gm: fx.GraphModule) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """`gm`, or a copy that returns what inputs are set to as its last results, and the positions of these
    inputs.
    """
    if not any(_is_exchange(node) for node in gm.graph.nodes):
        return gm, ()
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    final: dict[int, Any] = {}
    for node in list(graph.nodes):
        if _is_exchange(node):
            value, memory = node.args
            final[inputs.index(value)] = memory
            node.replace_all_uses_with(memory)
            graph.erase_node(node)
    last = graph.output_node()
    results = last.args[0]
    assert isinstance(results, list | tuple)
    last.args = ((*results, *final.values()),)
    last.meta.update(gm.graph.output_node().meta)
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made, tuple(final)


def exchange_roles(positions: Sequence[int], kept: int) -> tuple[InputRole, ...]:
    """The roles of the inputs at `positions`, which are set to the results behind the first `kept`."""
    return tuple(
        InputRole(value=Value("in", position), kind="set", source=Value("out", kept + number))
        for number, position in enumerate(positions)
    )


def _is_exchange(node: fx.Node) -> bool:
    if node.target is not _SET:
        return False
    value = node.args[0]
    return isinstance(value, fx.Node) and value.op == "placeholder"
