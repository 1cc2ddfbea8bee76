"""Triton kernels: their candidates compile in processes of a pool, or Triton interprets them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from coilwork_runtime.errors import KernelBuildError
from coilwork_runtime.languages.protocol import Building
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.threads import Threads
from coilwork_runtime.triton_kernels.binaries import GpuBinary
from coilwork_runtime.triton_kernels.build import TritonBuilder
from coilwork_runtime.triton_kernels.build_order import expected_work
from coilwork_runtime.triton_kernels.equal_texts import shared_texts
from coilwork_runtime.triton_kernels.gpu import Gpu
from coilwork_runtime.triton_kernels.interpreted import interpreting
from coilwork_runtime.triton_kernels.pool import WorkerPool
from coilwork_runtime.triton_kernels.requests import Candidate

# By name of a kernel, its candidates and what compiles them.
Started = Mapping[str, tuple[tuple[Candidate, ...], list[Future[GpuBinary | KernelBuildError]]]]


class TritonLanguage:
    """Kernels that Triton compiles in `pool` and `gpu` runs."""

    def __init__(self, builder: TritonBuilder, pool: WorkerPool, gpu: Gpu) -> None:
        self._builder = builder
        self._pool = pool
        self._gpu = gpu

    def start(self, specs: Sequence[KernelSpec], threads: Threads) -> Mapping[str, Building]:
        """As `Language.start`."""
        if interpreting():
            return {
                spec.name: Building([threads.submit(self._builder.interpreted, spec)], lambda parts: parts[0])
                for spec in specs
            }
        started = self.start_candidates(specs, threads)
        threads.submit(self._gpu.prepare)
        return {
            spec.name: Building(started[spec.name][1], partial(self._launcher, spec, started[spec.name][0]))
            for spec in specs
        }

    def start_candidates(self, kernels: Sequence[KernelSpec], threads: Threads) -> Started:
        """Begin to compile the candidates of all kernels, the largest first, those of equal texts once."""
        texts = shared_texts(kernels)
        found = {spec.name: self._builder.candidates(spec, texts[spec.name]) for spec in kernels}
        work = {one.key: (spec, one) for spec in kernels for one in found[spec.name]}
        ordered = sorted(work.values(), key=lambda pair: -expected_work(pair[1]))
        futures = {one.key: threads.submit(self._builder.compile, spec, one) for spec, one in ordered}
        return {name: (wanted, [futures[one.key] for one in wanted]) for name, wanted in found.items()}

    def warm_up(self, workers: int) -> None:
        """Start the processes that compile, one after the other, in a thread."""
        warming = threading.Thread(
            target=self._pool.warm_up, args=(workers,), name="coilwork-warm-up", daemon=True
        )
        # the interpreter may be shutting down, and then whoever needs one starts it
        with contextlib.suppress(RuntimeError):
            warming.start()

    def _launcher(
        self,
        spec: KernelSpec,
        wanted: tuple[Candidate, ...],
        answers: list[GpuBinary | KernelBuildError],
    ) -> Launcher:
        return self._builder.launcher(spec, wanted, answers)
