"""GPUs as a `Device`, and Triton as a `KernelCompiler`: one kernel at a time, in its best guess.

Programs are driven by `launch.py`, which has a configuration chosen for each call; this is the plain form
that the conformance kit and other packages use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from coilwork_cache import Store
from coilwork_runtime.errors import KernelBuildError, KernelLaunchError
from coilwork_runtime.manifest.kernel_manifest import KernelManifest, KernelSpec
from coilwork_runtime.manifest.size_bytecode import SizeBytecode, make_constant_code
from coilwork_runtime.triton_kernels.compilation import (
    decode_binary,
    encode_binary,
    find_shared_pool,
    get_gpu_target,
    make_candidate,
    read_triton_version,
)
from coilwork_runtime.triton_kernels.driver import Kernel
from coilwork_runtime.triton_kernels.gpu import make_torch_gpu
from coilwork_runtime.triton_kernels.launch import KINDS
from coilwork_runtime.triton_kernels.triton_builder import TritonBuilder


class TritonCompiler:
    """Compiles kernels in the first of their configurations. `store` keeps what is built."""

    def __init__(self, store: Store | None) -> None:
        self._builder = TritonBuilder(store, find_shared_pool(), make_torch_gpu(store))

    def key(self, spec: KernelSpec) -> str:
        """Triton's version.

        Raises:
            MissingTritonError: it is not installed.
        """
        return read_triton_version()

    def compile(self, spec: KernelSpec) -> bytes:
        """Return the machine code of the kernel, and how to launch it.

        Raises:
            KernelBuildError: it does not compile.
            MissingTritonError: Triton is not installed.
        """
        first = make_candidate(spec, spec.configs[0], get_gpu_target(spec), read_triton_version())
        built = self._builder.compile(spec, first)
        if isinstance(built, KernelBuildError):
            raise built
        return encode_binary(built)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A kernel on a device.

    Attributes:
        launch: takes grid, stream, the compiler's scratch memory and the arguments.
        grid: the extents, for sizes.
        sizes_at: which of the arguments are sizes.
        scratch_bytes: memory that the compiler wants per block.
        index: of the device.
    """

    launch: Kernel
    grid: tuple[SizeBytecode, ...]
    sizes_at: tuple[int, ...]
    scratch_bytes: int
    index: int


class GpuDevice:
    """The GPUs that torch uses. `store` keeps the launcher extension."""

    # a failed check is an assertion, which ends the context
    recovers = False

    def __init__(self, store: Store | None) -> None:
        self._gpu = make_torch_gpu(store)

    def load(self, binary: bytes, manifest: KernelManifest, index: int) -> Loaded:
        """Do as `Device.load`."""
        try:
            decoded = decode_binary(binary)
        except ValueError as error:
            raise KernelLaunchError(
                "kernel-load", f"kernel {manifest.name} does not load", reason=str(error)
            ) from error
        kinds = "".join("P" if one.is_pointer else KINDS[one.dtype] for one in manifest.args)
        with self._gpu.guard(index):
            kernel = self._gpu.load(decoded, index, kinds)
        values = manifest.values_of(manifest.configs[0])
        extents = (*manifest.grid, *[make_constant_code(1)] * (3 - len(manifest.grid)))
        return Loaded(
            launch=kernel.launch,
            grid=tuple(code.bind(values) for code in extents),
            sizes_at=tuple(k for k, one in enumerate(manifest.args) if one.role == "size"),
            scratch_bytes=decoded.scratch_bytes,
            index=index,
        )

    def launch(self, handle: Any, words: Sequence[int], stream: torch.cuda.Stream) -> None:
        """Do as `Device.launch`."""
        sizes = [words[k] for k in handle.sizes_at]
        x, y, z = (code.evaluate(sizes) for code in handle.grid)
        with self._gpu.guard(handle.index):
            scratch: Any = 0
            if handle.scratch_bytes:
                blocks = x * y * z
                scratch = torch.empty(blocks * handle.scratch_bytes, dtype=torch.uint8, device="cuda")
                scratch.record_stream(stream)
            handle.launch(x, y, z, stream.cuda_stream, scratch, *words)

    def stream(self, index: int) -> torch.cuda.Stream:
        """Do as `Device.stream`."""
        return torch.cuda.current_stream(index)

    def make_stream(self, index: int) -> torch.cuda.Stream:
        """Do as `Device.make_stream`."""
        return torch.cuda.Stream(index)

    def use(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        """Do as `Device.use`."""
        return torch.cuda.stream(stream)

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Do as `Device.record`."""
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """Do as `Device.wait`."""
        stream.wait_event(event)

    def is_done(self, event: torch.cuda.Event) -> bool:
        """Do as `Device.is_done`."""
        return bool(event.query())

    def synchronize(self, stream: torch.cuda.Stream) -> None:
        """Do as `Device.synchronize`."""
        stream.synchronize()

    def measure(self, call: Callable[[], None], index: int) -> float:
        """Do as `Device.measure`: the least of a few rounds, by events."""
        with self._gpu.guard(index):
            return self._gpu.measure(call) / 1e3
