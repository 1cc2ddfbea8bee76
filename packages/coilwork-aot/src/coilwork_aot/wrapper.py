"""The wrapper `package`: keeps the program that is being compiled, for a package, instead of running it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.program.nodes import Program, Return
from coilwork_ir.wrapper import WrapOptions
from coilwork_runtime import Builder
from coilwork_runtime.executor.choice import ExecutorOptions, Loadable
from coilwork_runtime.module_loader import load_kernels


@runtime_checkable
class HasGraph(Protocol):
    """The options that a compilation hands to its wrapper: with the program as bytes."""

    @property
    def target(self) -> str: ...

    @property
    def graph(self) -> Loadable: ...

    @property
    def builder(self) -> Builder: ...

    @property
    def settings(self) -> ExecutorOptions: ...


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """A program with its kernels built, and the number of its results. It does not run."""

    options: HasGraph
    results: int

    def __call__(self, args: list[Any], /) -> Sequence[Any]:
        raise AssertionError("an exported program runs from its package")

    def save(self, folder: Path, /) -> None:
        raise AssertionError("an exported program is saved with the others of its package")


@dataclass(slots=True)
class Kept:
    """The programs that were compiled while it was entered."""

    programs: list[KeptProgram] = field(default_factory=list)


_KEPT: Final[ContextVar[Kept | None]] = ContextVar("coilwork_aot.kept", default=None)


@contextmanager
def keep_programs() -> Iterator[Kept]:
    """Keep the programs that this thread compiles with the wrapper `package`, while it is entered."""
    kept = Kept()
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)


class PackageWrapper:
    """The wrapper `package`."""

    name: Final = "package"

    def refuses(self, program: Program) -> str:
        """Nothing, while a model is being exported."""
        return "" if _KEPT.get() is not None else "coilwork.export alone makes packages"

    def emit(
        self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions
    ) -> KeptProgram:
        """Build the kernels, and keep the program.

        Raises:
            EmitError: no model is being exported.
            KernelBuildError, MissingCompilerError, MissingTritonError: a kernel does not build.
        """
        kept = _KEPT.get()
        if kept is None or not isinstance(options, HasGraph):
            raise EmitError("wrapper-refuses", f"program @{program.name}: {self.refuses(program)}")
        options.builder.binaries(load_kernels(options.graph.kernels))
        last = program.instructions[-1]
        made = KeptProgram(options, len(last.values) if isinstance(last, Return) else 0)
        kept.programs.append(made)
        return made


PACKAGE: Final = PackageWrapper()
