"""Graphs: copied, traced, and parted in forward and backward; what their nodes remember."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx.proxy import GraphAppendingTracer as GraphAppendingTracer
from torch.utils._pytree import tree_leaves

from coilwork_lowering.torch_compat.operators import Overload


def current_stack_trace() -> object:
    """The user's traceback of the call that is being traced from a captured graph; None if there is none."""
    return torch.fx.traceback.get_current_meta().get("stack_trace")


def copied_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of `graph`, node for node, with metadata of its own; it calls and returns as `graph` does.

    `copy.deepcopy` does the same, but warns about how torch copies tree specifications.
    """
    made = torch.fx.Graph(tracer_cls=graph._tracer_cls)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    made.graph_copy(graph, copies)
    old = graph.output_node()
    made.output(torch.fx.map_arg(old.args[0], copies.__getitem__), old.type).meta.update(old.meta)
    made.set_codegen(graph._codegen)
    return made


def traced_call(
    function: Callable[..., Any], values: Sequence[Any], mode: AbstractContextManager[object] | None
) -> torch.fx.Graph:
    """The ATen graph of one call with fake tensors and numbers of `mode`, a placeholder for each
    of `values`.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    with nullcontext() if mode is None else mode:
        return make_fx(function)(*values).graph


def min_cut(
    joint_gm: torch.fx.GraphModule, joint_inputs: Sequence[Any], **kw: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """torch's min-cut partitioner without its own subexpression pass, which imports TorchInductor."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with config.patch(cse=False):
        forward, backward = min_cut_rematerialization_partition(joint_gm, joint_inputs, **kw)
    return forward, backward


def tangents_of(joint_gm: torch.fx.GraphModule) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
    """Each gradient that comes into a joint graph as the caller hands it over, and the result that it belongs
    to.

    From torch 2.12 on there is none: AOTAutograd gives them the shapes that it has traced.
    """
    if not torch.__version__.startswith("2.11."):
        return []
    last = joint_gm.graph.output_node()
    results: dict[object, Any] = dict(zip(last.meta.get("desc", ()), tree_leaves(last.args), strict=False))
    pairs = [
        (node, results.get(getattr(node.meta.get("desc"), "output", None)))
        for node in joint_gm.graph.nodes
        if node.op == "placeholder"
    ]
    return [(tangent, result) for tangent, result in pairs if isinstance(result, torch.fx.Node)]


def operator_behind(node: torch.fx.Node) -> str | None:
    """Name, without overload, of the operator that was decomposed into `node` and others, or is it; `None` if
    it is not known.
    """
    original = node.meta.get("original_aten")
    return str(original.overloadpacket) if isinstance(original, Overload) else None
