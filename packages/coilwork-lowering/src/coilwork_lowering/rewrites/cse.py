"""Common subexpressions of an FX graph, merged before partitioning so that nothing is saved or recomputed
twice.
"""

from __future__ import annotations

import operator
from collections import Counter
from functools import cache
from typing import Any

import torch

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.sharing import escapes, owner_of, owners_written_by, viewed_by, written_operands
from coilwork_lowering.torch_compat.operators import Overload, schema_of


def merge_common_subexpressions(graph: torch.fx.Graph) -> int:
    """Replace calls that repeat an earlier one in `graph`, in place; returns how many.

    Two results that the graph returns, or views of them, stay two: their caller may write into one of them.
    So do two of which a call writes into one: `torch.zeros` for what two calls receive.

    Only pure operators on values take part: nothing random, nothing that writes, no higher-order operator.
    Two calls are equal when target, arguments and the autograd region (forward or backward) are, and nothing
    writes into the arguments' memory in between.
    """
    seen: dict[Any, torch.fx.Node] = {}
    written = {owner_of(operand) for node in graph.nodes for operand in written_operands(node)}
    writes: Counter[torch.fx.Node] = Counter()
    replaced = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if not is_pure(node.target):
            writes.update(owners_written_by(node))
            continue
        if node.meta.get("unbacked_bindings"):
            # other results have the sizes that this one defines, `x[:n.item()]`, under the names that it
            # gives them
            continue
        if node in written:
            # what is equal to it is so until the write
            continue
        key = _key(node)
        if writes:
            key = (key, *(writes[owner_of(operand)] for operand in node.all_input_nodes))
        first = seen.setdefault(key, node)
        if first is not node and not _returns_both(first, node):
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            replaced += 1
    return replaced


def _returns_both(first: torch.fx.Node, second: torch.fx.Node) -> bool:
    return viewed_by(second) is None and escapes(second) and escapes(first)


@cache
def is_pure(target: Any) -> bool:
    """Tell if equal calls of `target` have equal results, and nothing else happens."""
    if target is operator.getitem:
        return True
    if not isinstance(target, Overload):
        return False
    schema = schema_of(target)
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


def _key(node: torch.fx.Node) -> Any:
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
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(_hashable(v) for v in value))
    if isinstance(value, dict):
        return ("dict", *((k, _hashable(v)) for k, v in sorted(value.items())))
    if isinstance(value, slice):
        return ("slice", _hashable(value.start), _hashable(value.stop), _hashable(value.step))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return ("symbolic", id(value))
    # 1 == 1.0 == True, and 0.0 == -0.0, but they are different arguments
    return (type(value).__name__, repr(value) if isinstance(value, float | complex) else value)
