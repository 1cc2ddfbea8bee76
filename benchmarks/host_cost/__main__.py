"""`python -m benchmarks.host_cost`: see the package's docstring."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import host_cost
from benchmarks.host_cost.floors import measure_floors
from benchmarks.host_cost.page import Cost, page
from benchmarks.host_cost.programs import PRODUCT_SIZE, PROGRAMS
from benchmarks.machine import machine_description
from benchmarks.session import Worker, WorkerFailedError

COMPILE_LIMIT_S = 400.0
LIMIT_S = 120.0
ROUNDS = 3
Pair = tuple[str, str]


def pairs(programs: Collection[str] = tuple(PROGRAMS)) -> tuple[Pair, ...]:
    """Each of the programs and each backend that it is measured under."""
    found: list[Pair] = [("kernels-1", "dynamo")] if "kernels-1" in programs else []
    for name in programs:
        found += [(name, "inductor"), (name, "coilwork"), (name, "coilwork-pieces")]
        if name.startswith("products"):
            found.append((name, "coilwork-aten"))
    return tuple(found)


def measure(wanted: tuple[Pair, ...], folder: Path) -> dict[Pair, Cost]:
    """The costs of all pairs: they compile together, and are measured one by one, in rounds. What failed is
    said, and left out.
    """
    workers = {
        (program, backend): Worker(
            [program, backend],
            folder / f"{program}-{backend}",
            threads=1,
            module="benchmarks.host_cost.worker",
        )
        for program, backend in wanted
    }
    found: dict[Pair, Cost] = {}
    failures: dict[Pair, str] = {}

    def ask(pair: Pair, question: str, limit_s: float) -> dict[str, Any]:
        """The worker's answer; nothing once it has failed."""
        if pair in failures:
            return {}
        try:
            return workers[pair].ask(question, timeout_s=limit_s)
        except WorkerFailedError as error:
            failures[pair] = str(error)
            return {}

    try:
        with ThreadPoolExecutor(len(wanted)) as pool:
            list(pool.map(lambda pair: ask(pair, "prepare", COMPILE_LIMIT_S), wanted))
        for pair in wanted * ROUNDS:
            answer = ask(pair, "measure", LIMIT_S)
            if answer and (pair not in found or answer["us"] < found[pair].us):
                found[pair] = Cost(**answer)
        for pair, cost in list(found.items()):
            found[pair] = replace(cost, **ask(pair, "count", LIMIT_S))
    finally:
        for worker in workers.values():
            worker.close()
    for pair in wanted:
        print(*pair, failures.get(pair) or f"{found[pair].us:.1f} us", file=sys.stderr)
    return {pair: cost for pair, cost in found.items() if pair not in failures}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_cost", description=host_cost.__doc__)
    parser.add_argument("-o", "--output", type=Path, default=None, help="default: standard output")
    parser.add_argument(
        "--programs", nargs="+", choices=tuple(PROGRAMS), default=tuple(PROGRAMS), help="default: all"
    )
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("there is no GPU; `python -m benchmarks.calls` measures calls on a CPU")
    with tempfile.TemporaryDirectory(prefix="host-cost-", ignore_cleanup_errors=True) as folder:
        wanted = pairs(asked.programs)
        found = measure(wanted, Path(folder))
    floors = measure_floors(PRODUCT_SIZE)
    command = shlex.join(("python", "-m", "benchmarks.host_cost", *arguments))
    text = page(found, floors, command=command, machine=machine_description("cuda"))
    if asked.output is None:
        print(text)
    else:
        asked.output.write_text(text, encoding="utf-8")
    return int(len(found) < len(wanted))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
