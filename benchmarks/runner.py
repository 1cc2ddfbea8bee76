"""Runs every model under every backend: compiles it in each, then alternates rounds of timed calls between
them.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.models import ModelCase
from benchmarks.results import Measurement
from benchmarks.session import Worker, WorkerFailedError

Combination: TypeAlias = tuple[ModelCase, str, str]
"""A model, its mode and its dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `timeout_s` bounds each command to a worker; `threads` is every compiler's; without
    `batch`, each model's own.
    """

    cases: tuple[ModelCase, ...]
    modes: tuple[str, ...]
    dtypes: tuple[str, ...]
    backends: tuple[str, ...]
    size: str
    device: str
    quick: bool
    threads: int
    timeout_s: float
    batch: int | None = None

    def combinations(self) -> Iterator[Combination]:
        """Every model, mode and dtype that exists."""
        for case in self.cases:
            for mode in self.modes:
                if mode == "infer" or case.train:
                    for dtype in self.dtypes:
                        yield case, mode, dtype


@dataclass(slots=True, kw_only=True)
class Entrant:
    """One backend's worker during the measurement of one model, and what it has answered so far."""

    backend: str
    worker: Worker
    answers: dict[str, Any] = field(default_factory=dict)
    ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    failure: str = ""

    def ask(self, command: str, timeout_s: float) -> dict[str, Any]:
        """The worker's answer, kept in `answers`; empty once the worker has failed.

        A wrong result is measured all the same: the report lists it as wrong, and what the others are
        compared with does not vanish because of it.
        """
        if self.failure:
            return {}
        try:
            answer = self.worker.ask(command, timeout_s=timeout_s)
        except WorkerFailedError as error:
            self.failure = f"{command}: {error}"
            return {}
        if answer.get("fallbacks"):
            self.failure = f"{command}: fell back to eager: {answer['fallbacks'][0].splitlines()[0]}"
        self.answers |= answer
        return answer


def measure_together(
    plan: Plan,
    combinations: Sequence[Combination],
    folder: Path,
    say: Callable[[str], None],
    gpu: str = "",
) -> Iterator[list[Measurement]]:
    """Every backend on a few models, which compile at the same time and are then timed one after the other.

    Yields the measurements of each model as soon as they are complete, so that a run that is cut short keeps
    them. A backend that fails gives a measurement that says so. `gpu` is the name of the one that they see,
    as in `benchmarks.gpus`.
    """
    prepared: list[list[Entrant]] = [[] for _ in combinations]
    try:
        with ThreadPoolExecutor(len(combinations)) as pool:
            places = [folder / str(number) for number in range(len(combinations))]
            list(pool.map(lambda c, e, p: _prepare(plan, c, e, p, say, gpu), combinations, prepared, places))
        for combination, entrants in zip(combinations, prepared, strict=True):
            _time(plan, combination, entrants, say)
            yield [measurement(*combination, entrant) for entrant in entrants]
    finally:
        for entrant in itertools.chain.from_iterable(prepared):
            entrant.worker.close()


def _prepare(
    plan: Plan,
    combination: Combination,
    entrants: list[Entrant],
    folder: Path,
    say: Callable[[str], None],
    gpu: str,
) -> None:
    """Start a worker for each backend, and compile in one after the other; `entrants` are filled."""
    case, mode, dtype = combination
    for backend in plan.backends:
        say(f"{case.name} {mode} {dtype}: {backend} compiles")
        arguments = [f"--case={case.name}", f"--size={plan.size}", f"--device={plan.device}"]
        arguments += [f"--dtype={dtype}", f"--mode={mode}", f"--backend={backend}"]
        arguments += ["--quick"] if plan.quick else []
        arguments += [f"--batch={plan.batch}"] if plan.batch is not None else []
        worker = Worker(arguments, folder / backend.replace(":", "_"), threads=plan.threads, gpu=gpu)
        entrants.append(Entrant(backend=backend, worker=worker))
        entrants[-1].ask("prepare", plan.timeout_s)


def _time(
    plan: Plan, combination: Combination, entrants: Sequence[Entrant], say: Callable[[str], None]
) -> None:
    case, mode, dtype = combination
    say(f"{case.name} {mode} {dtype}: timing")
    for round_number in range(2 if plan.quick else 5):
        # Every other round runs backwards, so that no backend always follows the same one.
        for entrant in entrants if round_number % 2 == 0 else entrants[::-1]:
            answer = entrant.ask("time", plan.timeout_s)
            entrant.ms += answer.get("ms", [])
            entrant.host_ms += answer.get("host_ms", [])
    say(f"{case.name} {mode} {dtype}: memory and kernels")
    for entrant in entrants:
        for command in ("memory", "gpu", "count"):
            entrant.ask(command, plan.timeout_s)


def measurement(case: ModelCase, mode: str, dtype: str, entrant: Entrant) -> Measurement:
    """The medians of what one worker answered."""
    answers = entrant.answers
    quantiles = statistics.quantiles(entrant.ms, n=10) if len(entrant.ms) > 1 else []
    failure = entrant.failure
    if not failure and answers.get("correct") is False and answers["wrong"]:
        failure = f"wrong: {answers['wrong'][0]}"
    return Measurement(
        model=case.name,
        mode=mode,
        dtype=dtype,
        backend=entrant.backend,
        failure=failure,
        correct=answers.get("correct"),
        relative_l2=answers.get("relative_l2"),
        eager_relative_l2=answers.get("eager_relative_l2"),
        first_call_s=answers.get("first_call_s"),
        ms=statistics.median(entrant.ms) if entrant.ms else None,
        ms_low=quantiles[0] if quantiles else None,
        ms_high=quantiles[-1] if quantiles else None,
        gpu_busy_ms=answers.get("gpu_busy_ms"),
        host_ms=statistics.median(entrant.host_ms) if entrant.host_ms else None,
        peak_bytes=answers.get("peak_bytes"),
        kernels=answers.get("kernels"),
    )
