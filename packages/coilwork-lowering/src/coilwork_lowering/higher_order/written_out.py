"""Higher-order operators that stand for calls of other operators, and are replaced by them.

- `flex_attention` and its backward: products around a softmax, with the user's functions of a score and of
  its place in between. All scores are in memory once, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from coilwork_lowering.torch_compat.graphs import copy_graph, fake_mode_of, trace_call
from coilwork_lowering.torch_compat.operators import list_dense_equivalents
from coilwork_lowering.torch_compat.sizes import require, surely, unify_symbols

# told of each node when it is written out, which asks torch for meanings and may add guards
Note: TypeAlias = Callable[[torch.fx.Node], None]


def write_out_meanings(gm: torch.fx.GraphModule, note: Note) -> torch.fx.GraphModule:
    """`gm` itself if it calls none of these operators, else a copy that calls what they stand for."""
    meanings = list_dense_equivalents()
    if not any(node.op == "call_function" and node.target in meanings for node in gm.graph.nodes):
        return gm
    made = torch.fx.GraphModule(gm, copy_graph(gm.graph))
    made.meta.update(gm.meta)
    for node in list(made.graph.nodes):
        if node.op == "call_function" and node.target in meanings:
            write_out(made, node, meanings[node.target])
            note(node)
    return made


def write_out(gm: torch.fx.GraphModule, node: torch.fx.Node, meaning: Callable[..., Any]) -> None:
    """Replace `node`, in place, by what `meaning` calls with its arguments. The results must be taken apart
    at once.
    """
    held = {n: gm.get_submodule(str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"}
    nodes = [n for n in node.all_input_nodes if n not in held]

    def call(*values: Any) -> Any:
        given: dict[torch.fx.Node, Any] = {**held, **dict(zip(nodes, values, strict=True))}
        args = [_replace_nodes(argument, given) for argument in node.args]
        kwargs = {name: _replace_nodes(argument, given) for name, argument in node.kwargs.items()}
        return meaning(*args, **kwargs)

    inner = trace_call(call, [n.meta["val"] for n in nodes], fake_mode_of(gm))
    replaced = dict(zip((n for n in inner.nodes if n.op == "placeholder"), nodes, strict=True))
    with gm.graph.inserting_before(node):
        for old in inner.nodes:
            if old.op == "call_function":
                new = replaced[old] = gm.graph.node_copy(old, replaced.__getitem__)
                new.meta = {**node.meta, "val": old.meta.get("val")}
            elif old.op == "get_attr":
                replaced[old] = _constant(gm, node, getattr(inner.owning_module, str(old.target)))
    results: Any = torch.fx.map_arg(inner.output_node().args[0], replaced.__getitem__)
    for user in list(node.users):
        # the operator returns a tuple, of which nothing but items can be used
        found = results[user.args[1]]
        if isinstance(found, torch.fx.Node):
            _same_sizes(found.meta.get("val"), user.meta.get("val"))
            user.replace_all_uses_with(found)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
    for attribute in held:
        if not attribute.users:
            gm.graph.erase_node(attribute)


def _same_sizes(made: Any, known: Any) -> None:
    """Torch learns that sizes from data, which tracing has named once more in `made`, are those
    of `known`.
    """
    if not (isinstance(made, torch.Tensor) and isinstance(known, torch.Tensor)):
        return
    sizes: list[tuple[Any, Any]] = list(zip(made.shape, known.shape, strict=True))
    for size, same in sizes:
        if isinstance(size, torch.SymInt) and isinstance(same, torch.SymInt):
            unify_symbols(size, same)
        if not surely(size == same):
            require(size == same, lambda: "one size")


def _replace_nodes(argument: Any, given: Mapping[torch.fx.Node, Any]) -> Any:
    """`argument` with values for nodes. `map_arg` makes lists of torch's own kind, and takes no modules."""
    match argument:
        case torch.fx.Node():
            return given[argument]
        case list():
            return [_replace_nodes(one, given) for one in argument]
        case tuple():
            return tuple(_replace_nodes(one, given) for one in argument)
        case dict():
            return {key: _replace_nodes(one, given) for key, one in argument.items()}
    return argument


def _constant(gm: torch.fx.GraphModule, node: torch.fx.Node, value: Any) -> torch.fx.Node:
    """A new attribute of `gm`, which tracing found in no argument of `node`."""
    count = 0
    while hasattr(gm, f"{node.name}_constant{count}"):
        count += 1
    name = f"{node.name}_constant{count}"
    if isinstance(value, torch.Tensor):
        gm.register_buffer(name, value)
    else:
        setattr(gm, name, value)
    return gm.graph.get_attr(name)
