"""Runs everything that ranks check, and measures what they measure.

    python -m integration_tests.ranks                            over NCCL, on all GPUs (two at least)
    python -m integration_tests.ranks --device cpu --ranks 2     over gloo
    python -m integration_tests.ranks --only DDP FSDP2 --steps 20     names that contain one of these
    python -m integration_tests.ranks --times pipeline           times of these alone, and all checks

With `--worlds 4`, four groups of ranks share the devices while they check and compile; times are measured one
after the other, when everything else is done. Exit status 1 if something was wrong or not reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from integration_tests.ranks.cases import CASES
from integration_tests.ranks.measuring import BACKENDS
from integration_tests.ranks.report import write_tables
from integration_tests.ranks.world import Outcome, World

TASKS = "integration_tests.ranks"
FLIGHTS_AT_ONCE, DTENSORS_AT_ONCE = 10, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request: its kind and name in records, the function and its arguments."""

    kind: str
    name: str
    function: str
    arguments: dict[str, Any]


@dataclass(slots=True)
class Run:
    """What is still to do, and what came of the rest; threads share it."""

    end: float
    limit_s: float
    backends: Sequence[str]
    left: deque[Task]
    path: Path | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> Task | None:
        with self.lock:
            return self.left.popleft() if self.left and time.monotonic() < self.end else None

    def keep(self, task: Task, answer: Any, error: str, seconds: float) -> None:
        record = {"kind": task.kind, "name": task.name, "answer": answer, "error": error}
        with self.lock:
            self.records.append(record | {"seconds": round(seconds, 1)})
            print(write_tables([self.records[-1]]), flush=True)
            if self.path is not None:
                self.path.write_text(json.dumps(self.records, indent=1))


def is_wanted(name: str, parts: Sequence[str]) -> bool:
    """Tell if `name` contains one of `parts`."""
    return any(part in name for part in parts)


def list_checks(only: Sequence[str], *, steps: int, flights: int, dtensors: int) -> list[Task]:
    """All checks whose names contain one of `only`, the longest first."""
    found = []
    for name, at_once, count in (
        ("flights", FLIGHTS_AT_ONCE, flights), ("dtensors", DTENSORS_AT_ONCE, dtensors)
    ):  # fmt: skip
        for first in range(0, count, at_once):
            last = min(first + at_once, count)
            arguments = {"seeds": list(range(first, last))}
            found.append(
                Task(kind="fuzz", name=f"{name} {first} to {last - 1}", function=f"{TASKS}.checks:run_{name}",
                     arguments=arguments)
            )  # fmt: skip
    curves = [
        Task(kind="curve", name=name, function=f"{TASKS}.checks:compare_curve",
             arguments={"case": name, "steps": steps})
        for name in CASES
    ]  # fmt: skip
    once = Task(kind="once", name="kernels compiled once", function=f"{TASKS}.checks:count_compilations",
                arguments={})  # fmt: skip
    return [task for task in (once, *curves, *found) if is_wanted(task.name, only)]


def list_measured(only: Sequence[str]) -> list[str]:
    """Names of the cases to measure."""
    return [name for name, case in CASES.items() if case.is_measured and is_wanted(name, only)]


def error_of(outcome: Outcome) -> str:
    """What went wrong with a task, or what it says is wrong."""
    answers = [answer for answer in outcome.answers if answer]
    return outcome.error or next((str(answer["error"]) for answer in answers if answer.get("error")), "")


def work(run: Run, world: World, prepared: dict[str, int]) -> None:
    """Take tasks until there are none. `prepared` gets the start of the world that keeps each case."""
    while (task := run.take()) is not None:
        if task.kind != "prepare":
            outcome = world.run(task.function, task.arguments, limit_s=run.limit_s)
            run.keep(task, outcome.answers[0], error_of(outcome), outcome.seconds)
            continue
        prepare(run, world, task)
        prepared[task.name] = world.starts


def prepare(run: Run, world: World, task: Task) -> None:
    """Have every back end compile a case. Losses that are not eager's are an error of ours.

    Where TorchInductor's overlapping fails, it goes without.
    """
    expected, failed = list[float](), False
    for backend, more in (*((one, {}) for one in BACKENDS), ("inductor", {"overlaps": False})):
        if backend not in run.backends or (more and not failed):
            continue
        outcome = world.run(task.function, task.arguments | more | {"backend": backend}, limit_s=run.limit_s)
        answer, error = outcome.answers[0], error_of(outcome)
        failed = bool(error) if backend == "inductor" else failed
        if answer and backend == "eager":
            expected = answer["losses"]
        elif answer and expected and not is_near(answer["losses"], expected):
            error = f"losses {answer['losses']}, eager's {expected}"
        kind = "other" if backend == "inductor" else "prepare"
        named = Task(kind=kind, name=f"{task.name}, {backend}", function="", arguments={})
        run.keep(named, answer, error, outcome.seconds)


