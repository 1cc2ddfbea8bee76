"""The settings of a compilation, from what a user gives.

They come from four places, later ones win: the defaults, `COILWORK_<NAME>` environment variables, `with
coilwork.options(...)`, and
`torch.compile(..., mode=..., options={...})` or `coilwork.compile(...)`. Unknown names are refused with the
nearest known one; a variable
that is no option is warned of, since it may be somebody else's. So is an option without effect.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin

from coilwork.caches import SECRET
from coilwork.compile_options import (
    ENVIRONMENT_PREFIX,
    GIVEN_MAPPINGS,
    HOLDING_CODE,
    CompileOptions,
    Numerics,
    option_types,
)
from coilwork.errors import IgnoredOptionWarning, OptionError
from coilwork.ignored_options import list_ignored
from coilwork.wrappers import suggest_wrapper
from coilwork_lowering.rewrites import Rewrite
from coilwork_tools.explain.trace import MAPPING_SUFFIX


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
    """
    chosen = _from_environment(os.environ if environ is None else environ)
    chosen |= _AROUND.get()
    if mode is not None:
        chosen["mode"] = _coerce("mode", mode, source="torch.compile")
    for name, value in (options or {}).items():
        known = _known(name, source="options")
        chosen[known] = _coerce(known, value, source="options")
    settings = _with_invariance(replace(CompileOptions(), **chosen), frozenset(chosen))
    for text in list_ignored(settings, frozenset(chosen)):
        warnings.warn(text, IgnoredOptionWarning, stacklevel=2)
    return settings


# What blocks say that the calling thread is in. It ends here, at the edge: compilers get values.
_AROUND: Final[ContextVar[Mapping[str, Any]]] = ContextVar("coilwork.options", default=MappingProxyType({}))


@contextmanager
def options(**settings: object) -> Iterator[None]:
    """Give `settings` to what this thread compiles inside of the block, unless its own options say otherwise.

    A function is compiled at its first call. What has been compiled stays as it is.

    Raises:
        OptionError: unknown name, or a value of the wrong type; the message names the nearest known one.
    """
    given = {
        _known(name, source="coilwork.options"): _coerce(name, value, source="coilwork.options")
        for name, value in settings.items()
    }
    token = _AROUND.set(MappingProxyType({**_AROUND.get(), **given}))
    try:
        yield
    finally:
        _AROUND.reset(token)


def around_options() -> Mapping[str, Any]:
    """The settings of the blocks that the calling thread is in."""
    return _AROUND.get()


# What a row's bits may not depend on the batch for, and what it excludes.
_INVARIANT: Final[Mapping[str, str]] = {"contractions": "generated", "conv_layout": "captured"}


