"""What launching needs of a device: as a value, so that a vendor's package or a test can put another in its place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from coilwork_cache import Store
from coilwork_runtime.torch_compat import current_cuda_device, raw_cuda_stream
from coilwork_runtime.triton_kernels.binaries import GpuBinary
from coilwork_runtime.triton_kernels.driver import Kernel, present_driver
from coilwork_runtime.triton_kernels.native import launcher_extension, make_kernel

WARM_UP_CALLS = 2
ROUNDS = 3
CALLS_PER_ROUND = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """How to reach the GPUs of this process.

    Attributes:
        current: index of this thread's current device.
        stream: handle of the current stream of a device.
        guard: makes a device current for a while.
        prepare: does beforehand, while kernels are being built, what the first launch needs.
        load: `load(binary, device, kinds)` makes a kernel that can be called; the device must be current.
        capturing: whether launches are being recorded into a graph.
        measure: milliseconds per call of a function that launches, best of a few rounds.
        name: of a device, for remembering what was measured on it.
    """

    current: Callable[[], int]
    stream: Callable[[int], int]
    guard: Callable[[int], AbstractContextManager[None]]
    prepare: Callable[[], None]
    load: Callable[[GpuBinary, int, str], Kernel]
    capturing: Callable[[], bool]
    measure: Callable[[Callable[[], None]], float]
    name: Callable[[int], str]


def torch_gpu(store: Store | None) -> Gpu:
    """The GPUs that torch uses, through the driver. `store` keeps the launcher extension."""

    def load(binary: GpuBinary, device: int, kinds: str) -> Kernel:
        driver = present_driver()
        return make_kernel(driver, driver.load(binary, device), binary, kinds, store)

    def prepare() -> None:
        if torch.cuda.is_available():
            launcher_extension(store)

    return Gpu(
        prepare=prepare,
        current=current_cuda_device,
        stream=raw_cuda_stream,
        guard=torch.cuda.device,
        load=load,
        capturing=torch.cuda.is_current_stream_capturing,
        measure=measure_on_gpu,
        name=torch.cuda.get_device_name,
    )


def measure_on_gpu(call: Callable[[], None]) -> float:
    """Milliseconds per call on the current stream, by events: the least of a few rounds."""
    for _ in range(WARM_UP_CALLS):
        call()
    best = float("inf")
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS_PER_ROUND):
            call()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / CALLS_PER_ROUND)
    return best
