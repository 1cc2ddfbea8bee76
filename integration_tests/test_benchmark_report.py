"""The benchmark's results survive JSON, and its report puts failures and losing rows first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.models import find_case
from benchmarks.report import markdown
from benchmarks.results import Measurement, Run, compile_seconds, from_json, grouped, ratios, to_json
from benchmarks.runner import Entrant, Plan, measure_together, measurement
from benchmarks.session import Worker


def measured(model: str, backend: str, ms: float, first_call_s: float, failure: str = "") -> Measurement:
    return Measurement(
        model=model,
        mode="infer",
        dtype="f32",
        backend=backend,
        failure=failure,
        correct=not failure,
        relative_l2=1e-7,
        eager_relative_l2=1e-7,
        first_call_s=first_call_s,
        ms=ms,
        peak_bytes=1000,
        kernels=7,
    )


@pytest.fixture
def run() -> Run:
    return Run(
        command="python -m benchmarks run",
        when="today",
        size="full",
        device="cpu",
        threads=2,
        machine={"processor": "one"},
        measurements=(
            measured("winner", "eager", 4.0, 1.0),
            measured("winner", "coilwork", 2.0, 6.0),
            measured("loser", "eager", 1.0, 1.0),
            measured("loser", "coilwork", 2.0, 3.0),
            measured("broken", "eager", 1.0, 1.0),
            measured("broken", "coilwork", 9.0, 2.0, failure="exit status 1: a | b"),
        ),
    )


def test_ratios_speak_for_the_faster_one(run: Run) -> None:
    groups = grouped(run.measurements)
    assert ratios(groups["winner", "infer", "f32"], "coilwork")["speedup_vs_eager"] == 2.0
    assert compile_seconds(groups["winner", "infer", "f32"], "coilwork") == 5.0
    assert compile_seconds(groups["winner", "infer", "f32"], "eager") is None


def test_json_round_trip(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(to_json(run))
    assert from_json(path) == run


def test_failures_and_losing_rows_come_first(run: Run) -> None:
    text = markdown(run)
    times = text[text.index("## Milliseconds") :]
    assert times.index("broken") < times.index("loser") < times.index("winner")
    assert "exit status 1: a \\| b" in text


def test_a_backend_that_cannot_compile_is_a_row(tmp_path: Path) -> None:
    plan = Plan(
        cases=(find_case("lstm"),),
        modes=("infer",),
        dtypes=("f32",),
        backends=("eager", "no_such_backend"),
        size="reduced",
        device="cpu",
        quick=True,
        threads=1,
        timeout_s=120.0,
    )
    combinations = [(case, "infer", "f32") for case in plan.cases]
    ((eager, broken),) = measure_together(plan, combinations, tmp_path / "work", lambda text: None)
    assert eager.correct and eager.ms is not None and not eager.failure
    assert "no_such_backend" in broken.failure and broken.ms is None


class WrongWorker(Worker):
    """Answers as a worker does whose backend gives a wrong result, without a process."""

    def __init__(self) -> None:
        pass

    def ask(self, command: str, *, timeout_s: float) -> dict[str, Any]:
        answers: dict[str, dict[str, Any]] = {
            "prepare": {"correct": False, "wrong": ["output: max abs error 3"], "first_call_s": 1.0},
            "memory": {"peak_bytes": 4096},
        }
        return answers[command]


def test_a_wrong_backend_is_measured_and_listed_as_wrong() -> None:
    entrant = Entrant(backend="other", worker=WrongWorker())
    entrant.ask("prepare", 1.0)
    entrant.ask("memory", 1.0)
    found = measurement(find_case("lstm"), "infer", "f32", entrant)
    assert found.peak_bytes == 4096 and found.correct is False
    assert found.failure == "wrong: output: max abs error 3"
