"""Read a user's options, check them, and make a backend's own `compile`.

Settings come from four places, later ones win: defaults, environment variables, blocks around the call, and
the call itself (`torch.compile(..., options={...})`). `torch.compile` hands options on only at the first call
of what it returns; the `compile` that `make_compile` makes checks them at once. Names of operators and
rewrites are checked as well, since a name that means nothing would leave everything as it is.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

import torch

from coilwork_frontend.errors import OptionError
from coilwork_frontend.option_table import Options, OptionTable, suggest

# ---- Sources ----


_O = TypeVar("_O", bound=Options)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptions(Generic[_O]):
    """The sources of settings of the options in `table`.

    Attributes:
        around: the settings of blocks that the calling thread is in. They are read here only: compilers get
            values.
    """

    table: OptionTable[_O]
    around: ContextVar[Mapping[str, Any]]

    def resolve(
        self,
        *,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> _O:
        """Return the settings of one compilation.

        Raises:
            OptionError: unknown name or mode, or a value of the wrong type; the message names the nearest
                known one.

        Warns:
            IgnoredOptionWarning: a variable that is no option, or an option that has no effect beside the
                others.
            NotBuiltYetWarning: a value of which a part has no effect yet; once per process.
        """
        chosen = self.table.read_environment(os.environ if environ is None else environ)
        chosen.update(self.around.get())
        if mode is not None:
            chosen |= self.table.check({"mode": mode}, source="torch.compile")
        chosen |= self.table.check(options or {}, source="options")
        settings = self.table.settle(self.table.cls(**chosen), chosen.keys())
        self.table.warn(settings, chosen.keys())
        return settings

    @contextmanager
    def enter(self, settings: Mapping[str, object], *, source: str) -> Iterator[None]:
        """Give `settings` to what this thread compiles while it is entered; a call's own options win.

        `source` says in messages where the settings come from.

        Raises:
            OptionError: unknown name, or a value of the wrong type; the message names the nearest known one.
        """
        checked = self.table.check(settings, source=source)
        token = self.around.set(MappingProxyType({**self.around.get(), **checked}))
        try:
            yield
        finally:
            self.around.reset(token)


# ---- `compile` ----


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
    """Make the function `compile` of a `backend`.

    `around` holds the options of blocks around a call; `check` raises for wrong options.
    """

    def compile(
        function: Callable[..., Any] | None = None,
        /,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        **options: object,
    ) -> Callable[..., Any]:
        """Compile `function`, or a module; without one, return a decorator.

        `fullgraph` and `dynamic` are `torch.compile`'s; all others are the back end's options by name, `mode`
        among them. They are checked now. Options of a block around this call hold for the compiled function.

        Raises:
            OptionError: unknown option, or a value that it cannot take; the message names the nearest known
                one.
            UnsupportedTorchError: torch is outside the supported range.
        """
        if function is None:
            return partial(compile, fullgraph=fullgraph, dynamic=dynamic, **options)
        settings = {**around.get(), **options}
        check(settings)
        compiled: Callable[..., Any] = torch.compile(
            function, backend=backend, fullgraph=fullgraph, dynamic=dynamic, options=settings
        )
        return compiled

    return compile


# ---- Names in options ----


def check_fallback(names: Sequence[str], lowered: Iterable[str]) -> None:
    """Check that ATen operators in `names` exist, and that all names have a namespace.

    Other libraries may be loaded later. `lowered` are the overloads that are compiled.

    Raises:
        OptionError: names the operator, and the nearest one that is lowered.
    """
    for name in names:
        namespace, _, rest = name.partition(".")
        if not rest or (namespace == "aten" and not _has_operator(rest)):
            known = sorted({target.rpartition(".")[0] for target in lowered})
            near = difflib.get_close_matches(name if rest else f"aten.{name}", known, n=1)
            raise OptionError(
                "bad-option",
                f"fallback: there is no operator {name!r}",
                remedy=f"did you mean {near[0]!r}?"
                if near
                else "write it as in aten.cumsum or aten.sum.dim_IntList",
            )


def _has_operator(name: str) -> bool:
    """Tell if ATen has the operator, or overload, `name`."""
    packet, _, overload = name.partition(".")
    return hasattr(torch.ops.aten, packet) and (
        not overload or hasattr(getattr(torch.ops.aten, packet), overload)
    )


def check_rewrites(names: Iterable[str], known: Iterable[str]) -> None:
    """Check that rewrites in `names` are `known`.

    Raises:
        OptionError: there is no rewrite of a name; the message names the nearest known one.
    """
    rewrites = tuple(known)
    for name in names:
        if name not in rewrites:
            hint = suggest(name, rewrites)
            raise OptionError("unknown-rewrite", f"there is no rewrite {name!r}", remedy=hint)
