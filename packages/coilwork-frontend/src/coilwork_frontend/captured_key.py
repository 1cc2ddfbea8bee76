"""The key of Dynamo's graph in the cache of traced graphs: the text of all that AOTAutograd's tracing reads.

Tracing is repeatable for torch's own functions on plain tensors alone. Graphs with anything else have no key,
and are traced in each process: operators and functions of others, wrapper subclasses, sizes that run-time
data decides, and inputs that share memory, of which AOTAutograd makes guards. Graphs that higher-order
operators call are part of the text.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.graph_text import UnkeyableGraphError, argument_text, digest_tensor, value_text
from coilwork_frontend.likely_sizes import describe_likely_sizes
from coilwork_frontend.recurrences.calls import TRACED
from coilwork_frontend.torch_compat.operators import get_namespace
from coilwork_frontend.torch_compat.size_guards import (
    SizeError,
    check_size,
    describe_environment,
    find_size_environment,
)
from coilwork_frontend.torch_compat.sizes import find_symbols
from coilwork_frontend.torch_compat.tensors import (
    get_storage_identity,
    is_fake,
    is_functorch_tensor,
    is_static_input,
)
from coilwork_frontend.torch_compat.traced_results import UnstorableError, describe_tracing_state

_SPACES: Final = ("aten", "prims", "prim")
# Operators that call nested graphs: all that they do is in these and their arguments.
_NESTING: Final = (
    "associative_scan",
    "autograd_function_apply",
    "cond",
    "flex_attention",
    "invoke_subgraph",
    "map_impl",
    "scan",
    "tag_activation_checkpoint",
    "while_loop",
    "wrap",
)
_BUILT_IN: Final = ("torch", "_operator", "math", "builtins")
_NAMESPACES: Final[Mapping[str, object]] = MappingProxyType(
    {"torch": torch, "math": math, "operator": operator, "builtins": builtins}
)
# Marks of nodes that change how graphs are partitioned or ordered.
_MARKS: Final = ("recompute", "ac_graph_id", "stream", "is_wrapped")


def make_captured_key(gm: fx.GraphModule, example_inputs: Sequence[Any], *facts: str) -> str:
    """Return the key text of Dynamo's graph `gm` with `facts`.

    Raises:
        UnkeyableGraphError: another process may trace the graph otherwise; the message says why.
    """
    try:
        lines = [
            describe_tracing_state(),
            *_describe_inputs(gm, example_inputs),
            *_describe_nodes(gm),
            *_describe_sizes(gm, example_inputs),
        ]
    except (UnstorableError, SizeError) as error:
        raise UnkeyableGraphError(str(error)) from error
    return "\n".join((*lines, *facts))


def _describe_sizes(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[str]:
    """Return what is known of symbolic sizes. Of those of the call at hand, it is what compiling uses."""
    environment = find_size_environment()
    values = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    if environment is None or not any(find_symbols(value) for value in (*values, *example_inputs)):
        return []
    return [describe_environment(environment), *describe_likely_sizes(values)]


def _describe_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[str]:
    storages: set[int] = set()
    lines = []
    nodes = gm.graph.find_nodes(op="placeholder")
    if len(nodes) != len(example_inputs):
        raise UnkeyableGraphError("other inputs than the graph's")
    for node, value in zip(nodes, example_inputs, strict=True):
        if isinstance(value, torch.SymInt):
            check_size(value)
            lines.append(f"input {value}")
            continue
        if type(value) not in (torch.Tensor, torch.nn.Parameter) and not (
            isinstance(value, torch.Tensor) and is_fake(value)
        ):
            raise UnkeyableGraphError(f"input of type {type(value).__name__}")
        lines.append(f"input {_describe_tensor(value, node.meta.get('example_value'))}")
        storage = get_storage_identity(value)
        if storage in storages:
            raise UnkeyableGraphError("inputs share memory")
        storages.add(storage)
    return lines


def _describe_tensor(value: torch.Tensor, captured: object = None) -> str:
    """Return the facts about a tensor. Those sizes are symbolic that are in `captured`, its fake."""
    if value.layout != torch.strided or value.is_quantized or is_functorch_tensor(value):
        raise UnkeyableGraphError("input that is no plain tensor")
    for size in (*value.shape, *value.stride(), value.storage_offset()):
        check_size(size)
    marks = (
        value.requires_grad,
        value.is_leaf,
        value.is_inference(),
        isinstance(value, torch.nn.Parameter),
        is_static_input(value),
    )
    base = value._base
    symbolic = isinstance(captured, torch.Tensor) and find_symbols(captured)
    return f"{value_text(captured if symbolic else value)} {marks}" + (
        "" if base is None else f" of {_describe_tensor(base)}"
    )


def _describe_nodes(gm: fx.GraphModule) -> list[str]:
    """Return a line for each node; a nested graph is within the line of the node that names it."""
    if any(True for _ in (*gm.parameters(), *gm.buffers())):
        raise UnkeyableGraphError("parameters that are no inputs")
    numbers: dict[fx.Node, int] = {}
    lines = []
    for number, node in enumerate(gm.graph.nodes):
        numbers[node] = number
        if any(node.meta.get(mark) for mark in _MARKS):
            raise UnkeyableGraphError("marked call")
        _check_value(node.meta.get("example_value"))
        custom = node.meta.get("custom")
        marks = f" custom {argument_text(custom, numbers)}" if custom else ""
        match node.op:
            case "placeholder":
                lines.append("placeholder")
            case "get_attr":
                lines.append(f"attribute {node.target} {_describe_attribute(gm, str(node.target))}")
            case "call_module":
                raise UnkeyableGraphError("call of a module")
            case _:
                args, kwargs = argument_text(node.args, numbers), argument_text(node.kwargs, numbers)
                target = str(node.target) if isinstance(node.target, str) else _describe_function(node.target)
                lines.append(f"{node.op} {target} {args} {kwargs}{marks}")
    return lines


def _describe_attribute(gm: fx.GraphModule, path: str) -> str:
    value: object = reduce(getattr, path.split("."), gm)
    if isinstance(value, fx.GraphModule):
        if value.meta:
            # as the policy of a checkpoint, a function
            raise UnkeyableGraphError(f"nested graph with {', '.join(map(str, value.meta))}")
        return "{" + "; ".join(_describe_nodes(value)) + "}"
    if isinstance(value, torch.Tensor):
        return f"{_describe_tensor(value)} {digest_tensor(value)}"
    raise UnkeyableGraphError(f"attribute that is a {type(value).__name__}")


def _check_value(value: object) -> None:
    """Check that a value of Dynamo's graph has no size from data and is no wrapper subclass."""
    check_size(value, whole=False)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or not (is_fake(value) or type(value) is torch.Tensor):
            raise UnkeyableGraphError(f"value of type {type(value).__name__}")
        if value.is_complex():
            raise UnkeyableGraphError("value that is complex")
        for size in value.shape:
            check_size(size)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_value(item)


def _describe_function(target: object) -> str:
    """Return the name of a function that means the same in each process: one of torch's or of Python's."""
    space = get_namespace(target)
    if space:
        if space not in _SPACES and not (space == "higher_order" and str(target) in _NESTING):
            raise UnkeyableGraphError(f"operator {target} of {space}")
        return f"{space} {target}"
    module, name = getattr(target, "__module__", None) or "", getattr(target, "__qualname__", "")
    root = module.partition(".")[0]
    if isinstance(target, BuiltinFunctionType) and root in _BUILT_IN:
        return f"{module}.{name}"
    if isinstance(target, FunctionType) and root == "torch" and _find(module, name) is target:
        return f"{module}.{name}"
    if target in TRACED.values():
        return f"{module}.{name}"
    raise UnkeyableGraphError(f"call of {target!r}")


def _find(module: str, name: str) -> object:
    """Return what `name` is in `module`, a part of torch; None if there is none."""
    found: object = torch
    for part in (*module.split(".")[1:], *name.split(".")):
        found = getattr(found, part, None)
    return found
