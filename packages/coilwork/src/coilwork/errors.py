"""Errors and warnings a user of `torch.compile(..., backend="coilwork")` may meet. Codes are stable and documented."""

from __future__ import annotations

import warnings

from coilwork_frontend.errors import (
    CoilworkError,
    CoilworkFallbackWarning,
    CoilworkWarning,
    CompileError,
    OptionError,
    PassError,
    UnsupportedTorchError,
    describe,
)
from coilwork_tools.errors import BatchVariantError, DivergenceError, NotFiniteError

__all__ = [
    "ArtifactError",
    "BatchVariantError",
    "CoilworkError",
    "CoilworkFallbackWarning",
    "CoilworkWarning",
    "CompileError",
    "DivergenceError",
    "IgnoredOptionWarning",
    "NotBuiltYetWarning",
    "NotFiniteError",
    "OptionError",
    "PassError",
    "UncachedPassWarning",
    "UnsupportedTorchError",
    "describe",
    "warn_of_driver",
]


class ArtifactError(CoilworkError):
    """A saved artifact is corrupt, of another version, or for another device."""


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


class IgnoredOptionWarning(CoilworkWarning):
    """An option or an environment variable has no effect; the message says which, and why."""


class NotBuiltYetWarning(CoilworkWarning):
    """A mode or option is accepted, but the part of it that the message names has no effect yet."""
