"""Compile Triton kernels in worker processes: the request for each candidate, the pool, the binary.

A candidate is one configuration of a kernel, with the request that a worker gets and the key of its answer.
The pool starts workers when they are needed, several at once, and replaces those that die. A `GpuBinary` is
what comes back, and has a form to store.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import torch

from coilwork_cache import content_key
from coilwork_runtime.errors import KernelBuildError, MissingTritonError, ScratchFolderError
from coilwork_runtime.folders import make_scratch_folder
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.native_build import LONGEST_RUN_S
from coilwork_runtime.triton_kernels import worker

# Of what workers make of a request: raised, what was built before is built anew.
FORMAT: Final = "5"
DISTRIBUTIONS: Final = ("triton", "pytorch-triton", "pytorch-triton-rocm")
# What of a configuration is for the compiler; the rest are the kernel's own compile-time parameters.
OPTIONS: Final = frozenset(
    {
        "num_warps",
        "num_stages",
        "num_ctas",
        "maxnreg",
        "enable_fp_fusion",
        "waves_per_eu",
        "matrix_instr_nonkdim",
        "kpack",
    }
)
TYPES: Final[Mapping[str, str]] = {
    "f64": "fp64",
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "u64": "u64",
    "u32": "u32",
    "u16": "u16",
    "u8": "u8",
    "bool": "i1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """A kind of GPU as Triton names it: `("cuda", 90, 32)`, `("hip", "gfx942", 64)`."""

    backend: str
    arch: int | str
    warp_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration of a kernel: what to send to a worker, and the key of the answer."""

    config: Mapping[str, int]
    key: str
    request: Mapping[str, Any]


def read_triton_version() -> str:
    """Return the version of the installed Triton, read without importing it.

    Raises:
        MissingTritonError: there is none.
    """
    if importlib.util.find_spec("triton") is not None:
        for name in DISTRIBUTIONS:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    raise MissingTritonError(
        "no-triton",
        "a GPU kernel is to be built and Triton is not installed",
        reason=f"no distribution {' or '.join(DISTRIBUTIONS)} with a module triton is on the import path",
        remedy="pip install 'coilwork-runtime[triton]', or compile for the CPU",
    )


def get_gpu_target(spec: KernelSpec) -> GpuTarget:
    """Return the device that `spec` was generated for; without a name, the current one.

    Raises:
        KernelBuildError: the target is no GPU, or there is none.
    """
    name = spec.target
    if not name and torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        name = (
            str(facts.gcnArchName).partition(":")[0]
            if torch.version.hip
            else f"sm_{facts.major}{facts.minor}"
        )
    family, _, number = name.partition("_")
    if family == "sm" and number.isdigit():
        return GpuTarget(backend="cuda", arch=int(number), warp_size=32)
    if name.startswith("gfx"):
        return GpuTarget(backend="hip", arch=name, warp_size=64 if name.startswith("gfx9") else 32)
    raise KernelBuildError(
        spec.name,
        reason=f"target {spec.target!r} is not a GPU that Triton builds for",
        remedy="name a target such as sm_90 or gfx942",
    )


def make_candidates(
    spec: KernelSpec, target: GpuTarget, version: str, *, text: KernelSpec | None = None
) -> tuple[Candidate, ...]:
    """Return a candidate for each of `spec.configs`, in order; `text` as in `make_candidate`."""
    return tuple(make_candidate(spec, config, target, version, text=text) for config in spec.configs)


def make_candidate(
    spec: KernelSpec,
    config: Mapping[str, int],
    target: GpuTarget,
    version: str,
    *,
    text: KernelSpec | None = None,
) -> Candidate:
    """Return the candidate of `spec` in one configuration. Its text is that of `text`, if it is given,
    another kernel that does the same.
    """
    of = text or spec
    options: dict[str, Any] = {"enable_fp_fusion": True}
    options |= {name: value for name, value in config.items() if name in OPTIONS}
    options["enable_fp_fusion"] = bool(options["enable_fp_fusion"])
    if spec.checks:
        # device assertions exist in debug mode only; the overflow checks that come with it are not wanted
        options |= {"debug": True, "sanitize_overflow": False}
    request = {
        "source": of.source,
        "entry": of.entry,
        "types": {arg.name: ("*" if arg.is_pointer else "") + TYPES[arg.dtype] for arg in spec.args},
        "divisible": [arg.name for arg in spec.args if arg.aligned or arg.role == "scratch"],
        "constants": list_constants(config),
        "options": options,
        "target": [target.backend, target.arch, target.warp_size],
    }
    key = content_key("kernel", "triton", FORMAT, version, json.dumps(request, sort_keys=True))
    return Candidate(config=config, key=key, request=request)


