"""A process that compiles cases of the table, and measures each when it is told to.

It is started with the names of the backends. It reads lines `compile CASE` and `measure CASE BACKEND`, and
answers each with a line of JSON. Before the answer to the latter comes an empty object, when the GPU is free
for another process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from benchmarks.layout_programs.cases import Case
from benchmarks.layout_programs.programs import PROGRAMS
from benchmarks.layout_programs.timing import Compiled, compile_program, measure_difference, time_call

# The first of them says what results should be.
BACKENDS = ("eager", "coilwork", "inductor")


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # what libraries print is no answer
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**said: object) -> None:
        print(json.dumps(said), file=answers, flush=True)

    backends = sys.argv[1:] or BACKENDS
    compiled: dict[str, dict[str, Compiled]] = {}
    for line in sys.stdin:
        verb, text, *backend = line.split()
        if verb == "compile":
            compiled[text], said = _compile(Case.parse(text), backends)
            answer(case=text, **said)
            continue
        found = time_call(compiled[text][backend[0]].call, answer)
        answer(case=text, backend=backend[0], kernels=[asdict(kernel) for kernel in found])


def _compile(case: Case, backends: Sequence[str]) -> tuple[dict[str, Compiled], dict[str, object]]:
    found: dict[str, Compiled] = {}
    said: dict[str, object] = {}
    seconds: dict[str, float] = {}
    expected: tuple[Tensor, ...] = ()
    for backend in backends:
        begin = time.perf_counter()
        try:
            one = compile_program(PROGRAMS[case.program], backend, case.setting)
        except Exception as error:  # noqa: BLE001 - its message is the finding
            said[f"{backend} failed"] = f"{type(error).__name__}: {error}"[:300]
            continue
        seconds[backend] = time.perf_counter() - begin
        expected = expected or one.results
        said[f"{backend} off"] = measure_difference(one.results, expected)
        said[f"{backend} MB"] = one.peak_mb
        said[f"{backend} repeatable"] = one.is_repeatable
        said[f"{backend} strides"] = one.results[0].stride() == expected[0].stride()
        found[backend] = replace(one, results=())
    torch.cuda.empty_cache()
    return found, {**said, "seconds": seconds}


if __name__ == "__main__":
    main()
