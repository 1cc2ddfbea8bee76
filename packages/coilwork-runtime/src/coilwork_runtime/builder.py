"""Building kernels: through the store, several at a time, each source once."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from typing import Any

from coilwork_cache import Store
from coilwork_runtime.cpp.batches import batches
from coilwork_runtime.cpp.build import CppBuilder
from coilwork_runtime.errors import KernelBuildError
from coilwork_runtime.executor.forms import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.threads import Threads
from coilwork_runtime.triton_kernels.binaries import GpuBinary
from coilwork_runtime.triton_kernels.build import TritonBuilder
from coilwork_runtime.triton_kernels.build_order import expected_work
from coilwork_runtime.triton_kernels.equal_texts import shared_texts
from coilwork_runtime.triton_kernels.gpu import Gpu, torch_gpu
from coilwork_runtime.triton_kernels.interpreted import interpreting
from coilwork_runtime.triton_kernels.launch import Built
from coilwork_runtime.triton_kernels.pool import WorkerPool, shared_pool
from coilwork_runtime.triton_kernels.requests import Candidate
from coilwork_runtime.triton_kernels.searching import Search

MOST_WORKERS = 16

Progress = Callable[[int, int], None]
# By name of a Triton kernel, its candidates and what compiles them.
_Started = Mapping[str, tuple[tuple[Candidate, ...], list[Future[GpuBinary | KernelBuildError]]]]


class Builder:
    """Builds kernels and remembers those it has built.

    `store` keeps binaries between processes. `workers` is how many are built at once; 0 means one per core, at most 16.
    `progress(done, total)` is called in the building thread as kernels get ready. `pool` compiles Triton kernels; the default is
    shared by all builders of the process. `gpu` is how launchers reach the device. With `search`, the first call of a Triton kernel
    looks beyond its candidates for the best configuration. Safe to use from several threads.
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
    ) -> None:
        self._workers = workers or min(MOST_WORKERS, usable_cores())
        self._progress = progress
        self._cpp = CppBuilder(store)
        self._pool = pool or shared_pool()
        self._gpu = gpu or torch_gpu(store)
        self._triton = TritonBuilder(store, self._pool, self._gpu, search=search, workers=self._workers)

    def build(self, specs: Iterable[KernelSpec]) -> Mapping[str, Launcher]:
        """A launcher for each kernel, by name. If several do not build, the error is that of the first in `specs`.

        Raises:
            KernelBuildError: a source does not build.
            MissingCompilerError, MissingTritonError: what would build it is not installed.
        """
        wanted = tuple(specs)
        if not wanted:
            return {}
        with Threads(self._workers, "coilwork-build") as threads:
            together = self._start_together(wanted, threads)
            pending = {} if interpreting() else self._start_triton(wanted, threads)
            tasks = [self._start(spec, threads, together.get(spec.name), pending) for spec in wanted]
            if any(spec.is_triton for spec in wanted) and not interpreting():
                threads.submit(self._gpu.prepare)
            self._report(tasks)
            return {
                spec.name: task.finish([part.result() for part in task.parts])
                for spec, task in zip(wanted, tasks, strict=True)
            }

    def warm_up(self) -> None:
        """Start the processes that compile Triton kernels, so that they are ready when lowering and scheduling are done.

        Returns at once; a thread starts them one after the other.
        """
        warming = threading.Thread(
            target=self._pool.warm_up, args=(self._workers,), name="coilwork-warm-up", daemon=True
        )
        # the interpreter may be shutting down, and then whoever needs one starts it
        with contextlib.suppress(RuntimeError):
            warming.start()

    def binaries(
        self, specs: Iterable[KernelSpec]
    ) -> tuple[tuple[tuple[Mapping[str, int], bytes | GpuBinary], ...], ...]:
        """The machine code of each kernel, by configuration (a C++ kernel has one, which is empty). Raises as `build` does."""
        with Threads(self._workers, "coilwork-build") as threads:
            wanted = tuple(specs)
            started = self._start_triton(wanted, threads)
            pending = [self._machine_code(spec, threads, started) for spec in wanted]
            return tuple(finish() for finish in pending)

    def load_library(self, spec: KernelSpec, library: bytes) -> Launcher | None:
        """A launcher of a C++ kernel that was built elsewhere; None if the library does not load here."""
        return self._cpp.load(spec, library)

    def load_binaries(
        self, spec: KernelSpec, built: Iterable[tuple[Mapping[str, int], GpuBinary]]
    ) -> Launcher:
        """A launcher of a Triton kernel that was built elsewhere."""
        return self._triton.load(spec, [Built(config=config, binary=binary) for config, binary in built])

    def _machine_code(
        self, spec: KernelSpec, threads: Threads, started: _Started
    ) -> Callable[[], tuple[tuple[Mapping[str, int], bytes | GpuBinary], ...]]:
        if not spec.is_triton:
            library = threads.submit(self._cpp.library, spec)
            return lambda: (({}, library.result()),)
        found, parts = started[spec.name]
        return lambda: tuple(
            (built.config, built.binary)
            for built in self._triton.usable(spec, found, [part.result() for part in parts])
        )

    def _start_together(self, specs: Sequence[KernelSpec], threads: Threads) -> dict[str, Future[None]]:
        """Begin to compile C++ kernels, several at a time: by name of a kernel, what it has to wait for."""
        kernels = [spec for spec in specs if not spec.is_triton]
        if len(kernels) < 2:
            return {}
        missing = [
            kernel
            for kernel, is_missing in zip(kernels, threads.map(self._cpp.is_missing, kernels), strict=True)
            if is_missing
        ]
        groups = [group for group in batches(missing, self._workers) if len(group) > 1]
        return {
            kernel.name: started
            for group in groups
            for started in [threads.submit(self._cpp.build_together, group)]
            for kernel in group
        }

    def _build_cpp(self, spec: KernelSpec, together: Future[None] | None) -> Launcher:
        # no thread waits for itself: what is waited for was submitted before
        if together is not None:
            together.result()
        return self._cpp.build(spec)

    def _start_triton(self, specs: Sequence[KernelSpec], threads: Threads) -> _Started:
        """Begin to compile the candidates of all Triton kernels, the largest first, those of equal texts once."""
        kernels = [spec for spec in specs if spec.is_triton]
        texts = shared_texts(kernels)
        found = {spec.name: self._triton.candidates(spec, texts[spec.name]) for spec in kernels}
        work = {one.key: (spec, one) for spec in kernels for one in found[spec.name]}
        ordered = sorted(work.values(), key=lambda pair: -expected_work(pair[1]))
        futures = {one.key: threads.submit(self._triton.compile, spec, one) for spec, one in ordered}
        return {name: (wanted, [futures[one.key] for one in wanted]) for name, wanted in found.items()}

    def _start(
        self, spec: KernelSpec, threads: Threads, together: Future[None] | None, started: _Started
    ) -> _Task:
        if not spec.is_triton:
            return _Task([threads.submit(self._build_cpp, spec, together)], lambda parts: parts[0])
        if interpreting():
            return _Task([threads.submit(self._triton.interpreted, spec)], lambda parts: parts[0])
        found, parts = started[spec.name]
        return _Task(parts, lambda answers: self._triton.launcher(spec, found, answers))

    def _report(self, tasks: list[_Task]) -> None:
        """Wait for all parts, and tell how many kernels are ready."""
        if self._progress is None:
            return
        owners: dict[Future[Any], list[_Task]] = {}
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
                    self._progress(done, len(tasks))


class _Task:
    """One kernel being built: what runs for it, and what makes a launcher of the results."""

    __slots__ = ("finish", "parts")

    def __init__(self, parts: list[Future[Any]], finish: Callable[[list[Any]], Launcher]) -> None:
        self.parts = parts
        self.finish = finish


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
