"""Measurements of one callable: time, memory, launches. Nothing here knows which compiler made the callable.

Most are those of `coilwork bench`; only what counts ATen operators is the benchmarks' own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coilwork_tools.measurement import (
    Call,
    GpuActivity,
    measure_cpu_ms,
    measure_cpu_peak_bytes,
    measure_cuda_ms,
    measure_cuda_peak_bytes,
    measure_gpu_activities,
    measure_gpu_activity,
    measure_host_issue_ms,
)

__all__ = [
    "Call",
    "GpuActivity",
    "OperatorCounter",
    "measure_cpu_peak_bytes",
    "measure_cpu_ms",
    "measure_cuda_peak_bytes",
    "measure_cuda_ms",
    "eager_operators",
    "measure_gpu_activities",
    "measure_gpu_activity",
    "measure_host_issue_ms",
]


class OperatorCounter(TorchDispatchMode):
    """Counts the ATen operators that do work: eager's launches, views left out."""

    def __init__(self) -> None:
        initialize: Callable[[], None] = super().__init__  # the base class is not typed
        initialize()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not func.is_view and func is not torch.ops.aten.detach.default:
            self.count += 1
        return func(*args, **(kwargs or {}))


def eager_operators(call: Call) -> int:
    """Return how many ATen operators other than views one eager call runs."""
    counter = OperatorCounter()
    with counter:
        call()
    return counter.count
