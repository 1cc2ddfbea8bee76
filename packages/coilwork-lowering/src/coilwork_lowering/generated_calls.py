"""Calls of a captured graph that generated code computes and that ATen could run instead."""

from __future__ import annotations

import torch

from coilwork_ir.loc import Origin
from coilwork_lowering.facts.fx_nodes import is_view, operator_name, origin_of
from coilwork_lowering.registry import RULES


def list_generated_calls(gm: torch.fx.GraphModule, *, views: bool) -> tuple[Origin, ...]:
    """Calls of operators that have a rule, in order, those in the graphs of control flow included.

    Equal graphs give calls in one order, whatever their nodes are called. With `views`, calls that compute
    nothing are among them.
    """
    return tuple(
        origin_of(node)
        for module in gm.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function" and operator_name(node) in RULES and (views or not is_view(node))
    )
