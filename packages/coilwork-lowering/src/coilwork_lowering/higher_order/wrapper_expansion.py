"""Higher-order operators that wrap calls of other operators, and are replaced by these calls.

- `flex_attention` and its backward, where they are no node (`flex_attention.py`): products around a softmax,
  with the user's functions of a score and of its position in between. All scores are in memory once, as in
  eager.
- `auto_functionalized`: AOTAutograd's wrapper of a call that writes into its arguments. It becomes copies of
  the tensors that change, the views of the copies that are arguments, and the call itself.
- `control_deps((a, b), subgraph, b)`: calls an operator after the makers of `a` and `b`, and returns its
  result and `b`. Torch 2.13 wraps every operator that waits or records an event in it, so that no pass moves
  the operator. Such operators are barriers here and stay in place, so the plain calls return.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import fx

from coilwork_lowering.errors import make_refusal
from coilwork_lowering.facts.fx_nodes import get_operator_name, get_origin
from coilwork_lowering.torch_compat.flex_attention import (
    UnbatchedOperatorError,
    limit_calls,
    use_batched_casts,
)
from coilwork_lowering.torch_compat.graphs import copy_graph, find_fake_mode, trace_call
from coilwork_lowering.torch_compat.operators import (
    Overload,
    copy_of_storage,
    list_dense_equivalents,
    list_functionalized_calls,
)
from coilwork_lowering.torch_compat.sizes import is_surely, require, unify_symbols

# ---- Meanings ----


# Called with each node that is expanded, because torch may add guards when it is asked for meanings.
Note: TypeAlias = Callable[[torch.fx.Node], None]


def expand_meanings(
    gm: torch.fx.GraphModule, note: Note, keeps: Callable[[torch.fx.Node, torch.fx.GraphModule], bool]
) -> torch.fx.GraphModule:
    """`gm` itself if it calls none of these operators, else a copy that calls what they stand for.

    Calls that a node of the loop IR says, as `keeps` tells, stay.
    """
    meanings = list_dense_equivalents()
    found = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in meanings]
    names = set[str]()
    for node in found:
        if keeps(node, gm):
            note(node)
        else:
            names.add(node.name)
    if not names:
        return gm
    result = torch.fx.GraphModule(gm, copy_graph(gm.graph))
    result.meta.update(gm.meta)
    for node in list(result.graph.nodes):
        if node.name in names and node.target in meanings:
            _expand_attention(result, node, meanings[node.target])
            note(node)
    return result


def _expand_attention(gm: torch.fx.GraphModule, node: torch.fx.Node, meaning: Callable[..., Any]) -> None:
    """Replace `node` as `expand_call` does.

    Raises:
        LoweringError[no-lowering]: the user's function of a score calls an operator that torch cannot batch.
    """
    try:
        with limit_calls(_shape_of_scores(node)):
            expand_call(gm, node, meaning)
    except UnbatchedOperatorError as cause:
        what = f"{get_operator_name(node)} calls its function for one score at a time"
        raise make_refusal(
            node, "no-lowering", what, origins=(get_origin(node),), reason=str(cause)
        ) from cause


def _get_function(gm: torch.fx.GraphModule, node: torch.fx.Node) -> torch.nn.Module:
    """Return the function that `node` of `gm` names."""
    function = gm.get_submodule(str(node.target))
    return use_batched_casts(function) if isinstance(function, torch.fx.GraphModule) else function


def expand_call(gm: torch.fx.GraphModule, node: torch.fx.Node, meaning: Callable[..., Any]) -> None:
    """Replace `node`, in place, by what `meaning` calls with its arguments. All users of the node
    must take items of its results.
    """
    held = {n: _get_function(gm, n) for n in node.all_input_nodes if n.op == "get_attr"}
    nodes = [n for n in node.all_input_nodes if n not in held]

    def call(*values: Any) -> Any:
        given: dict[torch.fx.Node, Any] = {**held, **dict(zip(nodes, values, strict=True))}
        args = [_replace_nodes(argument, given) for argument in node.args]
        kwargs = {name: _replace_nodes(argument, given) for name, argument in node.kwargs.items()}
        return meaning(*args, **kwargs)

    inner = trace_call(call, [n.meta["val"] for n in nodes], find_fake_mode(gm))
    replaced = dict(zip((n for n in inner.nodes if n.op == "placeholder"), nodes, strict=True))
    with gm.graph.inserting_before(node):
        for old in inner.nodes:
            if old.op == "call_function":
                new = replaced[old] = gm.graph.node_copy(old, replaced.__getitem__)
                new.meta = {**node.meta, "val": old.meta.get("val")}
            elif old.op == "get_attr":
                replaced[old] = _constant(gm, node, getattr(inner.owning_module, str(old.target)))
    results: Any = torch.fx.map_arg(inner.output_node().args[0], replaced.__getitem__)
    _replace_items(gm, node, results)
    gm.graph.erase_node(node)
    for attribute in held:
        if not attribute.users:
            gm.graph.erase_node(attribute)


def _replace_items(gm: torch.fx.GraphModule, node: torch.fx.Node, results: Any) -> None:
    """Replace the items of `node` by those of `results`, and erase them.

    The operator returns a tuple, perhaps with others in it, of which nothing but items can be used.
    """
    for user in list(node.users):
        result = results[user.args[1]]
        if isinstance(result, torch.fx.Node):
            _unify_sizes(result.meta.get("val"), user.meta.get("val"))
            user.replace_all_uses_with(result)
        elif isinstance(result, list | tuple):
            _replace_items(gm, user, result)
        gm.graph.erase_node(user)


def _shape_of_scores(node: torch.fx.Node) -> tuple[Any, ...]:
    """Return the sizes of all scores of `node`, attention with the user's functions."""
    operands: tuple[Any, ...] = node.args[:2]
    query, key = (argument.meta["val"].shape for argument in operands)
    return (*query[:-1], key[-2])


