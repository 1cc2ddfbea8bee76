"""One program under one backend in a process of its own: commands on stdin, answers as lines of JSON on
stdout.

`prepare` compiles and compares with eager, `measure` says what a call costs, `count` how many kernels it
launches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from benchmarks import measure
from benchmarks.backends import resolve_backend
from benchmarks.host_cost.programs import PROGRAMS, Call
from coilwork_runtime import NativeProgram, load_native
from coilwork_runtime.executor import choice

CALLS = 200
# Names of backends: a graph that does nothing; torch's; ours; ours without graphs of the driver's; ours with
# products by ATen.
BACKENDS = ("dynamo", "inductor", "coilwork", "coilwork-pieces", "coilwork-aten")


class Bench:
    """The program, compiled; each method answers one command."""

    def __init__(self, program: str, backend: str) -> None:
        self.backend = backend
        self.function, self.inputs = PROGRAMS[program].make()
        self.compiled = compile_with(self.function, backend)
        self.programs: list[NativeProgram] = []

    def call(self) -> object:
        with torch.no_grad():
            return self.compiled(*self.inputs)

    def prepare(self) -> dict[str, Any]:
        """Compile. A wrong result ends the process."""

        def load_and_keep(data: bytes, **rest: Any) -> NativeProgram:
            self.programs.append(load_native(data, **rest))
            return self.programs[-1]

        with mock.patch.object(choice, "load_native", load_and_keep):
            found = self.call()
        if self.backend != "dynamo":
            with torch.no_grad():
                wanted = self.function(*self.inputs)
            # a model's results are judged by the benchmarks of models; here, that it is the same program
            torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.1)
        return {}

    def measure(self) -> dict[str, Any]:
        """The median of the host's microseconds per call, and what ours spends on each kind of
        instruction.
        """
        times = measure.measure_host_issue_ms(self.call, repeats=CALLS)
        kinds: dict[str, tuple[float, float]] = {}
        for program in self.programs:
            with program.stopwatch:
                measure.measure_host_issue_ms(self.call, repeats=CALLS // 10)
            kinds |= {one.kind: (one.count, one.microseconds) for one in program.stopwatch.kinds()}
        return {"us": 1e3 * statistics.median(times), "kinds": kinds}

    def count(self) -> dict[str, Any]:
        """Kernels that the GPU runs. Last of all, as the profiler may stay in the way."""
        return {"launches": measure.measure_gpu_activity(self.call, repeats=1)[0].kernels}


def compile_with(function: Call, backend: str) -> Call:
    """`function` compiled by one of BACKENDS."""
    if backend == "dynamo":
        return torch.compile(function, backend=_return_first_input)
    if backend == "inductor":
        return torch.compile(function)
    options: dict[str, str | int | bool | Callable[..., Any]] = {"executor": "native", "strict": True}
    if backend == "coilwork-pieces":
        options["replay"] = False
    if backend == "coilwork-aten":
        options["products"] = "aten"
    return torch.compile(function, backend=resolve_backend("coilwork"), options=options)


def _return_first_input(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose graphs return their first input."""
    return lambda *args: (args[0],)


def main() -> None:
    # Whatever a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_cost.worker")
    parser.add_argument("program", choices=tuple(PROGRAMS))
    parser.add_argument("backend", choices=BACKENDS)
    found = parser.parse_args()
    bench = Bench(found.program, found.backend)
    commands = {"prepare": bench.prepare, "measure": bench.measure, "count": bench.count}
    for line in sys.stdin:
        answers.write(json.dumps(commands[line.strip()]()) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
