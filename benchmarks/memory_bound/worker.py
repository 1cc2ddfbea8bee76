"""A process for one case: answers commands on stdin with JSON lines on stdout; `--help` names its arguments.

`compile BACKEND`: the first call with empty caches, in seconds, its GPU time and the compiler's imports
included. `start BACKENDS`: import what they are made of, so that the commands that need the GPU to themselves
take less time. `judge BACKEND`: compile from the caches that an earlier process left, choose configurations
anew, and check results. `time`: the figures of every backend that was judged, and those of a copy of as many
bytes. `choices BACKEND`: what Coilwork's searches found when it was judged.

Configurations that were chosen while other processes compiled are forgotten first: there they were timed on a
busy GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.backends import compile_with
from benchmarks.measure import Call
from benchmarks.memory_bound.case import Case, Make, call_of, fewest_bytes
from benchmarks.memory_bound.cases import find_case
from benchmarks.memory_bound.choices import forget_choices, searches
from benchmarks.memory_bound.judge import Judge
from benchmarks.memory_bound.timing import timings
from benchmarks.session import cache_variables
from coilwork_runtime.usable_cores import count_usable_cores

Answer = dict[str, Any]
REPEATS = 9
COPY = "copy"


class Bench:
    """One case; its methods answer the commands."""

    def __init__(self, case: Case, *, device: str, tiny: bool, caches: Path) -> None:
        self.case = case
        self.device = torch.device(device)
        self.tiny = tiny
        self.caches = caches
        self.calls: dict[str, Call] = {}
        self._judge: Judge | None = None

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def judge_(self) -> Judge:
        """Inputs and what eager makes of them, once."""
        if self._judge is None:
            torch.manual_seed(0)
            self._judge = Judge.for_case(self.case, self.case.make(Make(device=self.device), tiny=self.tiny))
        return self._judge

    def compile(self, backend: str) -> Answer:
        torch.manual_seed(0)
        inputs = self.case.make(Make(device=self.device), tiny=self.tiny)
        upstream: list[torch.Tensor] = []
        call_of(self.case, self.case.function, inputs, upstream)()
        self._synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.perf_counter()
            call_of(self.case, self._compile(backend), inputs, upstream)()
            self._synchronize()
            return {"compile_s": time.perf_counter() - start, "fallbacks": fallbacks(caught)}

    def start(self, *backends: str) -> Answer:
        example = torch.zeros(1, 2, device=self.device)
        for backend in backends:
            # Nothing to launch, hence nothing that disturbs who measures.
            compile_with(lambda x: x.view(-1), backend)(example)
        return {}

    def judge(self, backend: str) -> Answer:
        judge = self.judge_()
        if backend != "eager":
            self._use_caches(backend)
        function = self._compile(backend)
        verdict = judge.verdict(function)
        self.calls[backend] = call_of(self.case, function, judge.inputs, judge.upstream)
        return {"wrong": verdict.wrong, "repeatable": verdict.repeatable}

    def choices(self, backend: str) -> Answer:
        return {
            "searches": searches(Path(cache_variables(folder_of(self.caches, backend))["COILWORK_CACHE_DIR"]))
        }

    def time(self) -> Answer:
        judge = self.judge_()
        fewest = fewest_bytes(self.case, judge.inputs, judge.expected)
        source = torch.empty(fewest.total // 2, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        calls = {COPY: lambda: target.copy_(source), **self.calls}
        flush = self.case.set != "cached"
        seen = timings(calls, repeats=REPEATS, cuda=self.cuda, flush=flush)
        peak = measure.measure_cuda_peak_bytes if self.cuda else measure.measure_cpu_peak_bytes
        return {
            "read_bytes": fewest.read,
            "written_bytes": fewest.written,
            "again_bytes": fewest.again,
            "copy_us": seen[COPY].busy_us,
            "backends": {
                name: {
                    "busy_us": seen[name].busy_us,
                    "host_us": seen[name].host_us,
                    "kernels": seen[name].kernels,
                    "steps": seen[name].steps,
                    "peak_bytes": peak(call),
                }
                for name, call in self.calls.items()
            },
        }

    def _compile(self, backend: str) -> Callable[..., Any]:
        """The function, compiled; if for other sizes than it is measured with, it has been called
        with those.
        """
        function = compile_with(self.case.function, backend, dynamic=self.case.dynamic)
        if self.case.traced and not self.tiny:
            inputs = self.case.inputs(Make(device=self.device), *self.case.traced)
            call_of(self.case, function, inputs, [])()
        return function

    def _use_caches(self, backend: str) -> None:
        """Let compilers find what the process that compiled with `backend` left, but for its choices."""
        variables = cache_variables(folder_of(self.caches, backend))
        # the machine is this process's alone now
        os.environ |= variables | {"COILWORK_WORKERS": str(count_usable_cores())}
        forget_choices(
            inductor=Path(variables["TORCHINDUCTOR_CACHE_DIR"]),
            coilwork=Path(variables["COILWORK_CACHE_DIR"]),
        )

    def _synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def folder_of(caches: Path, backend: str) -> Path:
    """Return where the compile process of `backend` has its caches."""
    return caches / backend.replace(":", "_")


def fallbacks(caught: list[warnings.WarningMessage]) -> list[str]:
    """Return what Coilwork left to eager mode, by its warnings."""
    return [str(w.message) for w in caught if w.category.__name__ == "CoilworkFallbackWarning"]


def main() -> None:
    # Whatever a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_bound.worker", description=__doc__)
    parser.add_argument("--case", required=True, help="its whole name")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--tiny", action="store_true", help="the sizes of a smoke test")
    parser.add_argument("--caches", type=Path, required=True, help="folder of the compile processes' folders")
    found = parser.parse_args()
    bench = Bench(find_case(found.case), device=found.device, tiny=found.tiny, caches=found.caches)
    commands: dict[str, Callable[..., Answer]] = {
        "compile": bench.compile,
        "start": bench.start,
        "judge": bench.judge,
        "time": bench.time,
        "choices": bench.choices,
    }
    for line in sys.stdin:
        name, *words = line.split()
        answers.write(json.dumps(commands[name](*words)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
