"""Results written into tensors of types that they cannot have: `torch.amax(x, 0, out=y)` of another type, `x.add_(z)` of a complex `z`.

Eager refuses most calls of that kind. Torch's fake tensors take them, and so does everything that is traced with them. So eager is asked,
on copies of the inputs, if there is one in a captured graph. Which type a result has by itself, a call on the meta device says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from coilwork.torch_compat.operators import outside_of_modes
from coilwork.torch_compat.sizes import hint_of


def writes_other_types(gm: fx.GraphModule) -> bool:
    """Tell if a call in Dynamo's graph writes into a tensor of another type than its result has by itself."""
    return any(_changes_type(node) or _is_given_another_type(node) for node in gm.graph.nodes)


def _changes_type(node: fx.Node) -> bool:
    """Tell if a method that overwrites its tensor is given another one of a type that cannot be cast to its own."""
    if node.op != "call_method" or not _is_in_place(str(node.target)):
        return False
    types = [value.dtype for value in map(_value, node.args) if isinstance(value, Tensor)]
    return any(not torch.can_cast(other, types[0]) for other in types[1:])


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _is_given_another_type(node: fx.Node) -> bool:
    out = _value(node.kwargs.get("out"))
    if node.op != "call_function" or not isinstance(out, Tensor):
        return False
    call: Any = node.target
    with outside_of_modes(), torch.no_grad():
        try:
            args = [_on_meta(one) for one in node.args]
            kwargs = {name: _on_meta(one) for name, one in node.kwargs.items() if name != "out"}
            found = call(*args, **kwargs)
        except Exception:  # noqa: BLE001  then nothing says that the type is another
            return False
    return isinstance(found, Tensor) and found.dtype is not out.dtype


class _Unknown(Exception):
    """A value that no tensor on the meta device stands for."""


def _value(given: object) -> object:
    return given.meta.get("example_value") if isinstance(given, fx.Node) else given


def _on_meta(given: object) -> Any:
    if isinstance(given, list | tuple):
        return type(given)([_on_meta(one) for one in given])
    value = _value(given)
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise _Unknown
        sizes = [_known(size) for size in value.shape]
        strides = [_known(step) for step in value.stride()]
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymInt):
        return _known(value)
    if isinstance(given, fx.Node) and not isinstance(value, bool | int | float):
        raise _Unknown
    return value


def _known(size: Any) -> int:
    found = hint_of(size) if isinstance(size, torch.SymInt) else int(size)
    if found is None:
        raise _Unknown
    return found
