"""The protocols that a package implements to serve a kind of device: `Backend` and `Codegen`.

A back end (entry point group `coilwork.backends`) ties a description, a code generator and a launcher to
devices. A code generator turns kernels into source text. The conformance kit in `coilwork_ir.conformance`
shows whether it keeps the contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar, runtime_checkable

from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.target import Capabilities, Target

# ---- Code generators ----


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
        """Tell if `emit` can produce code for `target`."""
        ...

    def capabilities(self, target: Target) -> Capabilities:
        """Return the abilities of its kernels on `target`, which it supports, and how they run as far as
        costs depend on it.
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
        """Return the mappings of `kernel` as `emit` writes it with equal arguments, for people to read.

        Raises:
            EmitError: as `emit`.
        """
        ...


# ---- Back ends ----


_Store = TypeVar("_Store", contravariant=True)
_Compiler = TypeVar("_Compiler", covariant=True)
_Device = TypeVar("_Device", covariant=True)


@runtime_checkable
class Backend(Protocol[_Store, _Compiler, _Device]):
    """Ties a description, a code generator and a launcher to devices of torch's.

    A package registers a value of this form under the entry point group `coilwork.backends`
    (`device_traits.GROUP`). Strings in it are open: nobody but their owner compares them. Importing the
    value's module should be cheap; what is costly is imported in the methods. Stores, compilers and devices
    are those of whoever runs kernels: `coilwork_cache.Store`, `coilwork_runtime.KernelCompiler` and
    `.Device`.
    """

    @property
    def name(self) -> str:
        """Registry name, e.g. `"cuda"`."""
        ...

    @property
    def device_types(self) -> tuple[str, ...]:
        """The types of the devices it serves, as `torch.device.type` has them."""
        ...

    @property
    def traits(self) -> frozenset[str]:
        """Traits of these devices (`coilwork_ir.device_traits`), as far as torch's tensors on them go."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """The values of `Target.kind` that are its own."""
        ...

    def refuses(self) -> str:
        """Return why nothing runs on its devices in this process; the empty text if they are there."""
        ...

    def devices(self) -> tuple[str, ...]:
        """Return the devices that are there, as torch names them: `("cuda:0", "cuda:1")`."""
        ...

    def describe(self, device: str) -> Target:
        """Return the description of `device`, which is of one of its types, as read off it.

        Raises:
            DeviceError: it is not there.
        """
        ...

    def targets(self) -> Mapping[str, Target]:
        """Descriptions by name, for machines that are not here."""
        ...

    def codegen(self, target: Target) -> Codegen:
        """Return the generator of kernels for `target`, whose kind is one of its own."""
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """The values of `KernelSource.language` that its generators write."""
        ...

    def compiler(self, store: _Store | None) -> _Compiler | None:
        """Return the compiler of kernels in its languages; None if it only generates. It caches in
        `store`.
        """
        ...

    def device(self, store: _Store | None) -> _Device | None:
        """Return the loader and launcher of compiled kernels; None if it compiles only. It caches in
        `store`.
        """
        ...
