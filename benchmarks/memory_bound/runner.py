"""The order of a run: every compilation first, many at a time; then one case after the other, alone on the
GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.backends import family, mode_of
from benchmarks.gpus import side_by_side
from benchmarks.memory_bound.case import Case
from benchmarks.memory_bound.counters import NoCountersError, count
from benchmarks.memory_bound.results import Figure, Row, restore_steps
from benchmarks.memory_bound.worker import folder_of
from benchmarks.session import Worker, WorkerFailedError

MODULE = "benchmarks.memory_bound.worker"
# Processes that import and wait while another one measures: few, so that the measuring host has cores to
# spare.
AHEAD = 6

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `jobs` processes compile at a time, each with one thread; `timeout_s` bounds each command.

    `profile`: read hardware counters, too. `gpus`: names of those that share the cases out, as in
    `benchmarks.gpus`.
    """

    cases: tuple[Case, ...]
    backends: tuple[str, ...]
    device: str
    tiny: bool
    jobs: int
    timeout_s: float
    profile: bool = False
    gpus: tuple[str, ...] = ("",)

    def arguments(self, case: Case, caches: Path) -> list[str]:
        """Return the arguments of the process for `case`."""
        words = [f"--case={case.name}", f"--device={self.device}", f"--caches={caches}"]
        return [*words, "--tiny"] if self.tiny else words


def measure_cases(plan: Plan, folder: Path, say: Say) -> Iterator[Row]:
    """A row per case, as they come: in order, unless there are several GPUs."""
    places = {case.name: folder / str(number) for number, case in enumerate(plan.cases)}
    compiled = _compile_all(plan, places, say)
    upcoming = iter(plan.cases)
    with ThreadPoolExecutor(AHEAD * len(plan.gpus)) as pool:

        def lane(gpu: str) -> Iterator[Row]:
            waiting: list[tuple[Case, Future[Worker | WorkerFailedError]]] = []
            while True:
                for case in itertools.islice(upcoming, AHEAD - len(waiting)):
                    good = [b for b in plan.backends if not compiled[case.name][b].failure]
                    waiting.append(
                        (case, pool.submit(_start_worker, plan, case, places[case.name], good, gpu))
                    )
                if not waiting:
                    return
                case, started = waiting.pop(0)
                say(f"{case.name}: timing")
                row = _row(plan, case, places[case.name], compiled[case.name], started.result(), gpu)
                if plan.profile:
                    say(f"{case.name}: counting")
                    row = _add_counters(plan, case, places[case.name], row, gpu)
                yield row

        yield from side_by_side(plan.gpus, lane)


def _compile_all(plan: Plan, places: dict[str, Path], say: Say) -> dict[str, dict[str, Figure]]:
    """First calls of every case under every backend, by both names. Eager has nothing to compile."""
    found: dict[str, dict[str, Figure]] = {case.name: {} for case in plan.cases}
    with ThreadPoolExecutor(plan.jobs) as pool:
        pending = {
            (case.name, backend): pool.submit(_compile_case, plan, case, backend, places[case.name], say, gpu)
            for case, gpu in zip(plan.cases, itertools.cycle(plan.gpus), strict=False)
            for backend in plan.backends
        }
        for (case_name, backend), future in pending.items():
            found[case_name][backend] = future.result()
    return found


def _compile_case(plan: Plan, case: Case, backend: str, place: Path, say: Say, gpu: str) -> Figure:
    if backend == "eager":
        return Figure()
    say(f"{case.name}: {backend} compiles")
    with closing(
        Worker(plan.arguments(case, place), folder_of(place, backend), threads=1, module=MODULE, gpu=gpu)
    ) as worker:
        try:
            answer = worker.ask(f"compile {backend}", timeout_s=plan.timeout_s)
        except WorkerFailedError as error:
            return Figure(failure=str(error))
    if answer["fallbacks"]:
        return Figure(failure=f"fell back to eager: {answer['fallbacks'][0].splitlines()[0]}")
    return Figure(compile_s=answer["compile_s"])


def _start_worker(
    plan: Plan, case: Case, place: Path, backends: Sequence[str], gpu: str
) -> Worker | WorkerFailedError:
    """A process that has imported everything. (It could not be told more while another one measures.)"""
    attempt = sum(1 for _ in place.glob("measuring*")) if place.exists() else 0
    folder = place / f"measuring{attempt}"
    worker = Worker(plan.arguments(case, place), folder, threads=1, module=MODULE, gpu=gpu)
    try:
        worker.ask(" ".join(["start", *backends]), timeout_s=plan.timeout_s)
    except WorkerFailedError as error:
        worker.close()
        return error
    return worker


def _row(
    plan: Plan,
    case: Case,
    place: Path,
    compiled: dict[str, Figure],
    started: Worker | WorkerFailedError,
    gpu: str,
) -> Row:
    """Judge and time `case`; a backend that ends the process is left out, and the others get another one."""
    row = Row(case=case.name, set=case.set, why=case.why)
    figures = dict(compiled)
    while True:
        good = [backend for backend in plan.backends if not figures[backend].failure]
        if isinstance(started, WorkerFailedError):
            for backend in good:
                figures[backend] = replace(figures[backend], failure=str(started))
            return replace(row, figures=figures)
        with closing(started) as worker:
            culprit = _judge(plan, worker, good, figures)
            if not culprit:
                try:
                    answer = worker.ask("time", timeout_s=plan.timeout_s)
                    found = {
                        backend: worker.ask(f"choices {backend}", timeout_s=plan.timeout_s)["searches"]
                        for backend in good
                        if family(backend) == "coilwork" and mode_of(backend)
                    }
                except WorkerFailedError as error:
                    started = error
                    continue
                return replace(_add_times(row, figures, answer), searches=found)
        remaining = [backend for backend in plan.backends if not figures[backend].failure]
        started = _start_worker(plan, case, place, remaining, gpu)


def _add_counters(plan: Plan, case: Case, place: Path, row: Row, gpu: str) -> Row:
    """`row` with the counters of every backend that gave right results."""
    found, missing = {}, ""
    for backend in plan.backends:
        if row.busy_us(backend) is None:
            continue
        folder = folder_of(place, backend)
        try:
            found[backend] = count(
                plan.arguments(case, place), backend, folder, gpu=gpu, timeout_s=plan.timeout_s
            )
        except NoCountersError as error:
            missing = str(error)
    return replace(row, counters=found, uncounted=missing)


def _judge(plan: Plan, worker: Worker, backends: Sequence[str], figures: dict[str, Figure]) -> str:
    """Fill in what is wrong; returns the backend that ended the process, or nothing."""
    for backend in backends:
        try:
            answer = worker.ask(f"judge {backend}", timeout_s=plan.timeout_s)
        except WorkerFailedError as error:
            figures[backend] = replace(figures[backend], failure=str(error))
            return backend
        wrong = f"wrong: {answer['wrong']}" if answer["wrong"] else ""
        figures[backend] = replace(figures[backend], failure=wrong, repeatable=answer["repeatable"])
    return ""


def _add_times(row: Row, figures: dict[str, Figure], answer: dict[str, Any]) -> Row:
    timed = answer.pop("backends")
    return replace(
        row, **answer, figures={b: replace(f, **restore_steps(timed.get(b, {}))) for b, f in figures.items()}
    )
