"""Measure one callable: time, memory, launches. Nothing here knows which compiler made it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from coilwork_ir.device_traits import ATEN_CUDA, has_trait

Call = Callable[[], object]

_WINDOW = "measured call: "
# Larger than any GPU's second-level cache (H200: 60 MB, MI300: 256 MB): writing it evicts what the last call
# left.
_FLUSH_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuActivity:
    """The GPU's work during one call.

    Attributes:
        busy_ms: milliseconds with any kernel or copy running, summed.
        kernels: how many were launched.
        steps: names and microseconds of kernels and copies, in their order.
    """

    busy_ms: float
    kernels: int
    steps: tuple[tuple[str, float], ...] = ()


def is_measured_by_cuda(device: str) -> bool:
    """True for devices whose work CUDA's events and profiler see, and torch's allocator for CUDA counts."""
    return has_trait(device, ATEN_CUDA)


def measure_cpu_ms(call: Call, *, repeats: int) -> list[float]:
    """Return the milliseconds of wall-clock time of each of `repeats` calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return times


def measure_cuda_ms(call: Call, *, repeats: int) -> list[float]:
    """Milliseconds between CUDA events around each call, L2 flushed before each; includes waits
    for the host.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return times


def measure_host_issue_ms(call: Call, *, repeats: int) -> list[float]:
    """Milliseconds the host needs to issue each call to an idle GPU, without waiting for its end."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e6)
    torch.cuda.synchronize()
    return times


def measure_gpu_activity(call: Call, *, repeats: int) -> list[GpuActivity]:
    """GPU-busy time and kernels of each call by the profiler, L2 flushed before each (the flush is not
    counted).
    """
    return measure_gpu_activities({"": call}, repeats=repeats)[""]


def measure_gpu_activities(
    calls: Mapping[str, Call], *, repeats: int, flush: bool = True
) -> dict[str, list[GpuActivity]]:
    """Do as `measure_gpu_activity`, for several calls in alternating rounds; without `flush`, L2 is as the
    call before left it.
    """
    evicting = torch.empty(_FLUSH_BYTES if flush else 0, dtype=torch.uint8, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for number in range(repeats):
            # Every other round runs backwards, so that no call always follows the same one.
            for name in list(calls)[:: 1 if number % 2 == 0 else -1]:
                if flush:
                    evicting.zero_()
                else:
                    calls[name]()
                torch.cuda.synchronize()
                with record_function(_WINDOW + name):
                    calls[name]()
                    torch.cuda.synchronize()
    events = list(profiler.events() or ())
    on_gpu = [e for e in events if e.device_type.name == "CUDA" and not e.name.startswith(_WINDOW)]
    activities: dict[str, list[GpuActivity]] = {name: [] for name in calls}
    for event in events:
        if not event.name.startswith(_WINDOW) or event.device_type.name != "CPU":
            continue
        window = event.time_range
        inside = [e for e in on_gpu if window.start <= e.time_range.start < window.end]
        kernels = [e for e in inside if not e.name.startswith(("Memcpy", "Memset"))]
        inside.sort(key=lambda e: e.time_range.start)
        steps = tuple((e.name, e.time_range.end - e.time_range.start) for e in inside)
        busy_us = sum(us for _, us in steps)
        activities[event.name.removeprefix(_WINDOW)].append(
            GpuActivity(busy_ms=busy_us / 1e3, kernels=len(kernels), steps=steps)
        )
    return activities


def measure_cuda_peak_bytes(call: Call) -> int:
    """Peak of PyTorch's CUDA allocator during one call, above what is allocated before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    peak: int = torch.cuda.max_memory_allocated()
    return peak - before


def measure_cpu_peak_bytes(call: Call) -> int:
    """Peak of PyTorch's CPU allocator during one call, above what is allocated before it.

    Summed from the profiler's allocation events: exact and repeatable where resident-set sizes are neither.
    Scratch that a library takes behind PyTorch's back (oneDNN's, say) is not seen, for no backend.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    kineto = profiler.profiler
    if kineto is None or kineto.kineto_results is None:
        raise RuntimeError("the profiler recorded nothing")
    changes = [e for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    current: int = 0
    peak: int = 0
    for event in sorted(changes, key=lambda e: e.start_ns()):
        current += int(event.nbytes())
        peak = max(peak, current)
    return peak
