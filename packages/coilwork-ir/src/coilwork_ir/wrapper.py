"""The protocol that wrappers implement, and through which third parties add ways to drive a program.

A package registers an object under the entry point group `coilwork.wrappers`; users then choose it by its
name, `options={"wrapper": NAME}`. `coilwork_ir.conformance.check_wrapper` shows whether it keeps the
contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.program.nodes import Program

GROUP: Final = "coilwork.wrappers"

Launcher: TypeAlias = Callable[..., object]
"""A built kernel: called with tensors, then sizes, in the order of the kernel's arguments."""


class Store(Protocol):
    """Bytes under keys of 64 hexadecimal digits; `coilwork_cache.Store` is one."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or `None`."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Keep the bytes."""
        ...


def _empty_launchers() -> Mapping[str, Launcher]:
    return MappingProxyType({})


def _write_nothing(name: str, text: str) -> None:
    """Drop `text`: nobody wants a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapOptions:
    """The facts and services that a wrapper may use besides the program and its kernels' sources.

    Attributes:
        target: name of the target that the kernels are written for.
        constants: tensors by the keys of `Program.constants`.
        build: builds all kernels and returns them by name. A wrapper that builds sources itself doesn't
            call it.
        runtime: the functions that check and view tensors, where the caller wants its own ones to be used
            (`coilwork_wrapper.runtime_interface` lists them); else None.
        write: takes a text for the trace, by the name of its file.
        store: keeps what the wrapper builds between processes.
        workers: processes that it may start; 0 for one per core.
        emitter: the class by which it emits, if a caller hands over one of its own; else None.
    """

    target: str = ""
    constants: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    build: Callable[[], Mapping[str, Launcher]] = _empty_launchers
    runtime: Any = None
    write: Callable[[str, str], None] = _write_nothing
    store: Store | None = None
    workers: int = 0
    emitter: Any = None


class Artifact(Protocol):
    """A program that can be called and saved."""

    def __call__(self, args: list[Any], /) -> Sequence[Any]:
        """Return the program's results, in order; `args` are its inputs, tensors and sizes in one flat list.

        The list is emptied first, so that the memory of an input can go once nothing needs it any more.
        """
        ...

    def save(self, folder: Path, /) -> None:
        """Write everything that running it again takes into `folder`, which is made. What loads it is the
        wrapper's."""
        ...


@runtime_checkable
class RestoringWrapper(Protocol):
    """A wrapper that makes its artefact of stored data alone, so that the graph cache keeps its programs."""

    @property
    def name(self) -> str:
        """Do as `Wrapper.name`."""
        ...

    def restore(self, program: Program, kernels: bytes, options: WrapOptions) -> Artifact:
        """Return what `emit` does, of `kernels` as `coilwork_ir.kernel_source` writes them."""
        ...


@runtime_checkable
class Wrapper(Protocol):
    """Turns programs into something that can be called or shipped."""

    @property
    def name(self) -> str:
        """The value of the option `wrapper` that asks for it."""
        ...

    def refuses(self, program: Program) -> str:
        """Return why `program` is not for it, with the name of what it cannot do; empty if `emit` can."""
        ...

    def emit(self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions) -> Artifact:
        """Return the artefact that runs `program`; `sources` are its kernels' texts, by name.

        It keeps the order of instructions and the frees: both were planned.

        Raises:
            EmitError: it cannot; `refuses` says the same wherever the program alone decides that.
        """
        ...