def list_constants(config: Mapping[str, int]) -> dict[str, int]:
    """Return the kernel's compile-time parameters in a configuration."""
    return {name: value for name, value in config.items() if name not in OPTIONS}


# ---- binaries ----


MAGIC: Final = b"COILTRIT"
_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBinary:
    """Machine code of one kernel, and how to launch it.

    Attributes:
        image: a cubin or a code object.
        name: function in `image`.
        shared_bytes: dynamic shared memory per block.
        threads: per block.
        scratch_bytes: global memory that the compiler wants per block, almost always 0.
        cluster: blocks that share their memory, of which the grid counts clusters; 1 for none.
        cooperative: all blocks run at once and may wait for each other.
    """

    image: bytes
    name: str
    shared_bytes: int
    threads: int
    scratch_bytes: int = 0
    cluster: int = 1
    cooperative: bool = False


def read_binary(metadata: Mapping[str, Any], image: bytes) -> GpuBinary:
    """Return the binary in a worker's answer.

    Raises:
        ValueError: the kernel wants a kind of launch that generated code does not use.
    """
    for wish in ("launch_pdl", "profile_scratch_size"):
        if metadata[wish]:
            raise ValueError(f"the compiled kernel asks for {wish}, which is not supported")
    return GpuBinary(
        image=image,
        name=metadata["name"],
        shared_bytes=metadata["shared"],
        threads=metadata["num_warps"] * metadata["warp_size"],
        # of a cluster's blocks each has its own
        scratch_bytes=metadata["global_scratch_size"] * metadata["num_ctas"],
        cluster=metadata["num_ctas"],
        cooperative=bool(metadata["launch_cooperative_grid"]),
    )


def encode_binary(binary: GpuBinary) -> bytes:
    """Return the stored form."""
    facts: dict[str, str | int] = {
        "name": binary.name,
        "shared_bytes": binary.shared_bytes,
        "threads": binary.threads,
        "scratch_bytes": binary.scratch_bytes,
    }
    # said only where it is so: what was stored before stays what it is
    if binary.cluster != 1:
        facts["cluster"] = binary.cluster
    if binary.cooperative:
        facts["cooperative"] = 1
    header = json.dumps(facts).encode()
    return MAGIC + _LENGTH.pack(len(header)) + header + binary.image


def decode_binary(data: bytes) -> GpuBinary:
    """Inverse of `encode_binary`.

    Raises:
        ValueError: the bytes are something else.
    """
    start = len(MAGIC) + _LENGTH.size
    if not data.startswith(MAGIC) or len(data) < start:
        raise ValueError("no compiled Triton kernel")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    header = json.loads(data[start : start + length])
    image = data[start + length :]
    if not isinstance(header, dict) or not image:
        raise ValueError("no compiled Triton kernel")
    numbers = {field: header.get(field) for field in ("shared_bytes", "threads", "scratch_bytes")}
    shared, threads, scratch = numbers.values()
    cluster, cooperative = header.get("cluster", 1), header.get("cooperative", 0)
    name = header.get("name")
    if not (
        isinstance(name, str)
        and isinstance(shared, int)
        and isinstance(threads, int)
        and isinstance(scratch, int)
        and isinstance(cluster, int)
        and isinstance(cooperative, int)
    ):
        raise ValueError("no compiled Triton kernel")
    return GpuBinary(
        image=image,
        name=name,
        shared_bytes=shared,
        threads=threads,
        scratch_bytes=scratch,
        cluster=cluster,
        cooperative=bool(cooperative),
    )


# ---- the pool ----


ATTEMPTS: Final = 2
LOG_TAIL_BYTES: Final = 4000


class WorkerError(Exception):
    """A kernel did not compile, or the process that compiled it died. The text says why."""


