"""One case in each way to run it: how long a device is busy, with which kernels, and how far results are off.

A process takes cases from a queue until there are none. Processes compile side by side, and take turns with
the device: `Lock` is held by whoever measures.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from queue import Empty
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from benchmarks.compute_bound.case import Case, Function, Program, open_call
from benchmarks.compute_bound.programs import CASES
from benchmarks.kernels import KernelTime, kernel_times

WAYS: Final = ("eager", "inductor", "autotune", "coilwork")
_REPEATS: Final = 5
_ROUNDS: Final = 3
Lock = AbstractContextManager[Any]


class Queue(Protocol):
    """A queue between processes."""

    def put(self, item: Any) -> None: ...

    def get_nowait(self) -> Any: ...


@dataclass(slots=True, kw_only=True)
class Timing:
    """A case in one way.

    Attributes:
        us: microseconds that the device is busy in a call; the least of a few rounds.
        compile_s: seconds of the first call.
        off: distance of results from float64, or from eager's, relative in the 2-norm; the greatest of all.
        kernels: kernels of a call, the slowest first.
        error: why there are no figures.
    """

    us: float = 0.0
    compile_s: float = 0.0
    off: float = 0.0
    kernels: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""


def compile_for(way: str, function: Function) -> Function:
    """Return `function` as `way` compiles it."""
    if way == "eager":
        return function
    if way == "coilwork":
        import coilwork

        compiled: Function = coilwork.compile(function, dynamic=False)
        return compiled
    if way == "autotune":
        return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
    return torch.compile(function, dynamic=False)


def time_case(case: Case, ways: Iterable[str], lock: Lock, device: str = "cuda") -> dict[str, Timing]:
    """Return a timing for each way. On a CPU there are no times."""
    torch.set_float32_matmul_precision("high" if case.tf32 else "highest")
    torch.manual_seed(0)
    with lock, torch.device(device):
        program = case.build()
        wanted = None if case.is_random else _find_wanted(case, program)
    timings = {}
    for way in ways:
        torch._dynamo.reset()
        timing = timings[way] = Timing()
        try:
            _time_way(case, program, way, wanted, timing, lock)
        except Exception as error:  # noqa: BLE001  # the others are still worth measuring
            timing.error = f"{type(error).__name__}: {error}"[:600]
        gc.collect()
    return timings


def _time_way(
    case: Case, program: Program, way: str, wanted: list[Tensor] | None, timing: Timing, lock: Lock
) -> None:
    begin = time.perf_counter()
    call = open_call(case, program, partial(compile_for, way))
    found = list_tensors(call())
    timing.compile_s = time.perf_counter() - begin
    if wanted is not None:
        timing.off = max(map(measure_distance, found, wanted))
    del found
    if program.given[0].device.type != "cuda":
        return
    with lock:
        call()
        rounds = [kernel_times(call, repeats=_REPEATS) for _ in range(_ROUNDS)]
    kernels = min(rounds, key=sum_times)
    timing.us = sum_times(kernels)
    timing.kernels = [asdict(one) for one in kernels]


def sum_times(kernels: Iterable[KernelTime]) -> float:
    """Return the microseconds of all kernels."""
    return sum(one.total_us for one in kernels)


def _find_wanted(case: Case, program: Program) -> list[Tensor]:
    """Return what results should be: in float64, or eager's where that can't be."""
    as_it_is: Callable[[Function], Function] = lambda function: function  # noqa: E731
    if case.is_exact:
        try:
            return [
                x.cpu() if x.nbytes > 1 << 28 else x
                for x in list_tensors(open_call(case, program, as_it_is, exact=True)())
            ]
        except RuntimeError:  # an operator that has no float64
            pass
    return list_tensors(open_call(case, program, as_it_is)())


def list_tensors(found: Any) -> list[Tensor]:
    """Return the results of a call."""
    return [found] if isinstance(found, Tensor) else list(found)


def measure_distance(found: Tensor, wanted: Tensor) -> float:
    """Return the distance of `found` from `wanted` in units of the norm of `wanted`."""
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    exact = wanted.to(found.device).to(wide)
    return float((found.to(wide) - exact).norm() / exact.norm().clamp(min=1e-30))


def serve(names: Queue, results: Queue, lock: Lock, ways: tuple[str, ...], device: str) -> None:
    """Measure the cases whose names are in the queue, until it is empty."""
    torch.set_num_threads(1)
    while True:
        try:
            name = names.get_nowait()
        except Empty:
            return
        timings = time_case(CASES[name], ways, lock, device)
        results.put((name, {way: asdict(timing) for way, timing in timings.items()}))