def _with_invariance(options: CompileOptions, chosen: frozenset[str]) -> CompileOptions:
    """`options` with what `batch_invariant` needs of others.

    What is fused with what depends on sizes. So intermediates are rounded as if nothing were fused, and nothing is contracted.
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


def _metadata(name: str) -> Mapping[str, Any]:
    return next(f.metadata for f in fields(CompileOptions) if f.name == name)


def _names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(CompileOptions))


def _known(name: str, *, source: str) -> str:
    names = _names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        raise OptionError("unknown-option", f"{source}: there is no option {name!r}", remedy=hint)
    return name


def _coerce(name: str, value: object, *, source: str) -> object:
    expected = option_types()[name]
    if expected == GIVEN_MAPPINGS:
        return _read_mappings(name, value, source=source)
    if _metadata(name)["names"] is not None:
        if isinstance(value, str) and value in _metadata(name)["names"]():
            return value
        raise OptionError(
            "bad-option", f"{source}: {name} cannot be {value!r}", remedy=suggest_wrapper(str(value))
        )
    if get_origin(expected) is Literal:
        allowed = get_args(expected)
        if value not in allowed:
            near = difflib.get_close_matches(str(value), allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(map(repr, allowed))}"
            code = "unknown-mode" if name == "mode" else "bad-option"
            raise OptionError(code, f"{source}: {name} cannot be {value!r}", remedy=hint)
        return value
    if get_origin(expected) is tuple:
        if isinstance(value, (list, tuple)) and all(_is_item(name, item) for item in value):
            return tuple(value)
    elif type(value) is expected:
        _check_least(name, value, source=source)
        return value
    kind = (
        "a list of strings"
        if get_origin(expected) is tuple
        else f"of type {getattr(expected, '__name__', expected)}"
    )
    kind = f"a {HOLDING_CODE[name]}" if name in HOLDING_CODE else kind
    raise OptionError(
        "bad-option", f"{source}: {name}={value!r} has the wrong type", remedy=f"it must be {kind}"
    )


def _read_mappings(name: str, value: object, *, source: str) -> tuple[tuple[str, str], ...]:
    """Texts by names of kernels, from a dictionary, pairs, or the files of a folder."""
    if isinstance(value, str | Path):
        # a trace has a folder for each graph
        files = sorted(Path(value).rglob(f"*{MAPPING_SUFFIX}"))
        if not files:
            raise OptionError(
                "bad-option",
                f"{source}: {name}={str(value)!r} holds no mappings",
                remedy=f"a folder with files NAME{MAPPING_SUFFIX}, such as a trace's",
            )
        return tuple((path.name.removesuffix(MAPPING_SUFFIX), path.read_text()) for path in files)
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if isinstance(pairs, list | tuple) and all(_is_pair_of_texts(pair) for pair in pairs):
        return tuple((pattern, text) for pattern, text in pairs)
    raise OptionError(
        "bad-option",
        f"{source}: {name}={value!r} has the wrong type",
        remedy="it must be a dictionary of texts by names of kernels, or a folder",
    )


def _is_pair_of_texts(pair: object) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(one, str) for one in pair)


def _is_item(name: str, item: object) -> bool:
    """Whether `item` may stand in the list that is option `name`."""
    if name == "rewrites":
        return isinstance(item, Rewrite)
    return callable(item) if name in HOLDING_CODE else isinstance(item, str)


def _check_least(name: str, value: object, *, source: str) -> None:
    least = _metadata(name)["least"]
    if least is not None and isinstance(value, int) and value < least:
        raise OptionError(
            "bad-option", f"{source}: {name} cannot be {value}", remedy=f"it is at least {least}"
        )


# Variables with the prefix that are no options: a secret, and what the build of the runtime's wheel reads.
_OTHER_VARIABLES: Final = frozenset({SECRET, "COILWORK_PURE_WHEEL"})


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    types = option_types()
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _OTHER_VARIABLES:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in _names():
            _warn_of_variable(variable, name)
            continue
        if name in HOLDING_CODE:
            raise OptionError(
                "bad-option",
                f"environment variable {variable} cannot hold code",
                remedy=f"torch.compile(..., options={{{name!r}: [...]}})",
            )
        chosen[name] = _coerce(
            name, _parse(variable, text, types[name]), source=f"environment variable {variable}"
        )
    return chosen


def _warn_of_variable(variable: str, name: str) -> None:
    near = difflib.get_close_matches(name, _names(), n=1)
    hint = f"did you mean {ENVIRONMENT_PREFIX}{near[0].upper()}?" if near else "`coilwork options` lists them"
    warnings.warn(
        f"environment variable {variable} has no effect, it is no option: {hint}",
        IgnoredOptionWarning,
        stacklevel=4,
    )


def _parse(variable: str, text: str, expected: object) -> object:
    if expected is bool:
        lowered = text.strip().lower()
        if lowered in ("1", "true", "on", "yes"):
            return True
        if lowered in ("0", "false", "off", "no", ""):
            return False
        raise OptionError(
            "bad-option", f"environment variable {variable}={text!r} is not a boolean", remedy="0 or 1"
        )
    if expected is int:
        try:
            return int(text)
        except ValueError as error:
            raise OptionError(
                "bad-option", f"environment variable {variable}={text!r} is not a number"
            ) from error
    if get_origin(expected) is tuple and expected != GIVEN_MAPPINGS:
        return tuple(item.strip() for item in text.split(",") if item.strip())
    return text
