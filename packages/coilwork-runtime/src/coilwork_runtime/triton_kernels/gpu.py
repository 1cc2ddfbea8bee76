"""The functions of a GPU that launching needs, as a value: a vendor's package or a test can put another in
its place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

import torch

from coilwork_cache import Store
from coilwork_runtime.launch_descriptor import GpuEntry
from coilwork_runtime.torch_compat import get_current_cuda_device, get_raw_cuda_stream
from coilwork_runtime.triton_kernels.compilation import GpuBinary
from coilwork_runtime.triton_kernels.driver import (
    Driver,
    Kernel,
    LoadedFunction,
    find_launcher_extension,
    make_kernel,
    present_driver,
)

# Of a call with an empty cache: as many as take `COLD_MILLISECONDS`, within bounds.
FEWEST_COLD_CALLS = 5
MOST_COLD_CALLS = 20
COLD_MILLISECONDS = 20.0
# What a flush costs beside the call itself.
FLUSH_MILLISECONDS = 0.1
WARM_UP_CALLS = 2
ROUNDS = 3
CALLS_PER_ROUND = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedKernel:
    """A kernel on a device: `launch` is called with grid, stream, scratch and arguments.

    `entry` is what others need to launch it themselves, if they can. `registers` and `spill_bytes` are what a
    thread of it uses; 0 where the driver does not say.
    """

    launch: Kernel
    entry: GpuEntry | None = None
    registers: int = 0
    spill_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The functions that reach the GPUs of this process.

    Attributes:
        current: index of this thread's current device.
        stream: handle of the current stream of a device.
        guard: makes a device current for a while.
        prepare: does beforehand, while kernels are being built, what the first launch needs.
        load: `load(binary, device, kinds)` puts a kernel on a device, which must be current.
        capturing: whether launches are being recorded into a graph.
        measure: milliseconds per call of a function that launches, best of a few rounds.
        measure_cold: the same with an empty second-level cache, the median of several calls.
        name: of a device, for remembering what was measured on it.
        here: the name of the current device; empty if there is none.
    """

    current: Callable[[], int]
    stream: Callable[[int], int]
    guard: Callable[[int], AbstractContextManager[None]]
    prepare: Callable[[], None]
    load: Callable[[GpuBinary, int, str], LoadedKernel]
    capturing: Callable[[], bool]
    measure: Callable[[Callable[[], None]], float]
    measure_cold: Callable[[Callable[[], None]], float]
    name: Callable[[int], str]
    here: Callable[[], str]


def make_torch_gpu(store: Store | None, *, may_build: bool = True) -> Gpu:
    """Return the GPUs that torch uses, through the driver. `store` keeps the launcher extension, which is
    built if it `may_build`.
    """

    def load(binary: GpuBinary, device: int, kinds: str) -> LoadedKernel:
        driver = present_driver()
        function = driver.load(binary, device)
        return LoadedKernel(
            launch=make_kernel(driver, function, binary, kinds, store, may_build=may_build),
            entry=_make_entry(driver, function, binary, device),
            registers=function.registers,
            spill_bytes=function.spill_bytes,
        )

    def prepare() -> None:
        if torch.cuda.is_available():
            find_launcher_extension(store, may_build=may_build)

    return Gpu(
        prepare=prepare,
        current=get_current_cuda_device,
        stream=get_raw_cuda_stream,
        guard=torch.cuda.device,
        load=load,
        capturing=torch.cuda.is_current_stream_capturing,
        measure=measure_on_gpu,
        measure_cold=measure_cold_on_gpu,
        name=torch.cuda.get_device_name,
        here=lambda: torch.cuda.get_device_name() if torch.cuda.is_available() else "",
    )


def load_entry(binary: GpuBinary, device: int) -> GpuEntry:
    """Load `binary` on CUDA device `device`.

    Raises:
        DeviceError: there is no driver.
        KernelLaunchError: the driver refuses the binary.
    """
    driver = present_driver()
    with torch.cuda.device(device):
        return _make_entry(driver, driver.load(binary, device), binary, device)


def _make_entry(driver: Driver, function: LoadedFunction, binary: GpuBinary, device: int) -> GpuEntry:
    return GpuEntry(
        launch_address=driver.launch_address,
        set_context_address=driver.set_context_address,
        context=function.context,
        handle=function.handle,
        device=device,
        threads=binary.threads,
        shared_bytes=binary.shared_bytes,
        compiler_scratch_bytes=binary.scratch_bytes,
        cluster=binary.cluster,
        cooperative=binary.cooperative,
        launch_ex_address=driver.launch_ex_address,
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


def measure_cold_on_gpu(call: Callable[[], None]) -> float:
    """Milliseconds per call on the current stream with an empty second-level cache, by events: the median.

    Where there is no memory left to flush with, the cache stays as it is.
    """
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        flush = torch.empty(2 * facts.L2_cache_size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        flush = torch.empty(0, dtype=torch.uint8, device="cuda")

    def once() -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        start.record()
        call()
        end.record()
        return start, end

    call()
    start, end = once()
    end.synchronize()
    first: float = start.elapsed_time(end)
    wanted = round(COLD_MILLISECONDS / (first + FLUSH_MILLISECONDS))
    rounds = [once() for _ in range(max(FEWEST_COLD_CALLS, min(MOST_COLD_CALLS, wanted)))]
    torch.cuda.current_stream().synchronize()
    times: list[float] = [start.elapsed_time(end) for start, end in rounds]
    return median(times)
