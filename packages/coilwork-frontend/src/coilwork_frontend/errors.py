"""Errors and warnings that users of a compiler meet. Their codes are stable and documented.

A warning stands at the user's line: that of the nearest frame that is neither torch's nor ours. It is the
call of `torch.compile`, or of the function it returned, if that compiles at its first call. How many frames
of Dynamo and autograd lie between differs from release to release.
"""

from __future__ import annotations

import inspect
import warnings
from types import FrameType
from typing import Final

from coilwork_ir.loc import Origin

# ---- Errors ----


class CoilworkError(Exception):
    """Base of the errors that users meet: a stable `code`, what happened, the reason, and a remedy."""

    def __init__(self, code: str, what: str, *, reason: str = "", remedy: str = "") -> None:
        self.code = code
        self.what = what
        self.reason = reason
        self.remedy = remedy
        lines = [f"{type(self).__name__}[{code}]: {what}"]
        if reason:
            lines.append(f"  reason  {reason}")
        if remedy:
            lines.append(f"  try     {remedy}")
        super().__init__("\n".join(lines))


class OptionError(CoilworkError):
    """An option, mode or environment variable is unknown or has a value it cannot take."""


class UnsupportedTorchError(CoilworkError):
    """The installed torch is outside the supported range."""


class CompileError(CoilworkError):
    """A graph could not be compiled and `strict` is on."""


class ExportError(CoilworkError):
    """A model cannot be exported: what it is exported as, or for which target, is beyond a package."""


class PassError(CoilworkError):
    """A user's pass failed, or its result has other inputs and outputs than the graph."""


def describe(error: Exception) -> str:
    """Return the text of `error` with its type in front; texts of our errors begin with it already."""
    name, text = type(error).__name__, str(error)
    if text.startswith(f"{name}["):
        return text
    return f"{name}: {text}" if text else name


class CoilworkWarning(UserWarning):
    """Base of the warnings that users of the compiler meet."""


class CoilworkFallbackWarning(CoilworkWarning):
    """A graph runs in eager mode because Coilwork could not compile it."""


class UncachedPassWarning(CoilworkWarning):
    """Graphs are not cached, because a pass or rewrite has no `uuid`."""


class IgnoredOptionWarning(CoilworkWarning):
    """An option or an environment variable has no effect; the message says which, and why."""


class NotBuiltYetWarning(CoilworkWarning):
    """A mode or option is accepted, but the part of it that the message names has no effect yet."""


# ---- Warnings ----


# Packages whose frames are never the user's: they call, or are called, on the user's behalf.
_NOT_USER: Final = frozenset({"torch", "contextlib", "functools", "threading", "concurrent"})
_OURS: Final = "coilwork"


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn with `text` at the user's line that is being run; in a thread without one, at the caller's."""
    frame = find_user_frame()
    if frame is None:
        # autograd runs a backward graph in a thread of its own
        warnings.warn(text, category, stacklevel=2)
        return
    scope = frame.f_globals
    registry = scope.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=scope.get("__name__"),
        registry=registry,
    )


def warn_at(text: str, category: type[Warning], place: Origin | None) -> None:
    """Warn with `text` at the source line of `place`; as `warn_user` does if its line is unknown."""
    if place is None or not place.file:
        warn_user(text, category)
    else:
        warnings.warn_explicit(text, category, place.file, place.line)


def find_user_frame() -> FrameType | None:
    """Return the innermost frame of this thread that is neither torch's nor ours; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None and _is_not_user(frame):
        frame = frame.f_back
    return frame


def _is_not_user(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    if not isinstance(module, str):
        # code that torch generates is of no module
        return True
    package = module.partition(".")[0]
    return package in _NOT_USER or package == _OURS or package.startswith(f"{_OURS}_")
