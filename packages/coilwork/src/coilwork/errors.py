"""Errors and warnings a user of `torch.compile(..., backend="coilwork")` may meet. Codes are stable and documented."""

from __future__ import annotations

import warnings


class CoilworkError(Exception):
    """Base of the meta-package's errors: a stable `code`, what happened, why, and what to do about it."""

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


class BatchVariantError(CompileError):
    """With `batch_invariant`, an operator runs as a kernel of torch's that may give a row other bits in another batch."""


class DivergenceError(CoilworkError):
    """With `check`, a compiled call does not give what eager does; names the kernel and the source lines at fault."""


class NotFiniteError(CoilworkError):
    """With `check_nan` or `check_inf`, a value is NaN or infinite; names the kernel and the source lines at fault."""


class ArtifactError(CoilworkError):
    """A saved artifact is corrupt, of another version, or for another device."""


def describe(error: Exception) -> str:
    """The text of `error`, beginning with its type; ours begin with it themselves."""
    name, said = type(error).__name__, str(error)
    if said.startswith(f"{name}["):
        return said
    return f"{name}: {said}" if said else name


class CoilworkWarning(UserWarning):
    """Base of the meta-package's warnings."""


class CoilworkFallbackWarning(CoilworkWarning):
    """A graph runs in eager mode because Coilwork could not compile it."""


def warn_of_driver(graph: str, wanted: str, reason: object) -> None:
    """Say that Python drives `graph` instead of what was `wanted`."""
    text = describe(reason) if isinstance(reason, Exception) else reason
    warnings.warn(
        f"graph {graph} is driven by Python instead of {wanted}: {text}",
        CoilworkFallbackWarning,
        stacklevel=3,
    )


class UncachedPassWarning(CoilworkWarning):
    """What is compiled is not cached, because a pass or rewrite has no `uuid`."""


class NotBuiltYetWarning(CoilworkWarning):
    """A mode or option is accepted, but the part of it that the message names has no effect yet."""