def _unify_sizes(made: Any, known: Any) -> None:
    """Tell torch that sizes from data, which tracing has named once more in `made`, are those of `known`."""
    if not (isinstance(made, torch.Tensor) and isinstance(known, torch.Tensor)):
        return
    sizes: list[tuple[Any, Any]] = list(zip(made.shape, known.shape, strict=True))
    for size, same in sizes:
        if isinstance(size, torch.SymInt) and isinstance(same, torch.SymInt):
            unify_symbols(size, same)
        if not is_surely(size == same):
            require(size == same, lambda: "one size")


def _replace_nodes(argument: Any, given: Mapping[torch.fx.Node, Any]) -> Any:
    """`argument` with values for nodes. `map_arg` makes lists of torch's own kind, and takes no modules."""
    match argument:
        case torch.fx.Node():
            return given[argument]
        case list():
            return [_replace_nodes(item, given) for item in argument]
        case tuple():
            return tuple(_replace_nodes(item, given) for item in argument)
        case dict():
            return {key: _replace_nodes(item, given) for key, item in argument.items()}
    return argument


def _constant(gm: torch.fx.GraphModule, node: torch.fx.Node, value: Any) -> torch.fx.Node:
    """Return a new attribute of `gm`, which tracing found in no argument of `node`."""
    count = 0
    while hasattr(gm, f"{node.name}_constant{count}"):
        count += 1
    name = f"{node.name}_constant{count}"
    if isinstance(value, torch.Tensor):
        gm.register_buffer(name, value)
    else:
        setattr(gm, name, value)
    return gm.graph.get_attr(name)


# ---- auto_functionalized ----


def expand_functionalized_calls(gm: torch.fx.GraphModule, note: Note) -> torch.fx.GraphModule:
    """`gm` itself if it wraps no operator, else a copy that calls them."""
    wrappers = list_functionalized_calls(_copy_view)
    if not any(_is_wrapped(node, wrappers) for node in gm.graph.nodes):
        return gm
    result = torch.fx.GraphModule(gm, copy_graph(gm.graph))
    result.meta.update(gm.meta)
    for node in list(result.graph.nodes):
        if _is_wrapped(node, wrappers):
            expand_call(result, node, wrappers[node.target])
            note(node)
    return result


def _copy_view(value: torch.Tensor) -> torch.Tensor:
    """Return a copy of `value`, in which views lie as in `value`: with what surrounds it in its storage,
    where something does.
    """
    if is_surely(value.storage_offset() == 0) and _is_dense(value):
        return value.clone()
    return copy_of_storage(value)


def _is_dense(value: torch.Tensor) -> bool:
    """Tell if the elements surely fill a stretch of memory, each its own place."""
    pairs = sorted(
        (
            (step, size)
            for step, size in zip(value.stride(), value.shape, strict=True)
            if not is_surely(size == 1)
        ),
        key=lambda pair: [is_surely(pair[0] > step) for step in value.stride()].count(True),
    )
    below: Any = 1
    for step, size in pairs:
        if not is_surely(step == below):
            return False
        below = below * size
    return True


def _is_wrapped(node: torch.fx.Node, wrappers: dict[Any, Any]) -> bool:
    # what wraps a higher-order operator stays, and is refused by its name
    return node.op == "call_function" and node.target in wrappers and isinstance(node.args[0], Overload)


# ---- control_deps ----


def expand_control_deps(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm` itself if it ties no calls, else a copy that makes them where they stand."""
    if not any(_is_tied(node) for node in gm.graph.nodes):
        return gm
    result = fx.GraphModule(gm, copy_graph(gm.graph))
    result.meta.update(gm.meta)
    # from behind: the last of them are tied to earlier ones, which they name
    for node in reversed([node for node in result.graph.nodes if _is_tied(node)]):
        _expand_wrapper(result, node)
    return result


def _is_tied(node: fx.Node) -> bool:
    return node.op == "call_function" and get_operator_name(node) == "control_deps"


def _expand_wrapper(gm: fx.GraphModule, node: fx.Node) -> None:
    """Replace `node`, in place, by what its subgraph calls."""
    attribute: Any = node.args[1]
    subgraph: Any = gm.get_submodule(str(attribute.target))
    inner: fx.Graph = subgraph.graph
    values: dict[fx.Node, Any] = dict(zip(inner.find_nodes(op="placeholder"), node.args[2:], strict=True))
    with gm.graph.inserting_before(node):
        for item in inner.nodes:
            if item.op == "call_function":
                values[item] = gm.graph.node_copy(item, values.__getitem__)
    returned: Any = fx.map_arg(inner.output_node().args[0], values.__getitem__)
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(returned[user.args[1]])
            gm.graph.erase_node(user)
    if node.users:
        node.replace_all_uses_with(returned)
    gm.graph.erase_node(node)
    if not attribute.users:
        gm.graph.erase_node(attribute)