def is_near(losses: Sequence[float], expected: Sequence[float]) -> bool:
    """Tell if losses of a few steps are those of another computation in bf16."""
    return all(abs(a - b) <= 0.02 * abs(b) for a, b in zip(losses, expected, strict=True))


def measure_all(run: Run, worlds: Sequence[World], prepared: Sequence[dict[str, int]]) -> None:
    """Measure what is prepared, one case after the other."""
    for world, names in zip(worlds, prepared, strict=True):
        for name, start in names.items():
            task = Task(kind="measured", name=name, function=f"{TASKS}.measuring:measure",
                        arguments={"case": name})  # fmt: skip
            if start != world.starts:
                run.keep(task, None, "the ranks that had it ended", 0.0)
                continue
            outcome = world.run(task.function, task.arguments, limit_s=run.limit_s)
            run.keep(task, outcome.answers[0], error_of(outcome), outcome.seconds)


def check_death(run: Run, ranks: int, device: str) -> None:
    """A rank dies: the others must end with an error within their patience."""
    patience_s = 10.0
    task = Task(kind="death", name="a rank that dies", function=f"{TASKS}.checks:die",
                arguments={"rank": ranks - 1, "after": 3})  # fmt: skip
    with World(ranks, device, patience_s=patience_s) as world:
        world.run(f"{TASKS}.checks:meet", {}, limit_s=run.limit_s)
        outcome = world.run(task.function, task.arguments, limit_s=run.limit_s, grace_s=patience_s + 20)
    hung = [rank for rank, error in enumerate(outcome.errors) if not error]
    answer = {"errors": [error.split("\n")[0][:80] for error in outcome.errors]}
    run.keep(task, answer, f"ranks {hung} hang" if hung else "", outcome.seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="integration_tests.ranks", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, default=0, help="default: one a GPU; 2 on a CPU")
    parser.add_argument("--worlds", type=int, default=1, help="groups of ranks at once")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names of checks and cases")
    parser.add_argument("--times", nargs="*", default=[""], help="parts of names of cases to measure")
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--steps", type=int, default=50, help="of the curves of losses")
    parser.add_argument("--flights", type=int, default=300, help="random programs with collectives")
    parser.add_argument("--dtensors", type=int, default=40, help="random programs of DTensors")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one task")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no task begins")
    parser.add_argument("--json", type=Path, help="where all records go")
    given = parser.parse_args(arguments)
    ranks = given.ranks or (torch.cuda.device_count() if given.device == "cuda" else 2)
    if given.device == "cuda" and ranks > torch.cuda.device_count():
        parser.error(f"{ranks} ranks want as many GPUs, here are {torch.cuda.device_count()}")
    left: deque[Task] = deque()
    if not given.no_times:
        for name in list_measured(given.times if given.times != [""] else given.only):
            left.append(Task(kind="prepare", name=name, function=f"{TASKS}.measuring:prepare",
                             arguments={"case": name}))  # fmt: skip
    if not given.no_checks:
        left.extend(
            list_checks(given.only, steps=given.steps, flights=given.flights, dtensors=given.dtensors)
        )
    end = time.monotonic() + given.seconds
    run = Run(end=end, limit_s=given.limit, backends=given.backends, left=left, path=given.json)
    worlds = [World(ranks, given.device) for _ in range(min(given.worlds, max(1, len(left))))]
    prepared = [dict[str, int]() for _ in worlds]
    threads = [
        threading.Thread(target=work, args=(run, world, names), daemon=True)
        for world, names in zip(worlds, prepared, strict=True)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        measure_all(run, worlds, prepared)
    finally:
        for world in worlds:
            world.end()
    if not given.no_checks and is_wanted("a rank that dies", given.only):
        check_death(run, ranks, given.device)
    return finish(run)


def finish(run: Run) -> int:
    """Print the tables, write the records, return the exit status."""
    for task in run.left:
        run.records.append({"kind": task.kind, "name": task.name, "answer": None, "error": "not reached",
                            "seconds": 0.0})  # fmt: skip
    if run.path is not None:
        run.path.write_text(json.dumps(run.records, indent=1))
    print("\n" + write_tables(sorted(run.records, key=lambda record: (record["kind"], record["name"]))))
    # that another compiler fails is for the table alone
    wrong = sum(bool(record["error"]) for record in run.records if record["kind"] != "other")
    print(f"{len(run.records)} records, {wrong} wrong")
    return int(bool(wrong) or not run.records)


if __name__ == "__main__":
    sys.exit(main())
