"""Errors and warnings of a compilation that a user may meet, from capturing on. Codes are stable and
documented."""

from __future__ import annotations


class CoilworkError(Exception):
    """Base of the errors that users of the compiler meet: a stable `code`, what happened, why, and what to do
    about it."""

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


class PassError(CoilworkError):
    """A pass of the user's own failed, or made something that is no graph of the same inputs and outputs."""


def describe(error: Exception) -> str:
    """The text of `error`, beginning with its type; ours begin with it themselves."""
    name, said = type(error).__name__, str(error)
    if said.startswith(f"{name}["):
        return said
    return f"{name}: {said}" if said else name


class CoilworkWarning(UserWarning):
    """Base of the warnings that users of the compiler meet."""


class CoilworkFallbackWarning(CoilworkWarning):
    """A graph runs in eager mode because Coilwork could not compile it."""


class UncachedPassWarning(CoilworkWarning):
    """What is compiled is not cached, because a pass or rewrite has no `uuid`."""


class IgnoredOptionWarning(CoilworkWarning):
    """An option or an environment variable has no effect; the message says which, and why."""


class NotBuiltYetWarning(CoilworkWarning):
    """A mode or option is accepted, but the part of it that the message names has no effect yet."""
