"""Quantised tensors. Torch captures them as tensors of `float32`; here they get their type back, call by
call.

Only operators read and make them: what a call of a quantised operand returns, and capture calls `float32`, is
quantised as well, except for what `dequantize` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.loc import Origin
from coilwork_ir.operators import find_target_info
from coilwork_lowering.building.values import TensorValue, Value, get_dtype
from coilwork_lowering.errors import MistracedError
from coilwork_lowering.torch_compat.operators import (
    Overload,
    get_qualified_name,
    get_schema,
    has_quantized_kernel,
    is_quantizing,
)

_DEQUANTIZE: Final = "aten.dequantize"


def find_quantized_type(target: Overload, arguments: Mapping[str, Value]) -> DType | None:
    """Return the element type of those results of a call that capture calls `float32`, if it is a quantised
    one.
    """
    name = get_qualified_name(target)
    if is_quantizing(target):
        given = arguments.get("dtype")
        return get_dtype(given) if isinstance(given, torch.dtype) else None
    return None if name.startswith(_DEQUANTIZE) else _operand_type(arguments)


def is_dequantizing(name: str, arguments: Mapping[str, Value]) -> bool:
    """Tell whether a call of `name` makes floats of quantised tensors: contiguous ones, or channels-last,
    which capture takes for its operands.
    """
    return name.startswith(_DEQUANTIZE) and _operand_type(arguments) is not None


def require_kernel(
    node: torch.fx.Node, target: Overload, arguments: Mapping[str, Value], origin: Origin
) -> None:
    """Refuse calls that eager would not make of quantised operands: capture took them for others, and chose
    by that.

    Raises:
        MistracedError: the operator has no kernel for them.
    """
    operand = next(_iterate_quantized(arguments.values()), None)
    if operand is None or target.namespace not in ("aten", "prims"):
        return
    device = operand.device.partition(":")[0]
    if _is_view(target) or has_quantized_kernel(target, device):
        return
    raise MistracedError(
        "mistraced",
        f"{get_qualified_name(target)} has no kernel for tensors of type {operand.dtype.torch_name}",
        node=node.format_node() or node.name,
        origins=(origin,),
        reason=(
            "torch captures quantised tensors as tensors of float32, and decomposes what is done to them "
            "accordingly"
        ),
        remedy="dequantize before, or keep the call out of the compiled region with torch.compiler.disable",
    )


def require_floats(
    node: torch.fx.Node, operator: str, values: Iterable[Value], origins: tuple[Origin, ...]
) -> None:
    """Refuse quantised tensors among `values`, where an operator of control flow hands them from region to
    region.

    Raises:
        MistracedError: one is; capture says that it is of floats, and gives all rounds and branches that
            type.
    """
    result = next(_iterate_quantized(values), None)
    if result is None:
        return
    raise MistracedError(
        "mistraced",
        f"a tensor of type {result.dtype.torch_name} is what {operator} gives from region to region",
        node=node.format_node() or node.name,
        origins=origins,
        reason=(
            "torch captures quantised tensors as tensors of float32, and so are the results of such an "
            "operator declared"
        ),
        remedy=(
            "dequantize what branches and loop bodies return, or keep the operator out of the compiled "
            "region with torch.compiler.disable"
        ),
    )


def list_quantized_nodes(graph: torch.fx.Graph) -> tuple[torch.fx.Node, ...]:
    """Return calls in `graph`, which may be a joint one, whose results are quantised, in order."""
    results: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, Overload) and _is_quantizing(node.target):
            results[node] = None
        elif results and any(given in results for given in node.all_input_nodes):
            dequantizes = isinstance(node.target, Overload) and get_qualified_name(node.target).startswith(
                _DEQUANTIZE
            )
            if not dequantizes and _shows_floats(node):
                results[node] = None
    return tuple(results)


@cache
def _is_quantizing(target: Overload) -> bool:
    return is_quantizing(target)


def _shows_floats(node: torch.fx.Node) -> bool:
    """Tell if a result is captured as one of `float32`, as quantised ones are."""
    shown = node.meta.get("val")
    values = shown if isinstance(shown, list | tuple) else (shown,)
    return any(isinstance(value, torch.Tensor) and value.dtype is torch.float32 for value in values)


def _operand_type(arguments: Mapping[str, Value]) -> DType | None:
    return next((operand.dtype for operand in _iterate_quantized(arguments.values())), None)


def _iterate_quantized(values: Iterable[Value]) -> Iterator[TensorValue]:
    for value in values:
        if isinstance(value, tuple):
            yield from _iterate_quantized(value)
        elif isinstance(value, TensorValue) and value.dtype.is_quantized:
            yield value


def _is_view(target: Overload) -> bool:
    """Tell if a call reads no element of its operand."""
    infos = [
        argument.alias_info for argument in get_schema(target).arguments if argument.alias_info is not None
    ]
    seen = bool(infos) and not any(info.is_write for info in infos)
    return seen or find_target_info(get_qualified_name(target)).is_view
