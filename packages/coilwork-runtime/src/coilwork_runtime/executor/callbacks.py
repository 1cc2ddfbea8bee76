"""Calls of operators in Python, written out for their arguments."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_runtime.executor.recorded_calls import Argument, Item, RecordedCall, Size, Slot

Callback = Callable[[list[torch.Tensor], list[int]], Any]


def make_callback(call: RecordedCall) -> Callback:
    """A function over the call's tensors and computed integers, each in order, that makes the call and returns its results.

    Results that lie in lists are returned as one list, in the call's order.
    """
    scope: dict[str, Any] = {"operator": _Operator(call.target)}
    writer = _Writer(scope)
    texts = [writer.text(value) for value in call.args]
    texts += [f"{name}={writer.text(value)}" for name, value in call.kwargs.items()]
    made: Callback = eval(f"lambda tensors, sizes: operator({', '.join(texts)})", scope)
    if not call.paths:
        return made
    return lambda tensors, sizes: _parts(made(tensors, sizes), call.paths)


def _parts(results: Any, paths: Sequence[tuple[int, ...]]) -> list[Any]:
    """What lies in `results` at `paths`; each leads through tuples and lists."""
    return [functools.reduce(operator.getitem, path, results) for path in paths]


class _Operator:
    """An operator overload that is looked up when it is first called: those of a library may be registered later."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found: Any = torch.ops
        for part in self._target.split("."):
            found = getattr(found, part)
        return found(*args, **kwargs)


class _Writer:
    """Texts of arguments; values that have none go into `scope`."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self._scope = scope
        self._tensors = 0
        self._sizes = 0

    def text(self, value: Argument) -> str:
        """An expression for `value`."""
        match value:
            case Slot():
                self._tensors += 1
                return f"tensors[{self._tensors - 1}]"
            case Item(slot):
                return f"{self.text(slot)}.item()"
            case Size():
                self._sizes += 1
                return f"sizes[{self._sizes - 1}]"
            case list():
                return "[" + ", ".join(self.text(item) for item in value) + "]"
            case None | bool() | int() | str():
                return repr(value)
            case _:
                name = f"value_{len(self._scope)}"
                self._scope[name] = value
                return name
