"""Clean-up of every functional graph, before it is laid out or partitioned.

The passes are dropping of identities, common subexpression elimination, rewriting, and dead code elimination.
They run before partitioning, so that nothing is saved or recomputed twice. `complete_values` makes fake
values for nodes that users' passes left without.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import fx

from coilwork_ir.operators import find_info, find_target_info
from coilwork_lowering.facts.alias_analysis import (
    find_owner,
    find_written_owners,
    is_returned,
    list_mutated_operands,
    view_source,
)
from coilwork_lowering.rewrites.engine import rewrite_graph
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite
from coilwork_lowering.torch_compat.graphs import copy_graph, find_mode_among
from coilwork_lowering.torch_compat.operators import Overload, get_qualified_name, get_schema

# common subexpressions


def merge_common_subexpressions(graph: torch.fx.Graph) -> int:
    """Replace calls that repeat an earlier one in `graph`, in place; returns how many.

    Two results that the graph returns, or views of them, stay two: their caller may write into one of them.
    The same holds where a call of the graph writes into one of two.

    Only pure operators on values take part: nothing random, nothing that writes, no higher-order operator.
    Two calls are equal when target, arguments and the autograd region (forward or backward) are, and nothing
    writes into the arguments' memory in between.
    """
    seen: dict[Any, torch.fx.Node] = {}
    written = {find_owner(operand) for node in graph.nodes for operand in list_mutated_operands(node)}
    writes: Counter[torch.fx.Node] = Counter()
    replaced = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if not is_pure(node.target):
            writes.update(find_written_owners(node))
            continue
        if node.meta.get("unbacked_bindings"):
            # other results have the sizes that this one defines, `x[:n.item()]`, under the names that it
            # gives them
            continue
        if node in written:
            # what is equal to it is so until the write
            continue
        key = _call_key(node)
        if writes:
            key = (key, *(writes[find_owner(operand)] for operand in node.all_input_nodes))
        first = seen.setdefault(key, node)
        if first is not node and not _returns_both(first, node):
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            replaced += 1
    return replaced


def _returns_both(first: torch.fx.Node, second: torch.fx.Node) -> bool:
    return view_source(second) is None and is_returned(second) and is_returned(first)


@cache
def is_pure(target: Any) -> bool:
    """Tell if equal calls of `target` have equal results, and nothing else happens."""
    if target is operator.getitem:
        return True
    if not isinstance(target, Overload):
        return False
    schema = get_schema(target)
    if schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    if target.namespace not in ("aten", "prims"):
        return False
    if find_info(schema.name.split("::")[-1]).is_uninitialized:
        # fresh memory, whose contents somebody may write: two calls are two tensors
        return False
    # a result that defines sizes defines them once
    return (
        torch.Tag.dynamic_output_shape not in target.tags
        and torch.Tag.data_dependent_output not in target.tags
    )


def _call_key(node: torch.fx.Node) -> Any:
    return (
        node.target,
        _hashable(node.args),
        _hashable(node.kwargs),
        node.meta.get("partitioner_tag"),
        # recomputation is decided per tag: values of differently checkpointed regions stay apart
        node.meta.get("recompute"),
        node.meta.get("ac_graph_id"),
    )


def _hashable(value: Any) -> Any:
    kind = type(value)
    if kind is torch.fx.Node or kind is int or kind is bool:
        return (kind, value)
    if isinstance(value, list | tuple):
        return (kind, *[_hashable(part) for part in value])
    if isinstance(value, dict):
        return ("dict", *((k, _hashable(v)) for k, v in sorted(value.items())))
    if isinstance(value, slice):
        return ("slice", _hashable(value.start), _hashable(value.stop), _hashable(value.step))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return ("symbolic", id(value))
    # 1 == 1.0 == True, and 0.0 == -0.0, but they are different arguments
    return (kind, repr(value) if isinstance(value, float | complex) else value)


# dead code


def drop_dead_code(gm: fx.GraphModule) -> int:
    """Take out of `gm`, in place, pure calls without readers; returns how many.

    Calls that write, check, have effects or return nothing stay. Random draws stay since later ones would
    change, and calls that define sizes since others may mention them.
    """
    dropped = drop_dead_code_in(gm.graph)
    if dropped:
        gm.recompile()
    return dropped


def drop_dead_code_in(graph: fx.Graph) -> int:
    """Run `drop_dead_code` on a graph that is no module yet, or is still being changed."""
    dropped = 0
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and _is_removable(node.target):
            graph.erase_node(node)
            dropped += 1
    return dropped


def _is_removable(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, Overload) or target.namespace not in ("aten", "prims"):
        return False
    schema = get_schema(target)
    required = {
        torch.Tag.nondeterministic_seeded,
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
    }
    makes_tensors = bool(schema.returns) and all("Tensor" in str(r.type) for r in schema.returns)
    named = schema.name.split("::")[-1]
    checks = "assert" in named or "check" in named or "token" in named
    return makes_tensors and not checks and not schema.is_mutable and required.isdisjoint(target.tags)


# identities


def drop_identities(graph: torch.fx.Graph) -> int:
    """Let readers of `detach` and `alias` read the operand, in place; returns how many calls went.

    In a functional graph they change nothing, but a partitioner takes them for kernels of their own, and what
    these read in the backward for values that must be in memory: it would save the `tanh` of every GELU. A
    call that the graph returns stays for that output alone, so that outputs are as many tensors as before.
    What a checkpointed region decided about them is of no consequence.
    """
    dropped = 0
    output = graph.output_node()
    for node in list(graph.nodes):
        if node.op != "call_function" or not _is_identity(node.target):
            continue
        (source, *_) = node.args
        assert isinstance(source, torch.fx.Node)
        readers = [user for user in node.users if user is not output]
        for user in readers:
            user.replace_input_with(node, source)
        if not node.users:
            graph.erase_node(node)
            dropped += 1
    return dropped


def _is_identity(target: Any) -> bool:
    if not isinstance(target, Overload):
        return False
    info = find_target_info(get_qualified_name(target))
    return info.is_view and info.is_identity


# all passes


def clean_up(gm: fx.GraphModule, rewrites: Sequence[Rewrite]) -> tuple[Fired, ...]:
    """`gm`, changed in place: identities and repeated calls dropped, `rewrites` done, what is
    dead taken out.
    """
    fired = clean_up_in(gm.graph, rewrites)
    gm.recompile()
    return fired


def clean_up_copy(
    gm: fx.GraphModule, rewrites: Sequence[Rewrite]
) -> tuple[fx.GraphModule, tuple[Fired, ...]]:
    """Return a copy of `gm` after `clean_up`, and what `rewrites` did to it."""
    graph = copy_graph(gm.graph)
    fired = clean_up_in(graph, rewrites)
    copy = fx.GraphModule(gm, graph)
    copy.meta.update(gm.meta)
    return copy, fired


def clean_up_in(graph: fx.Graph, rewrites: Sequence[Rewrite]) -> tuple[Fired, ...]:
    """`clean_up` of a graph that is no module yet.

    Repeated calls go first, so that a pattern finds one reader where there is one; and again, where rewrites
    made calls equal.
    """
    drop_identities(graph)
    merge_common_subexpressions(graph)
    fired = rewrite_graph(graph, rewrites)
    if fired:
        merge_common_subexpressions(graph)
    drop_dead_code_in(graph)
    return fired


# missing values


def complete_values(gm: fx.GraphModule) -> int:
    """Give every call of `gm` without `meta["val"]` one, in place; returns how many.

    Each is computed from its operands' in their fake tensor mode. A call that is there already keeps its
    value: a pass that gives it other operands, with another result, has to delete it.
    """
    mode = find_mode_among(node.meta.get("val") for node in gm.graph.nodes)
    completed = 0
    for node in gm.graph.nodes:
        if node.op != "call_function" or "val" in node.meta or not callable(node.target):
            continue
        args: Any = fx.map_arg(node.args, _fake_value)
        kwargs: Any = fx.map_arg(node.kwargs, _fake_value)
        with nullcontext() if mode is None else mode:
            node.meta["val"] = node.target(*args, **kwargs)
        completed += 1
    return completed


def _fake_value(node: fx.Node) -> Any:
    return node.meta["val"]
