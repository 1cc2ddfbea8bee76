"""Errors and warnings a user of `torch.compile(..., backend="coilwork")` may meet. Codes are stable and documented."""

from __future__ import annotations

import warnings

from coilwork_frontend.errors import (
    CoilworkError,
    CoilworkFallbackWarning,
    CoilworkWarning,
    CompileError,
    IgnoredOptionWarning,
    NotBuiltYetWarning,
    OptionError,
    PassError,
    UncachedPassWarning,
    UnsupportedTorchError,
    describe,
)
from coilwork_tools.errors import BatchVariantError, DivergenceError, NotFiniteError

__all__ = [
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


def warn_of_module(graph: str, error: Exception) -> None:
    """Say that there is no readable module of `graph`, which runs all the same."""
    warnings.warn(
        f"graph {graph} has no readable module: {describe(error)}", CoilworkFallbackWarning, stacklevel=3
    )


def warn_of_driver(graph: str, wanted: str, reason: object) -> None:
    """Say that Python drives `graph` instead of what was `wanted`."""
    text = describe(reason) if isinstance(reason, Exception) else reason
    warnings.warn(
        f"graph {graph} is driven by Python instead of {wanted}: {text}",
        CoilworkFallbackWarning,
        stacklevel=3,
    )
