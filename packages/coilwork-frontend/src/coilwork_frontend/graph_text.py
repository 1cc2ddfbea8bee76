"""The cache key of a captured graph: the text of everything that decides what is compiled from it.

The text has positions of nodes and not their names, types, layouts and devices of inputs, and names and
contents of tensor attributes. The user's source lines are left out: they only change comments in generated
code.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from coilwork_frontend.likely_sizes import describe_likely_sizes
from coilwork_frontend.torch_compat.operators import is_operator
from coilwork_frontend.torch_compat.sizes import list_symbol_facts
from coilwork_frontend.torch_compat.tensors import leave_fake_mode


def make_graph_text(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Return canonical text of `gm` as called with `example_inputs`; equal texts compile to equal code.

    Raises:
        UnkeyableGraphError: an argument has no canonical text, such as a script object.
    """
    lines = [f"input {position} {value_text(value)}" for position, value in enumerate(example_inputs)]
    lines.append(_symbol_text(gm))
    lines.extend(_graph_lines(gm))
    return "\n".join(lines)


def identify_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *facts: str
) -> tuple[str | None, str]:
    """Return the key text of `gm` with `facts`, None if it cannot be cached, and a text that identifies
    it."""
    try:
        text = "\n".join((make_graph_text(gm, example_inputs), *facts))
    except UnkeyableGraphError:
        return None, gm.code
    return text, text


class UnkeyableGraphError(Exception):
    """The graph holds something without canonical text. It is compiled, but not cached."""


def _graph_lines(gm: torch.fx.GraphModule) -> list[str]:
    numbers: dict[torch.fx.Node, int] = {}
    lines: list[str] = []
    for number, node in enumerate(gm.graph.nodes):
        numbers[node] = number
        if node.op == "placeholder":
            lines.append(f"{number} placeholder {value_text(node.meta.get('val'))}")
        elif node.op == "get_attr":
            # a cached module looks up its constants by name
            lines.append(f"{number} attribute {node.target} {_attribute_text(gm, str(node.target))}")
        else:
            args = argument_text(node.args, numbers)
            kwargs = argument_text(node.kwargs, numbers)
            value = value_text(node.meta.get("val")) if node.op == "call_function" else ""
            # the operator that the call was decomposed from may decide how it is lowered
            original = node.meta.get("original_aten")
            part = f" of {original}" if is_operator(original) and original is not node.target else ""
            lines.append(f"{number} {_target_text(node.target)}{part} {args} {kwargs} -> {value}")
    return lines


def _target_text(target: object) -> str:
    if is_operator(target):
        return str(target)
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "")
    name = getattr(target, "__qualname__", "")
    if not name:
        raise UnkeyableGraphError(f"call of {target!r}")
    return f"{module}.{name}"


def _attribute_text(gm: torch.fx.GraphModule, path: str) -> str:
    value: object = gm
    for part in path.split("."):
        value = getattr(value, part)
    if isinstance(value, torch.fx.GraphModule):
        return "{" + "; ".join(_graph_lines(value)) + "}"
    if isinstance(value, torch.Tensor):
        return f"{value_text(value)} {digest_tensor(value)}"
    raise UnkeyableGraphError(f"attribute {path} is a {type(value).__name__}")


def digest_tensor(value: torch.Tensor) -> str:
    """Return a hash of the contents of `value`, row-major.

    Raises:
        UnkeyableGraphError: the tensor is sparse, quantized or the like.
    """
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
        raise UnkeyableGraphError(f"tensor attribute of layout {value.layout} on {value.device}")
    with leave_fake_mode():
        dense = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    size_bytes = dense.numel() * dense.element_size()
    data = (ctypes.c_char * size_bytes).from_address(dense.data_ptr()) if size_bytes else b""
    return hashlib.sha256(data).hexdigest()


def value_text(value: object) -> str:
    match value:
        case torch.Tensor():
            shape = ",".join(map(str, value.shape))
            if value.layout != torch.strided:
                return f"{value.dtype}[{shape}]({value.layout}){value.device}"
            strides = ",".join(map(str, value.stride()))
            # alignment and `as_strided` depend on the offset
            offset = value.storage_offset()
            begins = "" if type(offset) is int and offset == 0 else f"+{offset}"
            marks = f"{'*' * value.is_conj()}{'-' * value.is_neg()}"
            return f"{value.dtype}{marks}[{shape}]({strides}){begins}{value.device}"
        case None | bool() | int() | float() | str():
            return repr(value)
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return str(value)
        case list() | tuple():
            return "(" + ",".join(value_text(item) for item in value) + ")"
        case _:
            raise UnkeyableGraphError(f"value of type {type(value).__name__}")


def argument_text(value: object, numbers: Mapping[torch.fx.Node, int]) -> str:
    match value:
        case torch.fx.Node():
            return f"%{numbers[value]}"
        case list() | tuple():
            return "(" + ",".join([argument_text(item, numbers) for item in value]) + ")"
        case None | bool() | int() | float() | str():
            return repr(value)
        case Mapping():
            return "{" + ",".join(f"{k}={argument_text(v, numbers)}" for k, v in value.items()) + "}"
        case slice():
            bounds = (value.start, value.stop, value.step)
            return f"slice({','.join(argument_text(bound, numbers) for bound in bounds)})"
        case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
            return str(value)
        case _ if is_operator(value):
            return str(value)
        case _:
            return value_text(value)


def _symbol_text(gm: torch.fx.GraphModule) -> str:
    """Return the bounds, guards and likely values of the size symbols of `gm`, which compiling uses.

    For one, a dimension that is guarded to be 1 has another stride than one that is guarded not to be.
    """
    for node in gm.graph.nodes:
        for size in _symbolic_sizes(node.meta.get("val")):
            environment = size.node.shape_env
            if environment is not None:
                ranges = sorted(f"{symbol}:{bounds}" for symbol, bounds in environment.var_to_range.items())
                values = (node.meta.get("val") for node in gm.graph.nodes)
                facts = [*ranges, *list_symbol_facts(environment), *describe_likely_sizes(values)]
                return "symbols " + "; ".join(facts)
    return "symbols"


def _symbolic_sizes(value: object) -> Iterator[torch.SymInt]:
    if isinstance(value, torch.SymInt):
        yield value
    elif isinstance(value, torch.Tensor):
        sizes: Sequence[object] = value.shape
        yield from (size for size in sizes if isinstance(size, torch.SymInt))
