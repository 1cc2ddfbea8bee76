"""Calls of torch operators, with arguments and results as the IRs spell them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    Item,
    ListValue,
    Ref,
    ResultPath,
    SymbolOutput,
    TorchValue,
)
from coilwork_ir.device_traits import HOST_MEMORY, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import InterpretError
from coilwork_ir.index import Expr
from coilwork_ir.interpretation.memory import Memory
from coilwork_ir.interpretation.ops import torch_dtype


def find_operator(target: str) -> Callable[..., object]:
    """The operator overload that `target`, e.g. `"aten.mm.default"`, names.

    Raises:
        InterpretError: torch knows no such operator.
    """
    found: object = torch.ops
    try:
        for part in target.split("."):
            found = getattr(found, part)
    except AttributeError:
        found = None
    if target.count(".") == 2 and callable(found):
        return found
    raise InterpretError(
        "unknown-operator",
        f"torch has no operator {target!r}",
        remedy="import the library that registers it; names are namespace.name.overload",
    )


def argument_value(argument: Argument, memory: Memory) -> object:
    """Return what torch is given for `argument`."""
    match argument:
        case Ref(name):
            return memory.tensors[name]
        case Item(name):
            return memory.tensors[name].item()
        case Expr():
            return memory.size(argument)
        case DType():
            return torch_dtype(argument)
        case TorchValue(attribute):
            return getattr(torch, attribute)
        case DeviceValue(device):
            return torch.device(device) if has_trait(device, HOST_MEMORY) else memory.device
        case ListValue(items):
            return [argument_value(item, memory) for item in items]
        case _:
            return argument


def call(
    target: str,
    args: Sequence[Argument],
    kwargs: Mapping[str, Argument],
    memory: Memory,
    single: bool,
    paths: Sequence[ResultPath] = (),
) -> tuple[object, ...]:
    """The results of the operator, in order; with `paths`, those that lie there.

    Raises:
        InterpretError: there is no such operator, or no result at one of `paths`.
    """
    operator = find_operator(target)
    with torch.no_grad():
        result = operator(
            *[argument_value(a, memory) for a in args],
            **{name: argument_value(value, memory) for name, value in kwargs.items()},
        )
    if single:
        return (result,)
    if paths:
        return tuple(_at(result, path) for path in paths)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _at(result: object, path: ResultPath) -> object:
    """The part of `result` that `path` leads to."""
    for step in path:
        if not isinstance(result, tuple | list) or step >= len(result):
            raise InterpretError("result", f"the operator returned nothing at {list(path)}")
        result = result[step]
    return result


def take_results(
    outputs: Sequence[Buffer | SymbolOutput | None],
    binds: Sequence[tuple[Expr, int, int]],
    results: Sequence[object],
    memory: Memory,
) -> None:
    """Bind symbols and buffers to the results of a call.

    Raises:
        InterpretError: results of another number, type or shape than declared.
    """
    if len(results) < len(outputs):
        raise InterpretError("result", f"{len(outputs)} results are declared, {len(results)} were returned")
    for output, result in zip(outputs, results, strict=False):
        if isinstance(output, SymbolOutput):
            memory.bind(output.symbol, _integer(result))
    for symbol, number, dim in binds:
        result = results[number]
        if not isinstance(result, Tensor):
            raise InterpretError("result", f"result {number} is no tensor, {symbol!r} is one of its sizes")
        memory.bind(symbol, result.shape[dim])
    for output, result in zip(outputs, results, strict=False):
        if isinstance(output, Buffer):
            if not isinstance(result, Tensor):
                raise InterpretError("result", f"%{output.name} is a {type(result).__name__}, not a tensor")
            memory.settle(output, result)


def _integer(result: object) -> int:
    match result:
        case Tensor():
            return int(result.item())
        case int() | float():
            return int(result)
        case _:
            raise InterpretError("result", f"a size is a {type(result).__name__}, not a number")
