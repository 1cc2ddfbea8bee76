"""One model under one backend in a process of its own: answers commands on stdin with JSON lines on stdout.

Commands: `prepare` (build, first call, correctness), `time` (one round), `memory`, `gpu`, `count`. A failure
ends the process with its traceback on stderr; the parent turns that into a row of the report.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks import measure
from benchmarks.backends import compile_with, replays_graphs
from benchmarks.judgement import judge, outcome_of
from benchmarks.models import Instance, Setting, Size, find_case, first_rows, instantiate
from benchmarks.training import make_training_step

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

WARM_UP_CALLS: Final = 10
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What this process measures; without `batch`, at the model's own."""

    case: str
    setting: Setting
    mode: str
    backend: str
    quick: bool
    batch: int | None = None

    @property
    def training(self) -> bool:
        return self.mode == "train"

    @property
    def cuda(self) -> bool:
        return self.setting.device.type == "cuda"


def synchronize(request: Request) -> None:
    """Wait for the device."""
    if request.cuda:
        torch.cuda.synchronize()


def callable_for(request: Request, instance: Instance, backend: str) -> Callable[..., Tensor]:
    """The function of the model's inputs that is measured: the forward, or a whole training step."""
    function = _compile_request(request, instance, backend)
    if not replays_graphs(backend):
        return function

    def begin_step(*inputs: Tensor) -> Tensor:
        # Otherwise each compiled function is a step of its own, and the optimizer's would overwrite the
        # gradients.
        torch.compiler.cudagraph_mark_step_begin()
        return function(*inputs)

    return begin_step


