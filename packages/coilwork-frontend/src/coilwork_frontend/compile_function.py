"""A backend's own `compile`, which checks options at its call: `torch.compile` hands them on at the first
call of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CompileFunction(Protocol):
    """`compile(function, **options)`, or a decorator without a function."""

    @overload
    def __call__(
        self,
        function: Callable[_P, _R],
        /,
        *,
        fullgraph: bool = ...,
        dynamic: bool | None = ...,
        **options: object,
    ) -> Callable[_P, _R]: ...

    @overload
    def __call__(
        self,
        function: None = None,
        /,
        *,
        fullgraph: bool = ...,
        dynamic: bool | None = ...,
        **options: object,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def make_compile(
    backend: Callable[..., Any],
    around: ContextVar[Mapping[str, Any]],
    check: Callable[[Mapping[str, object]], object],
) -> CompileFunction:
    """`compile` of a `backend`. `around` has the options of blocks around a call, `check` refuses wrong
    ones."""

    def compile(
        function: Callable[..., Any] | None = None,
        /,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        **options: object,
    ) -> Callable[..., Any]:
        """`function`, or a module, compiled; without one, a decorator.

        `fullgraph` and `dynamic` are `torch.compile`'s; all others are the backend's options by name, `mode`
        among them. They are checked now. What a block of options around this call says goes for the compiled
        function, too.

        Raises:
            OptionError: unknown option, or a value that it cannot take; the message names the nearest known
                one.
            UnsupportedTorchError: torch is outside the supported range.
        """
        if function is None:
            return partial(compile, fullgraph=fullgraph, dynamic=dynamic, **options)
        given = {**around.get(), **options}
        check(given)
        compiled: Callable[..., Any] = torch.compile(
            function, backend=backend, fullgraph=fullgraph, dynamic=dynamic, options=given
        )
        return compiled

    return compile
