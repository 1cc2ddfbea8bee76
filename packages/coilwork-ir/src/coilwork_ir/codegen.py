"""The protocol that code generators implement, and through which third parties add targets.

A back end (entry point group `coilwork.backends`) says which generator serves a target; the conformance kit
in `coilwork_ir.conformance` shows whether it keeps the contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.target import Capabilities, Target


@runtime_checkable
class Codegen(Protocol):
    """Turns kernels into source text. Pure: equal arguments give equal text, nothing is read from anywhere
    else.
    """

    @property
    def name(self) -> str:
        """Registry name, e.g. `"triton"`."""
        ...

    def supports(self, target: Target) -> bool:
        """True if `emit` can produce code for `target`."""
        ...

    def capabilities(self, target: Target) -> Capabilities:
        """Return what its kernels can do on `target`, which it supports, and how they run where costs
        depend on it.
        """
        ...

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        """Source text of `kernel` for `target`.

        `options` are the generator's own settings by name; an unknown one is an error.

        Raises:
            EmitError: the kernel holds something the generator cannot express; the message names it.
        """
        ...


@runtime_checkable
class Describing(Protocol):
    """A code generator that tells how kernels run, as the trace shows it. Generators may leave it out."""

    def describe(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> str:
        """The mappings of `kernel` as `emit` writes it with equal arguments, for people to read.

        Raises:
            EmitError: as `emit`.
        """
        ...
