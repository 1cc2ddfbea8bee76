"""Times and memory of a case under several back ends, and what its collectives cost.

Preparing compiles, and may go on in several worlds at once. Measuring wants the devices alone.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from integration_tests.ranks.cases import CASES, scale_for
from integration_tests.ranks.comparing import compile_with
from integration_tests.ranks.training import Setting, Step
from integration_tests.ranks.world import Rank

WARM_UP: Final = 6
ROUNDS: Final = 5
STEPS: Final = 6
PROFILED: Final = 3
# What TorchInductor has against waiting for collectives is off by default, and works on GPUs alone.
OVERLAPPING: Final = MappingProxyType({"aten_distributed_optimizations.enable_overlap_scheduling": True})
BACKENDS: Final = ("eager", "inductor", "coilwork")
STRICT: Final = MappingProxyType({"strict": True})
Span = tuple[float, float]


def prepare(me: Rank, *, case: str, backend: str, overlaps: bool = True) -> dict[str, Any]:
    """Build the case, compile it by its first steps, and keep it for `measure`. With `overlaps` TorchInductor
    moves collectives.

    The answer has the seconds of the first step, the bytes it holds between steps, and its first losses.
    """
    found = CASES[case]
    options: Mapping[str, Any] = STRICT if backend == "coilwork" else {}
    if backend == "inductor" and me.is_cuda and overlaps:
        options = OVERLAPPING
    torch.manual_seed(0)
    before = _allocated(me)
    setting = Setting(
        me=me,
        scale=scale_for(found, me.device.type, measured=True),
        compile=compile_with(backend, **options),
    )
    start = time.perf_counter()
    step = found.build(setting)
    losses = [float(step(0))]
    first_s = time.perf_counter() - start
    losses += [float(step(number)) for number in range(1, WARM_UP)]
    me.synchronize()
    gc.collect()
    held = _allocated(me) - before
    if me.is_cuda:
        torch.cuda.empty_cache()
    me.kept[f"{case}/{backend}"] = (step, held)
    return {"first_s": round(first_s, 2), "held_bytes": held, "losses": losses}


def measure(me: Rank, *, case: str) -> dict[str, dict[str, float]]:
    """By back end that was prepared: milliseconds a step, peak bytes, and what its profile says."""
    kept: dict[str, tuple[Step, int]] = {
        name.rpartition("/")[2]: me.kept.pop(name) for name in list(me.kept) if name.startswith(f"{case}/")
    }
    times: dict[str, list[float]] = {backend: [] for backend in kept}
    for turn in range(ROUNDS):
        for backend, (step, _) in kept.items():
            step(0)
            me.meet()
            start = time.perf_counter()
            for number in range(1, STEPS + 1):
                step(number)
            me.synchronize()
            if turn:
                times[backend].append((time.perf_counter() - start) / STEPS * 1e3)
    answer: dict[str, dict[str, float]] = {}
    for backend, (step, held) in kept.items():
        answer[backend] = {"ms": statistics.median(times[backend]), "least_ms": min(times[backend])}
        if me.is_cuda:
            answer[backend]["peak_bytes"] = held + _extra_bytes(me, step)
            answer[backend] |= _profile(me, step)
    kept.clear()
    gc.collect()
    return answer


def _allocated(me: Rank) -> int:
    if not me.is_cuda:
        return 0
    me.synchronize()
    return torch.cuda.memory_allocated(me.device)


def _extra_bytes(me: Rank, step: Step) -> int:
    before = _allocated(me)
    torch.cuda.reset_peak_memory_stats(me.device)
    step(0)
    step(1)
    me.synchronize()
    return torch.cuda.max_memory_allocated(me.device) - before


# ---- profiles ----


def _profile(me: Rank, step: Step) -> dict[str, float]:
    me.meet()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for number in range(PROFILED):
            step(number)
        me.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return summarize_trace(events, PROFILED)


def summarize_trace(events: Iterable[Mapping[str, Any]], steps: int) -> dict[str, float]:
    """Milliseconds a step of kernels, of collectives, and of collectives while a kernel runs; and kernels a
    step.

    `events` are a Chrome trace's, in microseconds. A collective's time contains its waiting for other ranks.
    """
    kernels, collectives = list[Span](), list[Span]()
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            span = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            (collectives if str(event["name"]).startswith("nccl") else kernels).append(span)
    busy, sending = merge_spans(kernels), merge_spans(collectives)
    scale = 1e-3 / steps
    return {
        "kernels_ms": length_of(busy) * scale,
        "collectives_ms": length_of(sending) * scale,
        "hidden_ms": length_of(intersect_spans(busy, sending)) * scale,
        "launches": len(kernels) / steps,
    }


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """The union of `spans`, disjoint and in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def intersect_spans(some: list[Span], others: list[Span]) -> list[Span]:
    """What lies in both of two lists of disjoint spans in order."""
    found: list[Span] = []
    at = 0
    for start, end in some:
        while at < len(others) and others[at][1] <= start:
            at += 1
        for other_start, other_end in others[at:]:
            if other_start >= end:
                break
            found.append((max(start, other_start), min(end, other_end)))
    return found


def length_of(spans: Iterable[Span]) -> float:
    """The length of disjoint spans."""
    return sum(end - start for start, end in spans)
