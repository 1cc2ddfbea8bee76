"""Handle the graphs that a captured graph calls: regions, branches and loop bodies.

`invoke_subgraph` (from `torch.compiler.nested_compile_region`), `foreach_map`, `strict_mode` and
`hints_wrapper` are inlined. AOTAutograd
would keep them apart, without fusion or partitioning across the call, and refuses regions that train and
update buffers. Equal kernels are built once anyway.

The results of what `scan` calls become copies in a graph that trains: AOTAutograd keeps intermediate values
as further results of the call, and refuses a call that returns one tensor twice. Lowering leaves such copies
out.

AOTAutograd orders calls with effects, such as prints, by tokens, and passes none into a branch or a loop
body: the effect would happen once, while tracing. `find_subgraph_effects` finds those calls, which run in
eager mode.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx
from torch.fx.node import map_arg

from coilwork_frontend.errors import CompileError
from coilwork_frontend.torch_compat.operators import is_ordered_by_token

# ---- Inlining ----


# operators that call a graph, by name, and the graph's operands among their arguments
_GRAPH_CALLS: Final[Mapping[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]] = MappingProxyType(
    {
        "invoke_subgraph": lambda args: args[2:],
        "foreach_map": lambda args: args[1:],
        "strict_mode": lambda args: tuple(args[1]),
        "hints_wrapper": lambda args: tuple(args[1]),
    }
)


def inline_subgraphs(gm: fx.GraphModule) -> None:
    """Inline the subgraphs that Dynamo's graph `gm` and its nested graphs call, in place."""
    for child in list(gm.children()):
        if isinstance(child, fx.GraphModule):
            inline_subgraphs(child)
    calls = [node for node in gm.graph.nodes if _name_of(node) in _GRAPH_CALLS]
    for call in calls:
        _inline_call(gm, call)
    if calls:
        _erase_unused_attributes(gm)
        _bind_sizes_once(gm)
        gm.recompile()


def _name_of(node: fx.Node) -> str:
    """Return the name of the higher-order operator that `node` calls; of another node, empty."""
    target = node.target
    is_higher_order = getattr(target, "namespace", "") == "higher_order"
    return str(getattr(target, "__name__", "")) if node.op == "call_function" and is_higher_order else ""


def _inline_call(gm: fx.GraphModule, call: fx.Node) -> None:
    """Replace `invoke_subgraph(region, identifier, *operands)` by a copy of the nodes of `region`."""
    attribute, operands = call.args[0], _GRAPH_CALLS[_name_of(call)](call.args)
    assert isinstance(attribute, fx.Node) and isinstance(attribute.target, str)
    region = gm.get_submodule(attribute.target)
    assert isinstance(region, fx.GraphModule)
    copies: dict[fx.Node, Any] = dict(zip(region.graph.find_nodes(op="placeholder"), operands, strict=True))
    results: Any = None
    with gm.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op == "output":
                results = map_arg(node.args[0], copies.__getitem__)
            elif node.op == "get_attr":
                copies[node] = gm.graph.get_attr(f"{attribute.target}.{node.target}")
                copies[node].meta.update(node.meta)
            elif node.op != "placeholder":
                copies[node] = gm.graph.node_copy(node, copies.__getitem__)
    for user in list(call.users):
        # Dynamo unpacks the results at once
        assert user.target is operator.getitem
        result = results[user.args[1]]
        if isinstance(result, fx.Node):
            user.replace_all_uses_with(result)
        else:
            _replace_by_value(user, result)
        gm.graph.erase_node(user)
    gm.graph.erase_node(call)


def _replace_by_value(node: fx.Node, value: Any) -> None:
    """Replace `node` in its users by `value`, None or a number."""
    for user in list(node.users):
        user.args = map_arg(user.args, lambda other: value if other is node else other)
        user.kwargs = map_arg(user.kwargs, lambda other: value if other is node else other)


def _erase_unused_attributes(gm: fx.GraphModule) -> None:
    for node in gm.graph.find_nodes(op="get_attr"):
        if not node.users:
            gm.graph.erase_node(node)


def _bind_sizes_once(gm: fx.GraphModule) -> None:
    """Let the first node alone, among those with one symbol for a size that the data tell, name that size.

    A region that is called twice has the nodes twice. AOTAutograd gives each its own symbol while it traces,
    and refuses to rename two of them to one.
    """
    named = set[Any]()
    for node in gm.graph.nodes:
        bindings = node.meta.get("unbacked_bindings") or {}
        if bindings.keys() & named:
            del node.meta["unbacked_bindings"]
        named |= bindings.keys()


# ---- Scans ----


def copy_scan_results(gm: fx.GraphModule) -> None:
    """Copy what the functions of scans in Dynamo's graph `gm` and its nested graphs return, in place."""
    for child in list(gm.children()):
        if isinstance(child, fx.GraphModule):
            copy_scan_results(child)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.scan):
        function = gm.get_submodule(str(getattr(node.args[0], "target", "")))
        if isinstance(function, fx.GraphModule) and any(map(_may_train, node.all_input_nodes)):
            _copy_results(function)


def _may_train(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _copy_results(function: fx.GraphModule) -> None:
    output = function.graph.output_node()
    with function.graph.inserting_before(output):

        def copy(result: fx.Node) -> fx.Node:
            if not isinstance(result.meta.get("example_value"), torch.Tensor):
                return result
            copied = function.graph.call_method("clone", (result,))
            copied.meta = dict(result.meta)
            return copied

        output.args = map_arg(output.args, copy)
    function.recompile()


# ---- Effects ----


def find_subgraph_effects(gm: fx.GraphModule) -> tuple[list[fx.Node], CompileError | None]:
    """Return calls in Dynamo's graph `gm` of graphs that have effects, and the error that says so.

    The error is None if there are none.
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
