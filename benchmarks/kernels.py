"""Where a model's GPU time goes, kernel by kernel: `python -m benchmarks.kernels gpt2 --dtype bf16 --backend
coilwork`.

Times are sums over one call (median of a few calls would hide that kernels differ), second-level cache not
flushed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import measure
from benchmarks.models import Setting, Size, find_case, instantiate
from benchmarks.worker import DTYPES, Request, callable_for


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kernel's launches in a call and the microseconds that they took together."""

    name: str
    launches: int
    total_us: float


def kernel_times(
    call: measure.Call, *, repeats: int, leave: Callable[[], None] = lambda: None
) -> list[KernelTime]:
    """Each kernel's mean time and launches per call, the most expensive first.

    `leave` is called when the GPU has finished, before what the profiler recorded is read.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        leave()
    found: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events() or ():
        if event.device_type.name == "CUDA":
            found[event.name].append(event.time_range.end - event.time_range.start)
    times = [
        KernelTime(name=name, launches=len(each) // repeats, total_us=sum(each) / repeats)
        for name, each in found.items()
    ]
    return sorted(times, key=lambda entry: -entry.total_us)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--backend", default="coilwork", help="`backend` or `backend:mode`")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--mode", choices=("infer", "train"), default="infer")
    parser.add_argument("--size", choices=("full", "reduced"), default="full")
    parser.add_argument("--top", type=int, default=25, help="how many kernels to print")
    found = parser.parse_args(arguments)
    case = find_case(found.case)
    setting = Setting(size=Size(found.size), device=torch.device("cuda"), dtype=DTYPES[found.dtype])
    request = Request(case=case.name, setting=setting, mode=found.mode, backend=found.backend, quick=True)
    with torch._dynamo.config.patch(dict(case.dynamo)):
        instance = instantiate(case, setting, training=request.training)
        function = callable_for(request, instance, found.backend)
        for _ in range(3):
            function(*instance.inputs)
        times = kernel_times(lambda: function(*instance.inputs), repeats=5)
        peak = measure.measure_cuda_peak_bytes(lambda: function(*instance.inputs))
    total = sum(entry.total_us for entry in times)
    launches = sum(entry.launches for entry in times)
    print(
        f"{case.name} {found.mode} {found.dtype} {found.backend}: {total:.0f} us in {launches} launches, "
        f"peak {peak / 1e6:.0f} MB"
    )
    for entry in times[: found.top]:
        print(f"{entry.total_us:10.1f} us {entry.launches:5}x  {entry.name[:110]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
