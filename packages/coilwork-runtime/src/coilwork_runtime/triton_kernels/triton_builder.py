"""Triton kernels from their text to a launcher: through the store, then one worker process per candidate.

Kernels of equal text share a binary. Large candidates are compiled first, so that no worker is left alone
with one at the end. A kernel with very little to do is compiled in its best guess alone. `TritonLanguage`
builds the kernels of a program so, or has Triton interpret them.
"""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from math import prod
from typing import Final

from coilwork_cache import KernelCache, Store
from coilwork_runtime.errors import KernelBuildError
from coilwork_runtime.languages import Building
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.threads import ForkedLock, SingleFlight, Threads
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Config, make_config_key
from coilwork_runtime.triton_kernels.autotune.records import recall
from coilwork_runtime.triton_kernels.autotune.search import Search
from coilwork_runtime.triton_kernels.compilation import (
    Candidate,
    GpuBinary,
    WorkerError,
    WorkerPool,
    decode_binary,
    encode_binary,
    get_gpu_target,
    make_candidate,
    make_candidates,
    read_binary,
    read_triton_version,
)
from coilwork_runtime.triton_kernels.gpu import Gpu
from coilwork_runtime.triton_kernels.launch import Built, Explore, make_launcher
from coilwork_runtime.triton_kernels.triton_interpreter import is_interpreting, make_interpreted
from coilwork_runtime.triton_kernels.versions import keep_versions

# What a build takes however small the kernel, in statements of one element per thread.
_ALWAYS: Final = 400
# What a statement that multiplies matrices is worth in others.
_PRODUCT: Final = 40
_THREADS: Final = 32


def estimate_work(candidate: Candidate) -> float:
    """Estimate the time to compile a candidate, in no unit: its statements, as often as a thread has
    elements.

    Of 163 candidates of models, nine in ten were within a factor of two of it; products take less than it
    says, and longest.
    """
    source: str = candidate.request["source"]
    lines = [line for line in source.splitlines() if line.startswith("    ")]
    products = sum("tl.dot(" in line or "warpgroup_mma(" in line for line in lines)
    block = prod(size for name, size in candidate.config.items() if name.endswith("BLOCK"))
    elements = block / (_THREADS * candidate.config.get("num_warps", 4))
    return _ALWAYS + (len(lines) + _PRODUCT * products) * max(1.0, elements)


# ---- equal texts ----


def group_equal_texts(specs: Iterable[KernelSpec]) -> Mapping[str, KernelSpec]:
    """Return, by name of each of `specs`, the first kernel with the same text: that one's is compiled.

    Which one is first depends on the graph alone, so a graph that is compiled again finds its binaries. A
    kernel whose text is no Python is for Triton to refuse, by its own name.
    """
    first: dict[tuple[object, ...], KernelSpec] = {}
    texts: dict[str, KernelSpec] = {}
    for spec in specs:
        facts = (spec.target, spec.args, spec.checks)
        texts[spec.name] = first.setdefault((_statements(spec), *facts), spec)
    return texts


def _statements(spec: KernelSpec) -> str:
    """Return the kernel's text without its own name, comments and docstring."""
    try:
        module = ast.parse(spec.source)
    except (SyntaxError, ValueError):
        return f"{spec.name} {spec.source}"
    if ast.get_docstring(module, clean=False) is not None:
        del module.body[0]
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == spec.entry:
            node.name = ""
    # an entry that calls itself, or is mentioned otherwise, keeps the name there, and shares nothing
    return ast.dump(module)


# ---- small work ----


# Half a microsecond of an H200's memory, one of an A100's. Such a kernel takes about two, nearly all of which
# is its start and the way of one load to a register, whatever its blocks are; the timing of candidates does
# not tell them apart.
FEW_BYTES: Final = 2_000_000
# What makes a program's threads wait for each other again and again, so that its time is not that of its
# bytes.
_CHAINS: Final = frozenset({"associative_scan", "cumsum", "cumprod", "sort", "dot"})


def is_best_guess_enough(spec: KernelSpec) -> bool:
    """Return True if `spec` moves few bytes, in a number that is known, and does it in one go: no loops,
    scans, sorts or products.
    """
    moved = None if spec.traffic is None else spec.traffic.constant
    if moved is None or moved > FEW_BYTES:
        return False
    try:
        nodes = tuple(ast.walk(ast.parse(spec.source)))
    except (SyntaxError, ValueError):
        return False
    return not any(
        isinstance(node, ast.For | ast.While) or (isinstance(node, ast.Attribute) and node.attr in _CHAINS)
        for node in nodes
    )


