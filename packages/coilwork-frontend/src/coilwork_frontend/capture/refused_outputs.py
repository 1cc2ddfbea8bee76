"""Results written into tensors of types that they cannot have.

`torch.amax(x, 0, out=y)` with a `y` of another type is one, `x.add_(z)` of a complex `z` another. Eager
refuses most calls of that kind. Torch's fake tensors take them, and so does everything that is traced with
them. So eager is asked, on copies of the inputs, if there is one in a captured graph. Which type a result has
by itself, a call on the meta device says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx

from coilwork_frontend.torch_compat.operators import disable_modes
from coilwork_frontend.torch_compat.sizes import hint_of

# Of these eager's kernels compute little, whatever can be cast to them.
_WIDE_UNSIGNED: Final = frozenset({torch.uint16, torch.uint32, torch.uint64})
_ASSIGNING: Final = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
)


def writes_other_types(gm: fx.GraphModule) -> bool:
    """Tell if a call in Dynamo's graph writes into a tensor of another type than its result has by itself."""
    return any(_changes_type(node) or _is_given_another_type(node) for node in gm.graph.nodes)


def _changes_type(node: fx.Node) -> bool:
    """Tell if a call overwrites its tensor with a result of a type that cannot be cast to the
    tensor's own.
    """
    given = _value(node.args[0]) if node.args else None
    computing = _computing(node) if isinstance(given, Tensor) else None
    if computing is None or not isinstance(given, Tensor):
        return False
    others = [value.dtype for value in map(_value, node.args) if isinstance(value, Tensor)]
    if not all(torch.can_cast(other, given.dtype) for other in others):
        return True
    # numbers change the type, too, and sums have one of their own
    found = _result_on_meta(computing, node.args, node.kwargs)
    if not isinstance(found, Tensor) or found.dtype is given.dtype:
        return False
    return given.dtype in _WIDE_UNSIGNED or not torch.can_cast(found.dtype, given.dtype)


def _computing(node: fx.Node) -> Callable[..., Any] | None:
    """The function that gives as a new tensor what `node` overwrites its first operand with; None of other
    nodes.
    """
    target: Any = node.target
    if node.op == "call_method":
        return getattr(Tensor, target[:-1], None) if _is_in_place(target) else None
    if node.op != "call_function":
        return None
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is target:
        return getattr(operator, name[1:], None) if name in _ASSIGNING else None
    is_function = _is_in_place(name) and getattr(torch, name, None) is target
    return getattr(torch, name[:-1], None) if is_function else None


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _result_on_meta(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """The result of `call` for tensors like the arguments, but on the meta device; None where no
    call says.
    """
    with disable_modes(), torch.no_grad():
        try:
            return call(
                *map(_move_to_meta, args), **{name: _move_to_meta(one) for name, one in kwargs.items()}
            )
        except Exception:  # noqa: BLE001  then nothing says that the type is another
            return None


def _is_given_another_type(node: fx.Node) -> bool:
    out = _value(node.kwargs.get("out"))
    if node.op != "call_function" or not isinstance(out, Tensor):
        return False
    call: Any = node.target
    found = _result_on_meta(
        call, node.args, {name: one for name, one in node.kwargs.items() if name != "out"}
    )
    return isinstance(found, Tensor) and found.dtype is not out.dtype


class _Unknown(Exception):
    """A value that no tensor on the meta device stands for."""


def _value(given: object) -> object:
    return given.meta.get("example_value") if isinstance(given, fx.Node) else given


def _move_to_meta(given: object) -> Any:
    if isinstance(given, list | tuple):
        return type(given)([_move_to_meta(one) for one in given])
    value = _value(given)
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise _Unknown
        sizes = [_require_known(size) for size in value.shape]
        strides = [_require_known(step) for step in value.stride()]
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymInt):
        return _require_known(value)
    if isinstance(given, fx.Node) and not isinstance(value, bool | int | float):
        raise _Unknown
    return value


def _require_known(size: Any) -> int:
    found = hint_of(size) if isinstance(size, torch.SymInt) else int(size)
    if found is None:
        raise _Unknown
    return found
