"""Building kernels: through the store, several at a time, each source once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, as_completed
from typing import Any

from coilwork_cache import Store
from coilwork_runtime.cpp.cpp_builder import CppBuilder, CppLanguage
from coilwork_runtime.errors import KernelBuildError
from coilwork_runtime.languages import Building, Language
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import CPP, OWN_LANGUAGES, TRITON, KernelSpec
from coilwork_runtime.threads import Threads
from coilwork_runtime.triton_kernels.autotune.search import Search
from coilwork_runtime.triton_kernels.compilation import GpuBinary, WorkerPool, find_shared_pool
from coilwork_runtime.triton_kernels.gpu import Gpu, make_torch_gpu
from coilwork_runtime.triton_kernels.launch import Built
from coilwork_runtime.triton_kernels.triton_builder import Started, TritonBuilder, TritonLanguage
from coilwork_runtime.usable_cores import count_usable_cores

MOST_WORKERS = 16

Progress = Callable[[int, int, int], None]
FindLanguage = Callable[[str, Store | None], Language | None]


class Builder:
    """Builds kernels and remembers those it has built.

    `store` keeps binaries between processes. `workers` is how many are built at once; 0 means one per core,
    at most 16. `progress(done, total, compiled)` is called in the building thread as kernels get ready, of
    which `compiled` were not in the store. `pool` compiles Triton kernels; the default is shared by all
    builders of the process. `gpu` is how launchers reach the device. With `search`, the first call of a
    Triton kernel looks beyond its candidates for the best configuration. `find_language` gives who builds
    kernels in other languages than C++ and Triton. Safe to use from several threads.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        workers: int = 0,
        progress: Progress | None = None,
        pool: WorkerPool | None = None,
        gpu: Gpu | None = None,
        search: Search | None = None,
        find_language: FindLanguage | None = None,
    ) -> None:
        self._workers = workers or min(MOST_WORKERS, count_usable_cores())
        self._progress = progress
        self._store = store
        self._find_language = find_language
        self._cpp = CppBuilder(store)
        pool, gpu = pool or find_shared_pool(), gpu or make_torch_gpu(store)
        self._triton = TritonBuilder(store, pool, gpu, search=search, workers=self._workers)
        self._triton_language = TritonLanguage(self._triton, pool, gpu)
        self._languages: dict[str, Language] = {
            CPP: CppLanguage(self._cpp, workers=self._workers),
            TRITON: self._triton_language,
        }

    def build(self, specs: Iterable[KernelSpec]) -> Mapping[str, Launcher]:
        """Return a launcher for each kernel, by name. If several do not build, the error is that of the first
        in `specs`.

        Raises:
            KernelBuildError: a source does not build, or nothing builds its language.
            MissingCompilerError, MissingTritonError: what would build it is not installed.
        """
        wanted = tuple(specs)
        if not wanted:
            return {}
        before = self._count_compiled()
        by_language: dict[str, list[KernelSpec]] = {}
        for spec in wanted:
            by_language.setdefault(spec.language, []).append(spec)
        with Threads(self._workers, "coilwork-build") as threads:
            started: dict[str, Building] = {}
            for kernels in by_language.values():
                started.update(self._language(kernels[0]).start(kernels, threads))
            tasks = [started[spec.name] for spec in wanted]
            self._report(tasks, before)
            return {
                spec.name: task.finish([part.result() for part in task.parts])
                for spec, task in zip(wanted, tasks, strict=True)
            }

    def warm_up(self, language: str = "triton") -> None:
        """Get ready to build kernels of a language, while they are lowered and scheduled. Returns at once."""
        known = self._languages.get(language)
        if known is not None:
            known.warm_up(self._workers)

    def _language(self, spec: KernelSpec) -> Language:
        """Return the language that builds `spec`.

        Raises:
            KernelBuildError: nobody does.
        """
        known = self._languages.get(spec.language)
        if known is None and self._find_language is not None:
            known = self._find_language(spec.language, self._store)
        if known is None:
            raise KernelBuildError(
                spec.name,
                reason=f"nothing that is installed builds kernels in {spec.language!r}",
                remedy="install the package whose back end it is",
            )
        # of two that are found at once any does
        return self._languages.setdefault(spec.language, known)

    def binaries(
        self, specs: Iterable[KernelSpec]
    ) -> tuple[tuple[tuple[Mapping[str, int], bytes | GpuBinary], ...], ...]:
        """Return the machine code of each kernel, by configuration (a C++ kernel has one, which is empty).
        Raises as `build` does.
        """
        with Threads(self._workers, "coilwork-build") as threads:
            wanted = tuple(specs)
            foreign = next((one for one in wanted if one.language not in OWN_LANGUAGES), None)
            if foreign is not None:
                raise KernelBuildError(
                    foreign.name,
                    reason=f"binaries in {foreign.language!r} are launched by the back end that they are for",
                    remedy="compile where it runs, by torch.compile",
                )
            started = self._triton_language.start_candidates(
                [spec for spec in wanted if spec.is_triton], threads
            )
            pending = [self._machine_code(spec, threads, started) for spec in wanted]
            return tuple(finish() for finish in pending)

    def load_library(self, spec: KernelSpec, library: bytes) -> Launcher | None:
        """Return a launcher of a C++ kernel that was built elsewhere; None if the library does not load
        here.
        """
        return self._cpp.load(spec, library)

    def load_binaries(
        self, spec: KernelSpec, built: Iterable[tuple[Mapping[str, int], GpuBinary]]
    ) -> Launcher:
        """Return a launcher of a Triton kernel that was built elsewhere."""
        return self._triton.load(spec, [Built(config=config, binary=binary) for config, binary in built])

    def _machine_code(
        self, spec: KernelSpec, threads: Threads, started: Started
    ) -> Callable[[], tuple[tuple[Mapping[str, int], bytes | GpuBinary], ...]]:
        if spec.name not in started:
            library = threads.submit(self._cpp.library, spec)
            return lambda: (({}, library.result()),)
        candidates, parts = started[spec.name]
        return lambda: tuple(
            (built.config, built.binary)
            for built in self._triton.require_compiled(spec, candidates, [part.result() for part in parts])
        )

    def _count_compiled(self) -> int:
        """Return how many kernels were compiled so far, instead of found in the store."""
        return len(self._cpp.compiled) + len(self._triton.compiled)

    def _report(self, tasks: list[Building], before: int) -> None:
        """Wait for all parts, and tell how many kernels are ready; `before` it so many were compiled."""
        if self._progress is None:
            return
        owners: dict[Future[Any], list[Building]] = {}
        for task in tasks:
            for part in dict.fromkeys(task.parts):
                owners.setdefault(part, []).append(task)
        missing = {id(task): len(set(task.parts)) for task in tasks}
        done = 0
        for part in as_completed(owners):
            for task in owners[part]:
                missing[id(task)] -= 1
                if not missing[id(task)]:
                    done += 1
                    self._progress(done, len(tasks), self._count_compiled() - before)