class Worker:
    """One process. Used by one thread at a time."""

    def __init__(self) -> None:
        log = tempfile.TemporaryFile(prefix="coilwork-worker-", dir=make_scratch_folder())  # noqa: SIM115
        self._log = cast(BinaryIO, log)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TRITON_INTERPRET")
        }
        # what it leaves when it is killed goes with this process
        environment["TMPDIR"] = make_scratch_folder()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            # a Ctrl-C at the terminal is the parent's to handle
            start_new_session=True,
        )
        self._send({"path": sys.path})

    def compile(
        self, request: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Launch metadata and the binary.

        Raises:
            WorkerError: Triton refused; the worker lives.
            EOFError, OSError: the worker died; TimeoutError, which is one of the latter: it is still at it.
        """
        self._send(request)
        replies = self._process.stdout
        assert replies is not None
        # nothing is left in the buffer from the frame before, which was read to its end
        if timeout_s is not None and not select.select([replies], [], [], timeout_s)[0]:
            raise TimeoutError(f"not compiled after {timeout_s:.0f} s")
        frame = worker.read_frame(cast(BinaryIO, replies))
        if frame is None:
            raise EOFError("the worker ended")
        header, binary = frame
        if "error" in header:
            raise WorkerError(header["error"])
        return header["metadata"], binary

    def stop(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def obituary(self) -> str:
        """Return how the process ended and its last words."""
        self._process.kill()
        code = self._process.wait()
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        said = self._log.read().decode(errors="replace").strip()
        return f"the compiling process ended with code {code}\n{said}"

    def _send(self, header: Mapping[str, Any]) -> None:
        requests = self._process.stdin
        assert requests is not None
        worker.write_frame(cast(BinaryIO, requests), header)


class WorkerPool:
    """Compiles requests from any thread; as many processes as there are threads that wait."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        # pipes inherited through a fork belong to the parent's conversation, whose lock a thread may hold
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy = 0

    def compile(
        self, request: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Launch metadata and the binary, from an idle or a new worker, within `LONGEST_RUN_S` at the latest.

        Raises:
            WorkerError: the kernel does not compile, or not within `timeout_s`.
        """
        reason = ""
        for _ in range(ATTEMPTS):
            member = self._take()
            try:
                answer = member.compile(request, timeout_s=timeout_s or LONGEST_RUN_S)
            except WorkerError:
                self._give(member)
                raise
            except TimeoutError as error:
                self._drop(member)
                raise WorkerError(str(error)) from error
            except (EOFError, OSError):
                # it may have been idle for too long, or have run out of memory: once more, in a fresh one
                reason = member.obituary()
                self._drop(member)
            except BaseException:
                # an interrupt in the middle of an answer
                self._drop(member)
                raise
            else:
                self._give(member)
                return answer
        raise WorkerError(reason)

    def warm_up(self, count: int) -> None:
        """Start workers ahead of need, up to `count` with those at work, so that they import Triton while the
        caller still lowers and schedules. Where the system starts none, whoever needs one is told.
        """
        with contextlib.suppress(OSError, ScratchFolderError):
            while self._reserve(count):
                self._give(self._start())

    def close(self) -> None:
        """End all idle workers. The pool stays usable."""
        with self._lock:
            members, self._idle = self._idle, []
        for member in members:
            member.stop()

    def _take(self) -> Worker:
        with self._lock:
            self._busy += 1
            if self._idle:
                return self._idle.pop()
        return self._start()

    def _reserve(self, count: int) -> bool:
        """Count one more worker as at work, unless there are `count`."""
        with self._lock:
            is_missing = len(self._idle) + self._busy < count
            self._busy += is_missing
        return is_missing

    def _start(self) -> Worker:
        """Return a new worker, which is counted already. Raises OSError."""
        try:
            return Worker()
        except BaseException:
            with self._lock:
                self._busy -= 1
            raise

    def _give(self, member: Worker) -> None:
        with self._lock:
            self._busy -= 1
            self._idle.append(member)

    def _drop(self, member: Worker) -> None:
        with self._lock:
            self._busy -= 1
        member.stop()


@functools.cache
def find_shared_pool() -> WorkerPool:
    """Return the pool of this process: starting a worker costs a third of a second, so builders share
    them.
    """
    pool = WorkerPool()
    atexit.register(pool.close)
    return pool
