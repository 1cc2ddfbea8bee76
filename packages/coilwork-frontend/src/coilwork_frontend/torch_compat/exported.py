"""The fake mode and the symbols of an exported program, and the context that torch compiles under."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode


def find_fake_mode(values: Sequence[object]) -> FakeTensorMode:
    """Return the fake mode of the first fake tensor among `values`; a new one if there is none."""
    modes = (getattr(value, "fake_mode", None) for value in values)
    found = next((mode for mode in modes if isinstance(mode, FakeTensorMode)), None)
    return found or FakeTensorMode(shape_env=ShapeEnv())


def ignore_new_symbols(mode: FakeTensorMode) -> AbstractContextManager[None]:
    """Return a context in which operators whose sizes only the data tell make symbols that no one waits for.

    Torch wants to find a new symbol among the results of what is traced next.
    """
    environment = mode.shape_env
    return nullcontext() if environment is None else environment.ignore_fresh_unbacked_symbols()


@contextmanager
def trace_with(mode: FakeTensorMode) -> Iterator[None]:
    """Enter a tracing context of `mode`, as Dynamo does around a back end."""
    with tracing(TracingContext(mode)), _ByOperator():
        yield


class _ByOperator(TorchFunctionMode):
    """Calls operators instead of methods that look for the driver of a device, also for fake tensors."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        called: Any = func
        if func is torch.Tensor.copy_:
            called = torch.ops.aten.copy_.default
        elif func is torch.Tensor.__invert__:
            called = torch.ops.aten.bitwise_not.default
        return called(*args, **(kwargs or {}))


def name_symbol(size: torch.SymInt) -> str:
    """Return the name of the symbol that `size` is; empty if it is an expression."""
    expression = size.node.expr
    return str(expression) if expression.is_symbol else ""


def get_bounds(size: torch.SymInt) -> tuple[int, int]:
    """Return the bounds of a symbol; -1 if there is no upper one."""
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    low = int(bounds.lower) if bounds.lower.is_Integer else 0
    return max(low, 0), int(bounds.upper) if bounds.upper.is_Integer else -1


def list_guard_texts(mode: FakeTensorMode) -> list[str]:
    """Return the guards on sizes that tracing has added so far."""
    environment = mode.shape_env
    return [] if environment is None else [str(guard.expr) for guard in environment.guards]
