"""The settings of a compilation, from what a user gives.

They come from four places, later ones win: the defaults, `COILWORK_<NAME>` environment variables, `with
coilwork.options(...)`, and `torch.compile(..., mode=..., options={...})` or `coilwork.compile(...)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from coilwork.compile_options import OPTIONS, CompileOptions
from coilwork.errors import OptionError
from coilwork_frontend.operator_names import check_fallback
from coilwork_frontend.options import suggest
from coilwork_lowering.registry import RULES
from coilwork_lowering.rewrites import REWRITES

# What blocks say that the calling thread is in. It ends here, at the edge: compilers get values.
_AROUND: Final[ContextVar[Mapping[str, Any]]] = ContextVar("coilwork.options", default=MappingProxyType({}))


def resolve(
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> CompileOptions:
    """The settings for one compilation.

    Raises:
        OptionError: unknown name or mode, or a value of the wrong type; the message names the nearest known one.

    Warns:
        IgnoredOptionWarning: a variable that is no option, or an option that has no effect beside the others.
        NotBuiltYetWarning: a mode of which a part has no effect yet; once per process.
    """
    chosen = OPTIONS.read_environment(os.environ if environ is None else environ)
    chosen.update(_AROUND.get())
    if mode is not None:
        chosen |= OPTIONS.check({"mode": mode}, source="torch.compile")
    chosen |= OPTIONS.check(options or {}, source="options")
    settings = OPTIONS.settle(CompileOptions(**chosen), chosen.keys())
    OPTIONS.warn(settings, chosen.keys())
    return settings


@contextmanager
def options(**settings: object) -> Iterator[None]:
    """Give `settings` to what this thread compiles inside of the block, unless its own options say otherwise.

    A function is compiled at its first call. What has been compiled stays as it is.

    Raises:
        OptionError: unknown name, or a value of the wrong type; the message names the nearest known one.
    """
    given = OPTIONS.check(settings, source="coilwork.options")
    token = _AROUND.set(MappingProxyType({**_AROUND.get(), **given}))
    try:
        yield
    finally:
        _AROUND.reset(token)


def around_options() -> Mapping[str, Any]:
    """The settings of the blocks that the calling thread is in."""
    return _AROUND.get()


def check_names(options: CompileOptions) -> None:
    """Refuse operators and rewrites that do not exist.

    Raises:
        OptionError: `fallback` names no operator, or `skip_rewrites` no rewrite; the message names the nearest
            known one.
    """
    check_fallback(options.fallback, RULES)
    known = [rewrite.name for rewrite in (*REWRITES, *options.rewrites)]
    for name in options.skip_rewrites:
        if name not in known:
            raise OptionError("unknown-rewrite", f"there is no rewrite {name!r}", remedy=suggest(name, known))