def _compile_request(request: Request, instance: Instance, backend: str) -> Callable[..., Tensor]:
    if request.training:
        return make_training_step(instance, lambda function: compile_with(function, backend))
    compiled = compile_with(instance.module, backend)

    def forward(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            output: Tensor = compiled(*inputs)
        return output

    return forward


class Bench:
    """The model, compiled; each method answers one command."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.case = find_case(request.case)
        whole = instantiate(self.case, request.setting, training=request.training)
        self.instance = whole if request.batch is None else first_rows(whole, request.batch)
        self.function: Callable[..., Tensor] | None = None

    def call(self) -> object:
        """One measured call."""
        if self.function is None:
            raise RuntimeError("`prepare` comes first")
        return self.function(*self.instance.inputs)

    def prepare(self) -> Answer:
        """First call (timed, compiler's imports included), then its correctness."""
        training = self.request.training
        untrained = replace(self.instance, module=copy.deepcopy(self.instance.module))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            synchronize(self.request)
            start = time.perf_counter()
            self.function = callable_for(self.request, self.instance, self.request.backend)
            output = self.call()
            synchronize(self.request)
            first_call_s = time.perf_counter() - start
        found = outcome_of(self.instance, output, training=training)
        comparisons = judge(found, untrained, training=training)
        del untrained, output, found
        gc.collect()
        if self.request.cuda:
            torch.cuda.empty_cache()
        worst = max(
            comparisons, key=lambda c: c.compiled.relative_l2 / (c.eager.relative_l2 + c.relative_l2_floor)
        )
        fallbacks = [w for w in caught if w.category.__name__ == "CoilworkFallbackWarning"]
        return {
            "first_call_s": first_call_s,
            "correct": all(comparison.ok for comparison in comparisons),
            "relative_l2": worst.compiled.relative_l2,
            "eager_relative_l2": worst.eager.relative_l2,
            "wrong": [str(comparison) for comparison in comparisons if not comparison.ok][:5],
            "fallbacks": [str(warning.message) for warning in fallbacks],
        }

    def time(self) -> Answer:
        """One round of timed calls, about half a second of them on the CPU."""
        # on a GPU, what is measured is how calls go on: torch's allocator has found its order, graphs are
        # recorded
        for _ in range(WARM_UP_CALLS if self.request.cuda else 1):
            self.call()
        synchronize(self.request)
        if self.request.cuda:
            repeats = 10 if self.request.quick else 30
            return {
                "ms": measure.measure_cuda_ms(self.call, repeats=repeats),
                "host_ms": measure.measure_host_issue_ms(self.call, repeats=repeats),
            }
        once = measure.measure_cpu_ms(self.call, repeats=1)[0]
        budget_ms = 150.0 if self.request.quick else 500.0
        return {"ms": measure.measure_cpu_ms(self.call, repeats=max(2, min(50, int(budget_ms / once))))}

    def memory(self) -> Answer:
        """Peak above parameters, optimizer state and inputs; empty for CUDA graphs, whose memory is held
        between calls.
        """
        if self.request.cuda and replays_graphs(self.request.backend):
            return {}
        peak = measure.measure_cuda_peak_bytes if self.request.cuda else measure.measure_cpu_peak_bytes
        return {"peak_bytes": peak(self.call)}

    def gpu(self) -> Answer:
        """GPU-busy milliseconds and kernels, medians over a few calls; empty on the CPU."""
        if not self.request.cuda:
            return {}
        found = measure.measure_gpu_activity(self.call, repeats=3 if self.request.quick else 10)
        middle = sorted(found, key=lambda activity: activity.busy_ms)[len(found) // 2]
        return {"gpu_busy_ms": middle.busy_ms, "kernels": middle.kernels}

    def count(self) -> Answer:
        """Launches per call on the CPU, where no profiler sees them: each compiler's own account, operators
        for eager.
        """
        if self.request.cuda:
            return {}
        backend = self.request.backend.partition(":")[0]
        if backend == "eager":
            return {"kernels": measure.eager_operators(self.call)}
        if backend == "inductor":
            return {"kernels": inductor_launches(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))}
        if backend == "coilwork":
            # Stage dumps cost time, so they are switched on only now, for one more compilation.
            trace = Path(os.environ["COILWORK_CACHE_DIR"]).parent / "trace"
            os.environ["COILWORK_TRACE"] = str(trace)
            torch._dynamo.reset()
            callable_for(self.request, self.instance, self.request.backend)(*self.instance.inputs)
            return coilwork_launches(trace)
        return {}


def inductor_launches(cache: Path) -> int:
    """Kernel and library calls in the wrappers that Inductor wrote below `cache`."""
    pattern = re.compile(
        r"^\s+(?:\w+ = )?(?:cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.MULTILINE
    )
    wrappers = (path.read_text() for path in cache.rglob("*.py"))
    return sum(len(pattern.findall(text)) for text in wrappers if "async_compile" in text)


def coilwork_launches(trace: Path) -> Answer:
    """Kernels and library calls by the reports that Coilwork wrote below `trace`."""
    reports = [json.loads(path.read_text()) for path in sorted(trace.rglob("report.json"))]
    return {
        "kernels": sum(report["kernels"] + report["extern_calls"] for report in reports),
        "generated_kernels": sum(report["kernels"] for report in reports),
        "fallbacks": [report["fallback"] for report in reports if report.get("fallback")],
    }


def parse(arguments: list[str]) -> Request:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker")
    for name in ("case", "size", "device", "dtype", "mode", "backend"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--batch", type=int, default=None)
    found = parser.parse_args(arguments)
    setting = Setting(size=Size(found.size), device=torch.device(found.device), dtype=DTYPES[found.dtype])
    return Request(
        case=found.case,
        setting=setting,
        mode=found.mode,
        backend=found.backend,
        quick=found.quick,
        batch=found.batch,
    )


def main() -> None:
    # Whatever a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = parse(sys.argv[1:])
    case = find_case(request.case)
    settings = torch._dynamo.config.patch(dict(case.dynamo)) if case.dynamo else contextlib.nullcontext()
    with settings:
        bench = Bench(request)
        commands: dict[str, Callable[[], Answer]] = {
            name: partial(getattr(Bench, name), bench)
            for name in ("prepare", "time", "memory", "gpu", "count")
        }
        for line in sys.stdin:
            answers.write(json.dumps(commands[line.strip()]()) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
