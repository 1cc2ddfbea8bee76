"""Run-time checks: a condition over scalars, which loop nodes and kernels hold, and the error that it ends
with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from coilwork_ir.scalar.nodes import Scalar

CheckError: TypeAlias = Literal["IndexError", "RuntimeError", "ZeroDivisionError"]
"""Exceptions that failed checks are raised as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A run-time check: for every point of the domain `condition` (bool) holds, else `message` is raised as
    `error`."""

    condition: Scalar
    message: str
    error: CheckError = "RuntimeError"

    @property
    def text(self) -> str:
        """`error: message`, the form of `KernelSource.checks`."""
        return f"{self.error}: {self.message}"
