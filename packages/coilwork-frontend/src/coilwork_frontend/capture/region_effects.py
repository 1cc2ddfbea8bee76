"""Calls with effects inside of branches and loop bodies, which torch's tracing loses.

AOTAutograd orders calls with effects by tokens that it hands from one to the next. Into the graph of a branch
or of a loop body it hands none: what is printed there is printed while the graph is traced, and never again.
"""

from __future__ import annotations

from torch import fx

from coilwork_frontend.errors import CompileError
from coilwork_frontend.torch_compat.operators import is_ordered_by_token


def find_region_effects(gm: fx.GraphModule) -> tuple[list[fx.Node], CompileError | None]:
    """The calls in Dynamo's graph `gm` of graphs with such calls, and why they are not traced; None: there
    are none.
    """
    calls = [node for node in gm.graph.nodes if node.op == "call_function" and _hides_effects(gm, node)]
    if not calls:
        return [], None
    error = CompileError(
        "lost-effect",
        f"{calls[0].name} calls a graph that prints, or has another effect",
        reason="torch's tracing loses effects in branches and loop bodies",
        remedy="print before or behind the call",
    )
    return calls, error


def _hides_effects(gm: fx.GraphModule, node: fx.Node) -> bool:
    regions = [getattr(gm, str(one.target), None) for one in node.all_input_nodes if one.op == "get_attr"]
    return any(isinstance(one, fx.GraphModule) and _has_effects(one) for one in regions)


def _has_effects(region: fx.GraphModule) -> bool:
    return any(
        node.op == "call_function" and (is_ordered_by_token(node.target) or _hides_effects(region, node))
        for node in region.graph.nodes
    )
