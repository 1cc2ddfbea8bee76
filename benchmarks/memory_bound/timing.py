"""Times of several calls side by side, so that all meet the same device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import measure
from benchmarks.measure import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Medians of one call: microseconds busy (on the CPU: wall), microseconds for the host to issue, GPU
    kernels.

    `steps` are the names and the microseconds of what ran on the GPU, in its order.
    """

    busy_us: float
    host_us: float | None = None
    kernels: int | None = None
    steps: tuple[tuple[str, float], ...] = ()


def timings(calls: Mapping[str, Call], *, repeats: int, cuda: bool, flush: bool) -> dict[str, Timing]:
    """Each call timed in rounds that alternate; on a GPU by the profiler, `flush` as in
    `measure.measure_gpu_activities`.
    """
    for call in calls.values():
        call()
        call()
    if not cuda:
        walls: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                walls[name] += measure.measure_cpu_ms(call, repeats=1)
        return {name: Timing(busy_us=median(ms) * 1e3) for name, ms in walls.items()}
    host = {name: median(measure.measure_host_issue_ms(call, repeats=5)) for name, call in calls.items()}
    activity = measure.measure_gpu_activities(calls, repeats=repeats, flush=flush)
    return {
        name: Timing(
            busy_us=median(a.busy_ms for a in seen) * 1e3,
            host_us=host[name] * 1e3,
            kernels=round(median(a.kernels for a in seen)),
            steps=_typical([a.steps for a in seen]),
        )
        for name, seen in activity.items()
    }


def _typical(calls: Sequence[tuple[tuple[str, float], ...]]) -> tuple[tuple[str, float], ...]:
    """The steps of most calls, each with its median time among those."""
    named = [tuple(name for name, _ in steps) for steps in calls]
    names = max(named, key=named.count)
    alike = [steps for steps, its in zip(calls, named, strict=True) if its == names]
    return tuple((name, median(steps[k][1] for steps in alike)) for k, name in enumerate(names))
