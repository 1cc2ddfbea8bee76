"""Checks the programs of a range of seeds in one process: a line of JSON per program on stdout."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import torch

from coilwork.caches import open_caches
from coilwork.compile_options import CompileOptions
from coilwork_cache import MemoryStore
from integration_tests.fuzz.check import Finding, check
from integration_tests.fuzz.generate import generate
from integration_tests.fuzz.levels import GENERATED
from integration_tests.fuzz.program import Program
from integration_tests.fuzz.script import script
from integration_tests.fuzz.shrink import shrink
from integration_tests.quicker_compiles import quicken_compiles

# Every so many programs are driven in every way; the others natively and by Python, which are quick to build.
ALL_WRAPPERS_EACH = 25
# What is left to ATen there is, as on GPUs.
TRITON_ON_CPU = (("triton_on_cpu", True), ("strict", False))


def examine(
    seed: int, *, shrinking_s: float, device: str = "cpu", interpreted: bool = False, triton: bool = False
) -> dict[str, Any]:
    """The finding for the program of `seed`, as a record; with a script if it failed.

    Only by interpreters if `interpreted`; with `triton`, generated code is Triton's, which its own
    interpreter runs.
    """
    # Work that is shared by threads is cut elsewhere.
    torch.set_num_threads(1 + seed % 3)
    store = MemoryStore()
    every = seed % ALL_WRAPPERS_EACH == 0 and device == "cpu"
    wrappers = () if interpreted else ("python",) if triton else GENERATED if every else ("native", "python")
    executors = open_caches(CompileOptions())
    started = time.monotonic()
    program = replace(generate(seed), device=device)
    if triton:
        program = replace(program, options=(*program.options, *TRITON_ON_CPU))
    finding = check(program, store=store, drivers_store=executors, wrappers=wrappers)
    record = {
        **finding.as_record(),
        "seconds": round(time.monotonic() - started, 2),
        "steps": len(program.steps),
    }
    if not finding.failed:
        return record

    def fails(other: Program) -> bool:
        found = check(other, store=store, drivers_store=executors, wrappers=wrappers)
        return (
            found.kind == finding.kind and found.level == finding.level and _error(found) == _error(finding)
        )

    smaller = shrink(program, fails, seconds=shrinking_s) if shrinking_s else program
    detail = check(smaller, store=store, drivers_store=executors, wrappers=wrappers).detail
    return {**record, "detail": detail, "script": script(smaller, detail.strip().splitlines()[-1])}


def _error(finding: Finding) -> str:
    """What was raised, without its message."""
    return finding.detail.strip().splitlines()[-1].partition(":")[0] if finding.kind == "raises" else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--shrinking", type=float, default=60.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--interpreted", action="store_true")
    parser.add_argument("--triton", action="store_true")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    quicken_compiles()
    # Results go to the real stdout; whatever else prints there goes to stderr.
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for seed in range(chosen.first, chosen.first + chosen.count):
        print(json.dumps({"start": seed}), file=report)
        record = examine(
            seed,
            shrinking_s=chosen.shrinking,
            device=chosen.device,
            interpreted=chosen.interpreted,
            triton=chosen.triton,
        )
        print(json.dumps(record), file=report)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
