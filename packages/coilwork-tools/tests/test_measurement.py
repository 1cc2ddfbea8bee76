"""Measurements of one callable."""

from __future__ import annotations

import pytest
import torch

from coilwork_tools.measurement import (
    measure_cpu_ms,
    measure_cpu_peak_bytes,
    measure_cuda_peak_bytes,
    measure_gpu_activities,
    measure_gpu_activity,
    measure_host_issue_ms,
)


def test_cpu_times_are_of_each_call() -> None:
    calls: list[int] = []
    times = measure_cpu_ms(lambda: calls.append(1), repeats=3)
    assert len(times) == len(calls) == 3 and min(times) > 0


def test_cpu_peak_is_of_what_lives_at_once() -> None:
    def call() -> None:
        one = torch.empty(1000)
        two = torch.empty(500)
        del one
        torch.empty(600), two

    assert measure_cpu_peak_bytes(call) == 6000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_activity_tells_calls_apart() -> None:
    small, large = torch.ones(1000, device="cuda"), torch.ones(1 << 26, device="cuda")
    found = measure_gpu_activities({"one": lambda: small.sin(), "two": lambda: large.sin().cos()}, repeats=3)
    assert [activity.kernels for activity in found["one"]] == [1, 1, 1]
    assert [activity.kernels for activity in found["two"]] == [2, 2, 2]
    assert 0 < found["one"][0].busy_ms < found["two"][0].busy_ms
    assert measure_gpu_activity(lambda: small.sin(), repeats=2)[0].kernels == 1
    assert len(measure_host_issue_ms(lambda: small.sin(), repeats=2)) == 2
    assert measure_cuda_peak_bytes(lambda: torch.empty(1 << 20, dtype=torch.uint8, device="cuda")) == 1 << 20
    assert (
        measure_gpu_activities({"warm": lambda: small.sin()}, repeats=2, flush=False)["warm"][0].kernels == 1
    )