# ---- builder ----


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
        # the entries of kernels that the store had not
        self.compiled: set[str] = set()
        self._flights: SingleFlight[GpuBinary] = SingleFlight()

    def candidates(self, spec: KernelSpec, text: KernelSpec | None = None) -> tuple[Candidate, ...]:
        """Return the candidates to compile for `spec`, or what a search found for devices like the current
        one.

        `text` is a kernel that does the same, and is compiled instead. What was found replaces the candidates
        where it is for all calls, because there are no sizes; else it is one more. Where the best guess does,
        it is the only candidate.

        Raises:
            MissingTritonError: Triton is not installed.
            KernelBuildError: `spec` names no GPU.
        """
        version, target = read_triton_version(), get_gpu_target(spec)
        device = self._gpu.here() if spec.is_open else ""
        known = recall(self._store, spec, device) if device else {}
        if () in known:
            return (make_candidate(spec, known[()], target, version, text=text),)
        proposed = {make_config_key(config) for config in spec.configs}
        others = {make_config_key(config): config for config in known.values()}
        guesses = make_candidates(spec, target, version, text=text)
        if self._search is None and is_best_guess_enough(spec):
            guesses = keep_versions(spec, guesses)
        return (
            *guesses,
            *(
                make_candidate(spec, others[key], target, version, text=text)
                for key in others
                if key not in proposed
            ),
        )

    def compile(
        self, spec: KernelSpec, candidate: Candidate, *, timeout_s: float | None = None
    ) -> GpuBinary | KernelBuildError:
        """Return the candidate's binary, or the error of its build: another candidate may do."""
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
        """Return the kernel's launcher, from the candidates that compiled.

        Raises:
            KernelBuildError: none did.
        """
        return self.load(spec, self.require_compiled(spec, wanted, answers))

    def load(self, spec: KernelSpec, built: Sequence[Built]) -> Launcher:
        """Return the launcher of a kernel that is already compiled. Needs no Triton."""
        explore = None
        if self._search is not None and spec.is_open:
            explore = Explore(search=self._search, compile=partial(self.compile_further, spec))
        return make_launcher(spec, built, self._gpu, store=self._store, explore=explore)

    def require_compiled(
        self,
        spec: KernelSpec,
        wanted: Sequence[Candidate],
        answers: Sequence[GpuBinary | KernelBuildError],
    ) -> list[Built]:
        """Return the candidates of `wanted` that compiled. If none did of what was once found, or of the best
        guess, all candidates are tried.

        Raises:
            KernelBuildError: none did.
        """
        built = [
            Built(config=candidate.config, binary=answer)
            for candidate, answer in zip(wanted, answers, strict=True)
            if isinstance(answer, GpuBinary)
        ]
        untried = set(map(make_config_key, spec.configs)) - {make_config_key(one.config) for one in wanted}
        if not built and untried:
            proposed = make_candidates(spec, get_gpu_target(spec), read_triton_version())
            return self.require_compiled(spec, proposed, [self.compile(spec, one) for one in proposed])
        if not built:
            raise next(answer for answer in answers if isinstance(answer, KernelBuildError))
        return built

    def interpret(self, spec: KernelSpec) -> Launcher:
        """Return a launcher that runs the kernel in Triton's interpreter.

        Raises:
            MissingTritonError: Triton is not installed.
        """
        read_triton_version()
        return make_interpreted(spec)

    def compile_further(
        self, spec: KernelSpec, configs: Sequence[Config]
    ) -> Sequence[GpuBinary | KernelBuildError]:
        """Compile configurations that a search asks for, several at once. One that takes too long counts as
        one that fails.
        """
        target, version = get_gpu_target(spec), read_triton_version()
        wanted = [make_candidate(spec, config, target, version) for config in configs]
        with Threads(self._workers, "coilwork-search") as threads:
            return list(threads.map(lambda one: self.compile(spec, one, timeout_s=LONGEST_BUILD_S), wanted))

    def _binary(self, candidate: Candidate, timeout_s: float | None) -> GpuBinary:
        with self._lock:
            known = self._built.get(candidate.key)
        if known is None:
            known = self._read_stored(candidate.key)
        if known is None:
            known = self._compile_once(candidate, timeout_s)
        with self._lock:
            self._built[candidate.key] = known
        return known

    def _compile_once(self, candidate: Candidate, timeout_s: float | None) -> GpuBinary:
        """Compile `candidate`, or wait for the process of this machine that is at it."""
        with self._kernels.claim(candidate.key):
            known = self._read_stored(candidate.key) if self._kernels.contains(candidate.key) else None
            if known is None:
                known = read_binary(*self._pool.compile(candidate.request, timeout_s=timeout_s))
                self.compiled.add(candidate.request["entry"])
                self._kernels.put(candidate.key, encode_binary(known))
        return known

    def _read_stored(self, key: str) -> GpuBinary | None:
        data = self._kernels.get(key)
        if data is None:
            return None
        try:
            return decode_binary(data)
        except ValueError:
            self._kernels.delete(key)
            return None


# ---- language ----


# By name of a kernel, its candidates and what compiles them.
Started = Mapping[str, tuple[tuple[Candidate, ...], list[Future[GpuBinary | KernelBuildError]]]]


class TritonLanguage:
    """Kernels that Triton compiles in `pool` and `gpu` runs."""

    def __init__(self, builder: TritonBuilder, pool: WorkerPool, gpu: Gpu) -> None:
        self._builder = builder
        self._pool = pool
        self._gpu = gpu

    def start(self, specs: Sequence[KernelSpec], threads: Threads) -> Mapping[str, Building]:
        """Do as `Language.start`."""
        if is_interpreting():
            return {
                spec.name: Building([threads.submit(self._builder.interpret, spec)], lambda parts: parts[0])
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
        texts = group_equal_texts(kernels)
        candidates = {spec.name: self._builder.candidates(spec, texts[spec.name]) for spec in kernels}
        work = {one.key: (spec, one) for spec in kernels for one in candidates[spec.name]}
        ordered = sorted(work.values(), key=lambda pair: -estimate_work(pair[1]))
        futures = {one.key: threads.submit(self._builder.compile, spec, one) for spec, one in ordered}
        return {name: (wanted, [futures[one.key] for one in wanted]) for name, wanted in candidates.items()}

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
