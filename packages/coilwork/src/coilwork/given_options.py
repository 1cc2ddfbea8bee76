"""The settings of a compilation, from what a user gives.

They come from four places, later ones win: the defaults, `COILWORK_<NAME>` environment variables, `with
coilwork.options(...)`, and `torch.compile(..., mode=..., options={...})` or `coilwork.compile(...)`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from coilwork.compile_options import OPTIONS, CompileOptions
from coilwork.errors import OptionError, UncachedPassWarning
from coilwork_frontend.operator_names import check_fallback
from coilwork_frontend.options import suggest
from coilwork_lowering.options import Numerics
from coilwork_lowering.registry import RULES
from coilwork_lowering.rewrites import REWRITES

# What blocks say that the calling thread is in. It ends here, at the edge: compilers get values.
_AROUND: Final[ContextVar[Mapping[str, Any]]] = ContextVar("coilwork.options", default=MappingProxyType({}))
# What a row's bits may not depend on the batch for, and what it excludes.
_INVARIANT: Final[Mapping[str, str]] = MappingProxyType(
    {"contractions": "generated", "conv_layout": "captured"}
)


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
    settings = _with_invariance(CompileOptions(**chosen), frozenset(chosen))
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


def _with_invariance(options: CompileOptions, chosen: frozenset[str]) -> CompileOptions:
    """`options` with what `batch_invariant` needs of others.

    What is fused with what depends on sizes. So intermediates are rounded as if nothing were fused, and nothing is
    contracted.
    """
    if not options.batch_invariant:
        return options
    for name, wanted in _INVARIANT.items():
        if name in chosen and getattr(options, name) != wanted:
            raise OptionError(
                "bad-option",
                f"{name}={getattr(options, name)!r} cannot go with batch_invariant=True",
                remedy=f"{name}={wanted!r}, or leave it out",
            )
    if "numerics" in chosen and options.numerics == "fast":
        raise OptionError(
            "bad-option",
            "numerics='fast' cannot go with batch_invariant=True: what is fused, and so not rounded, depends on sizes",
            remedy="numerics='eager', or leave it out",
        )
    numerics: Numerics = "strict" if options.numerics == "strict" else "eager"
    return replace(options, numerics=numerics, contractions="generated", conv_layout="captured")


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


def announce_unkeyed(options: CompileOptions) -> None:
    """Warn that passes and rewrites without uuid keep what is compiled out of the cache."""
    if options.cache and options.unkeyed:
        warnings.warn(
            f"graphs are not cached: {', '.join(options.unkeyed)} has no uuid. Give it an attribute or method `uuid` "
            "that changes whenever it does",
            UncachedPassWarning,
            stacklevel=3,
        )
