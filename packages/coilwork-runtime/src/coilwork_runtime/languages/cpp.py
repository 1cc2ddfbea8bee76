"""C++ kernels: several to a compiler run, and launched as functions of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from coilwork_runtime.cpp.batches import batches
from coilwork_runtime.cpp.build import CppBuilder, library_key
from coilwork_runtime.cpp.toolchain import find_toolchain
from coilwork_runtime.languages.protocol import Building
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.threads import Threads


class CppLanguage:
    """Kernels that a C++ compiler builds, `workers` at once, and the processor runs."""

    def __init__(self, builder: CppBuilder, *, workers: int) -> None:
        self._builder = builder
        self._workers = workers

    def start(self, specs: Sequence[KernelSpec], threads: Threads) -> Mapping[str, Building]:
        """As `Language.start`."""
        together = self._start_together(specs, threads)
        return {
            spec.name: Building(
                [threads.submit(self._build, spec, together.get(spec.name))], lambda parts: parts[0]
            )
            for spec in specs
        }

    def warm_up(self, workers: int) -> None:
        """Nothing: a compiler starts at once."""

    def _build(self, spec: KernelSpec, together: Future[None] | None) -> Launcher:
        # no thread waits for itself: what is waited for was submitted before
        if together is not None:
            together.result()
        return self._builder.build(spec)

    def _start_together(self, kernels: Sequence[KernelSpec], threads: Threads) -> dict[str, Future[None]]:
        """Begin to compile kernels, several at a time: by name of a kernel, what it has to wait for."""
        if len(kernels) < 2:
            return {}
        missing = [
            kernel
            for kernel, is_missing in zip(
                kernels, threads.map(self._builder.is_missing, kernels), strict=True
            )
            if is_missing
        ]
        groups = [group for group in batches(missing, self._workers) if len(group) > 1]
        return {
            kernel.name: started
            for group in groups
            for started in [threads.submit(self._builder.build_together, group)]
            for kernel in group
        }


class CppCompiler:
    """A `KernelCompiler` for back ends that run C++ kernels in their own way: a shared library for each."""

    def __init__(self) -> None:
        self._builder = CppBuilder(None)

    def key(self, spec: KernelSpec) -> str:
        """The compiler's version and flags.

        Raises:
            MissingCompilerError: there is no compiler.
        """
        return library_key(spec, find_toolchain())

    def compile(self, spec: KernelSpec) -> bytes:
        """The shared library of the kernel.

        Raises:
            KernelBuildError: the compiler refuses the text.
            MissingCompilerError: there is no compiler.
        """
        return self._builder.library(spec)
