"""Errors and warnings that users of the compiler may meet. Codes are stable and documented."""

from __future__ import annotations

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
]
