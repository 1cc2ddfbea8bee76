"""Time programs under eager, TorchInductor and Coilwork, check their results, and print a page."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.backends import compile_with
from benchmarks.cpu_programs import pointwise, reductions
from benchmarks.cpu_programs.case import Case
from benchmarks.machine import machine_description
from benchmarks.pages import wrap_prose
from benchmarks.report import geomean, table

CASES = (*pointwise.CASES, *reductions.CASES)
BACKENDS = ("eager", "inductor", "coilwork")
ROUNDS = 7
ROUND_S = 0.03
MOST_CALLS = 50


def runner(case: Case, backend: str, inputs: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Return what one call is, with inputs of its own; its results, gradients included."""
    torch._dynamo.reset()
    function = case.function if backend == "eager" else compile_with(case.function, backend)
    mine = [x.clone().requires_grad_(case.backward and x.is_floating_point()) for x in inputs]

    def run() -> list[Tensor]:
        results = function(*mine)
        listed = [results] if isinstance(results, Tensor) else list(results)
        if case.backward:
            leaves = [x for x in mine if x.requires_grad]
            listed += torch.autograd.grad([one.sum() for one in listed], leaves)
        return [one.detach() for one in listed]

    return run


def measured(case: Case) -> dict[str, float]:
    """The least milliseconds of a call by backend, of rounds that alternate between them.

    Raises:
        AssertionError: one of Coilwork's results differs from eager's.
    """
    torch.manual_seed(0)
    inputs = case.inputs()
    runs: dict[str, tuple[Callable[[], Any], int]] = {}
    expected: list[Tensor] = []
    for backend in BACKENDS:
        run = runner(case, backend, inputs)
        results = run()
        expected = expected or results
        for one, other in zip(results, expected, strict=True) if backend == "coilwork" else ():
            loose = one.dtype in (torch.bfloat16, torch.float16)
            # what rounds to a neighbour in 8 bits, and gradients that are sums of many
            atol = 1.0 if not one.is_floating_point() else 2e-2 if loose else 2e-3
            torch.testing.assert_close(one, other, rtol=2e-2 if loose else 2e-3, atol=atol)
        run()
        begun = time.perf_counter()
        run()
        seconds = time.perf_counter() - begun
        runs[backend] = run, max(1, min(MOST_CALLS, int(ROUND_S / max(seconds, 1e-7))))
    best = dict.fromkeys(BACKENDS, float("inf"))
    for _ in range(ROUNDS):
        for backend, (run, calls) in runs.items():
            begun = time.perf_counter()
            for _ in range(calls):
                run()
            best[backend] = min(best[backend], (time.perf_counter() - begun) / calls * 1e3)
    return best


def row(name: str, times: dict[str, float]) -> list[str]:
    """A line of the table."""
    ours = times["coilwork"]
    return [name, *(f"{times[b]:.3g}" for b in BACKENDS), *(f"{times[b] / ours:.2f}" for b in BACKENDS[:2])]


def page(command: str, threads: int, found: dict[str, dict[str, float]]) -> str:
    """The page, losing programs first."""

    def worst(times: dict[str, float]) -> float:
        return min(times["eager"], times["inductor"]) / times["coilwork"]

    ordered = sorted(found.items(), key=lambda item: worst(item[1]))
    means = [geomean(t[b] / t["coilwork"] for t in found.values()) for b in BACKENDS[:2]]
    rows = [row(name, times) for name, times in ordered]
    rows.append(["geometric mean", "", "", "", *("" if mean is None else f"{mean:.2f}" for mean in means)])
    lines = [
        "# Benchmarks: small programs on a CPU",
        "",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {threads} thread(s).",
        "",
        *(f"- {key}: {value}" for key, value in machine_description("cpu").items()),
        "",
        (
            f"Milliseconds of a call, the least of {ROUNDS} rounds that alternate between the backends in "
            "one process; Coilwork's results were"
        ),
        (
            "compared with eager's first. Ratios above 1 speak for coilwork. Rows are ordered by the worst "
            "of both ratios."
        ),
        "",
        *table(["program", *BACKENDS, "eager / coilwork", "inductor / coilwork"], rows),
    ]
    return wrap_prose("\n".join(lines) + "\n")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_programs", description=__doc__)
    parser.add_argument("names", nargs="*", help="programs whose names contain one of these; all without")
    parser.add_argument("-o", "--output", type=Path, help="write the page there")
    parser.add_argument("--threads", type=int, default=1)
    found = parser.parse_args(arguments)
    torch.set_num_threads(found.threads)
    results: dict[str, dict[str, float]] = {}
    for case in CASES:
        if not found.names or any(name in case.name for name in found.names):
            results[case.name] = measured(case)
            print(" | ".join(row(case.name, results[case.name])), flush=True)
    text = page(" ".join(["python -m benchmarks.cpu_programs", *arguments]), found.threads, results)
    if found.output:
        found.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
