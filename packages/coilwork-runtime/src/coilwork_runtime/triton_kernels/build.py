"""From the source of a Triton kernel to a launcher: through the store, then worker processes, one per
candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from coilwork_cache import KernelCache, Store
from coilwork_runtime.errors import KernelBuildError
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.threads import ForkedLock, SingleFlight, Threads
from coilwork_runtime.triton_kernels.binaries import (
    GpuBinary,
    binary_from_reply,
    decode_binary,
    encode_binary,
)
from coilwork_runtime.triton_kernels.descent import identity
from coilwork_runtime.triton_kernels.gpu import Gpu
from coilwork_runtime.triton_kernels.interpreted import make_interpreted
from coilwork_runtime.triton_kernels.launch import Built, Explore, make_launcher
from coilwork_runtime.triton_kernels.neighbours import Config
from coilwork_runtime.triton_kernels.pool import WorkerError, WorkerPool
from coilwork_runtime.triton_kernels.remembered import recall
from coilwork_runtime.triton_kernels.requests import (
    Candidate,
    candidate,
    candidates,
    gpu_target,
    triton_version,
)
from coilwork_runtime.triton_kernels.searching import Search
from coilwork_runtime.triton_kernels.small_work import best_guess_does
from coilwork_runtime.triton_kernels.versions import keep_versions

# A configuration that takes longer to compile is not worth waiting for.
LONGEST_BUILD_S: Final = 60.0


class TritonBuilder:
    """Builds Triton kernels. What it has built it keeps in memory, beside the store.

    With `search`, launchers search for the best configuration; they build `workers` others at once.
    """

    def __init__(
        self,
        store: Store | None,
        pool: WorkerPool,
        gpu: Gpu,
        *,
        search: Search | None = None,
        workers: int = 1,
    ) -> None:
        self._store = store
        self._kernels = KernelCache(store)
        self._pool = pool
        self._gpu = gpu
        self._search = search
        self._workers = workers
        self._lock = ForkedLock()
        self._built: dict[str, GpuBinary] = {}
        self._flights: SingleFlight[GpuBinary] = SingleFlight()

    def candidates(self, spec: KernelSpec, text: KernelSpec | None = None) -> tuple[Candidate, ...]:
        """Return what has to be compiled for `spec`: its candidates, or what a search found for devices like
        the current one.

        `text` is a kernel that does the same, and is compiled instead. What was found replaces the candidates
        where it is for all calls, because there are no sizes; else it is one more. Where the best guess does,
        it is the only candidate.

        Raises:
            MissingTritonError: Triton is not installed.
            KernelBuildError: `spec` names no GPU.
        """
        version, target = triton_version(), gpu_target(spec)
        device = self._gpu.here() if spec.is_open else ""
        known = recall(self._store, spec, device) if device else {}
        if () in known:
            return (candidate(spec, known[()], target, version, text=text),)
        proposed = {identity(config) for config in spec.configs}
        others = {identity(config): config for config in known.values()}
        guesses = candidates(spec, target, version, text=text)
        if self._search is None and best_guess_does(spec):
            guesses = keep_versions(spec, guesses)
        return (
            *guesses,
            *(
                candidate(spec, others[key], target, version, text=text)
                for key in others
                if key not in proposed
            ),
        )

    def compile(
        self, spec: KernelSpec, candidate: Candidate, *, timeout_s: float | None = None
    ) -> GpuBinary | KernelBuildError:
        """The candidate's binary, or why there is none: another candidate may do."""
        try:
            return self._flights.run(candidate.key, lambda: self._binary(candidate, timeout_s))
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
        spec: KernelSpec,
        wanted: Sequence[Candidate],
        answers: Sequence[GpuBinary | KernelBuildError],
    ) -> Launcher:
        """The kernel's launcher, from the candidates that compiled.

        Raises:
            KernelBuildError: none did.
        """
        return self.load(spec, self.usable(spec, wanted, answers))

    def load(self, spec: KernelSpec, built: Sequence[Built]) -> Launcher:
        """The launcher of a kernel that is already compiled. Needs no Triton."""
        explore = None
        if self._search is not None and spec.is_open:
            explore = Explore(search=self._search, compile=partial(self.others, spec))
        return make_launcher(spec, built, self._gpu, store=self._store, explore=explore)

    def usable(
        self,
        spec: KernelSpec,
        wanted: Sequence[Candidate],
        answers: Sequence[GpuBinary | KernelBuildError],
    ) -> list[Built]:
        """Return those of `wanted` that compiled; all candidates if none did of what was once found, or of
        the best guess.

        Raises:
            KernelBuildError: none did.
        """
        built = [
            Built(config=candidate.config, binary=answer)
            for candidate, answer in zip(wanted, answers, strict=True)
            if isinstance(answer, GpuBinary)
        ]
        untried = set(map(identity, spec.configs)) - {identity(one.config) for one in wanted}
        if not built and untried:
            proposed = candidates(spec, gpu_target(spec), triton_version())
            return self.usable(spec, proposed, [self.compile(spec, one) for one in proposed])
        if not built:
            raise next(answer for answer in answers if isinstance(answer, KernelBuildError))
        return built

    def interpreted(self, spec: KernelSpec) -> Launcher:
        """A launcher that runs the kernel in Triton's interpreter.

        Raises:
            MissingTritonError: Triton is not installed.
        """
        triton_version()
        return make_interpreted(spec)

    def others(self, spec: KernelSpec, configs: Sequence[Config]) -> Sequence[GpuBinary | KernelBuildError]:
        """Configurations that a search asks for, several at once; one that takes too long counts as one that
        fails.
        """
        target, version = gpu_target(spec), triton_version()
        wanted = [candidate(spec, config, target, version) for config in configs]
        with Threads(self._workers, "coilwork-search") as threads:
            return list(threads.map(lambda one: self.compile(spec, one, timeout_s=LONGEST_BUILD_S), wanted))

    def _binary(self, candidate: Candidate, timeout_s: float | None) -> GpuBinary:
        with self._lock:
            known = self._built.get(candidate.key)
        if known is None:
            known = self._stored(candidate.key)
        if known is None:
            known = binary_from_reply(*self._pool.compile(candidate.request, timeout_s=timeout_s))
            self._kernels.put(candidate.key, encode_binary(known))
        with self._lock:
            self._built[candidate.key] = known
        return known

    def _stored(self, key: str) -> GpuBinary | None:
        data = self._kernels.get(key)
        if data is None:
            return None
        try:
            return decode_binary(data)
        except ValueError:
            self._kernels.delete(key)
            return None
