"""From the source of a Triton kernel to a launcher: through the store, then worker processes, one per candidate."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from coilwork_cache import Store
from coilwork_runtime.errors import KernelBuildError
from coilwork_runtime.single_flight import SingleFlight
from coilwork_runtime.specs import TritonKernel
from coilwork_runtime.triton_kernels.binaries import (
    GpuBinary,
    binary_from_reply,
    decode_binary,
    encode_binary,
)
from coilwork_runtime.triton_kernels.gpu import Gpu
from coilwork_runtime.triton_kernels.interpreted import make_interpreted
from coilwork_runtime.triton_kernels.launch import Built, Launcher, make_launcher
from coilwork_runtime.triton_kernels.pool import WorkerError, WorkerPool
from coilwork_runtime.triton_kernels.requests import Candidate, candidates, gpu_target, triton_version


class TritonBuilder:
    """Builds Triton kernels. What it has built it keeps in memory, beside the store."""

    def __init__(self, store: Store | None, pool: WorkerPool, gpu: Gpu) -> None:
        self._store = store
        self._pool = pool
        self._gpu = gpu
        self._lock = threading.Lock()
        self._built: dict[str, GpuBinary] = {}
        self._flights: SingleFlight[GpuBinary] = SingleFlight()

    def candidates(self, spec: TritonKernel) -> tuple[Candidate, ...]:
        """What has to be compiled for `spec`.

        Raises:
            MissingTritonError: Triton is not installed.
            KernelBuildError: `spec` names no GPU.
        """
        version = triton_version()
        return candidates(spec, gpu_target(spec), version)

    def compile(self, spec: TritonKernel, candidate: Candidate) -> GpuBinary | KernelBuildError:
        """The candidate's binary, or why there is none: another candidate may do."""
        try:
            return self._flights.run(candidate.key, lambda: self._binary(candidate))
        except (WorkerError, ValueError) as error:
            shown = ", ".join(f"{name}={value}" for name, value in candidate.config.items())
            failure = KernelBuildError(
                spec.name,
                reason=f"Triton, with {shown}: {error}",
                remedy="report this kernel; until then, exclude its operators with the option fallback",
            )
            failure.__cause__ = error
            return failure

    def launcher(
        self,
        spec: TritonKernel,
        wanted: Sequence[Candidate],
        answers: Sequence[GpuBinary | KernelBuildError],
    ) -> Launcher:
        """The kernel's launcher, from the candidates that compiled.

        Raises:
            KernelBuildError: none did.
        """
        return self.load(spec, self.usable(wanted, answers))

    def load(self, spec: TritonKernel, built: Sequence[Built]) -> Launcher:
        """The launcher of a kernel that is already compiled. Needs no Triton."""
        return make_launcher(spec, built, self._gpu, store=self._store)

    def usable(
        self, wanted: Sequence[Candidate], answers: Sequence[GpuBinary | KernelBuildError]
    ) -> list[Built]:
        """The candidates that compiled.

        Raises:
            KernelBuildError: none did.
        """
        built = [
            Built(config=candidate.config, binary=answer)
            for candidate, answer in zip(wanted, answers, strict=True)
            if isinstance(answer, GpuBinary)
        ]
        if not built:
            raise next(answer for answer in answers if isinstance(answer, KernelBuildError))
        return built

    def interpreted(self, spec: TritonKernel) -> Launcher:
        """A launcher that runs the kernel in Triton's interpreter.

        Raises:
            MissingTritonError: Triton is not installed.
        """
        triton_version()
        return make_interpreted(spec)

    def _binary(self, candidate: Candidate) -> GpuBinary:
        with self._lock:
            known = self._built.get(candidate.key)
        if known is None:
            known = self._stored(candidate.key)
        if known is None:
            known = binary_from_reply(*self._pool.compile(candidate.request))
            if self._store is not None:
                self._store.put(candidate.key, encode_binary(known))
        with self._lock:
            self._built[candidate.key] = known
        return known

    def _stored(self, key: str) -> GpuBinary | None:
        data = None if self._store is None else self._store.get(key)
        if data is None:
            return None
        try:
            return decode_binary(data)
        except ValueError:
            if self._store is not None:
                self._store.delete(key)
            return None
