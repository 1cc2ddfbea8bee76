"""Calls of a captured graph that run in eager mode, with the rest compiled around them.

Torch's tracing gets some calls wrong that eager takes: a write to one of several copies of an element, say.
One call costs no graph. Dynamo traces the captured graph again, when it is first called, and is told to leave
these calls alone. So it compiles what comes before and behind them, as it does around a graph break that a
user asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.errors import CoilworkFallbackWarning, CompileError
from coilwork_frontend.user_warnings import warn_user

# What torch's interpreter of graphs adds to an error that a call raises.
_EXECUTING: Final = re.compile(r"While executing %(\w+) :")

Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def compile_around(
    captured: fx.GraphModule, calls: Collection[str], error: CompileError, compiler: Compile
) -> Callable[..., Any]:
    """Return what runs `captured`, which is changed in place, with `calls`, names of its nodes, in eager
    mode.

    A warning says so, and `error` says why. `compiler` compiles the parts around the calls.
    """
    warn_user(
        f"{_listed(calls)} in eager mode, and the graph is compiled in parts: {error}",
        CoilworkFallbackWarning,
    )
    has_open_sizes = False
    for node in captured.graph.nodes:
        has_open_sizes |= node.op == "placeholder" and isinstance(
            node.meta.get("example_value"), torch.SymInt
        )
        if node.name in calls:
            node.op, node.target = "call_function", _call_in_eager_mode(node.op, node.target)

    @cache
    def open_parts() -> Callable[..., Any]:
        # Dynamo traces no code that was made while it compiled what is around it
        captured.recompile()
        forward: Callable[..., Any] = captured.forward
        in_parts: Callable[..., Any] = torch.compile(
            forward, backend=compiler, dynamic=True if has_open_sizes else None
        )
        return in_parts

    def call(*args: Any) -> Any:
        # nor what it takes out of a compiled function that it is handed
        return open_parts()(*args)

    return call


def find_failing_call(captured: fx.GraphModule, error: Exception) -> str | None:
    """Return the call of `captured` at which tracing stopped with `error`, by its name; None if `error` does
    not name one, or if the call is the only one.
    """
    calls = [node.name for node in captured.graph.nodes if node.op in ("call_function", "call_method")]
    named = [name for name in _EXECUTING.findall(str(error)) if name in calls]
    return named[-1] if named and len(calls) > 1 else None


def _listed(calls: Collection[str]) -> str:
    first, *others = sorted(calls)
    return f"{first} and {len(others)} other calls run" if others else f"{first} runs"


def _call_in_eager_mode(op: str, target: Any) -> Callable[..., Any]:
    """The call of `target`, a function or the name of a method, at which Dynamo ends a graph and begins the
    next.
    """

    def call_in_eager_mode(*args: Any, **kwargs: Any) -> Any:
        if op == "call_function":
            return target(*args, **kwargs)
        return getattr(args[0], target)(*args[1:], **kwargs)

    disabled: Callable[..., Any] = torch.compiler.disable(call_in_eager_mode)
    return disabled
