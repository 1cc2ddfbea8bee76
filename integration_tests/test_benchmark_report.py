"""The benchmark's results survive JSON, and its report puts failures and losing rows first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks import worker
from benchmarks.__main__ import main, parse
from benchmarks.backends import replays_graphs
from benchmarks.models import Setting, Size, find_case, first_rows, instantiate
from benchmarks.report import markdown
from benchmarks.results import (
    Measurement,
    Run,
    compile_seconds,
    group_measurements,
    ratios,
    read_json,
    to_json,
)
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
    groups = group_measurements(run.measurements)
    assert ratios(groups["winner", "infer", "f32"], "coilwork")["speedup_vs_eager"] == 2.0
    assert compile_seconds(groups["winner", "infer", "f32"], "coilwork") == 5.0
    assert compile_seconds(groups["winner", "infer", "f32"], "eager") is None


def test_json_round_trip(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(to_json(run))
    assert read_json(path) == run


def test_the_batch_is_kept_and_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(to_json(replace(run, batch=2)))
    assert read_json(path).batch == 2
    assert "- batch: 2\n" in markdown(read_json(path))


def test_files_from_before_batches_are_of_the_models_own(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    data = json.loads(to_json(run))
    del data["batch"]
    path.write_text(json.dumps(data))
    assert read_json(path) == run
    assert "- batch: each model's own\n" in markdown(run)


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


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_worker_measures_and_judges_at_the_batch(mode: str) -> None:
    arguments = ["--case=resnet50_channels_last", "--size=reduced", "--device=cpu", "--dtype=f32"]
    bench = worker.Bench(worker.parse([*arguments, f"--mode={mode}", "--backend=eager", "--batch=2"]))
    assert [value.shape for value in bench.instance.inputs] == [(2, 3, 64, 64)]
    assert bench.prepare()["correct"]


def test_a_batch_too_large_is_a_row_that_says_so(tmp_path: Path) -> None:
    arguments = ["run", "--device=cpu", "--size=reduced", "--models=lstm", "--modes=infer"]
    arguments += ["--backends=eager", "--quick", "--batch=5", f"--out={tmp_path}"]
    assert main(arguments) == 1
    found = read_json(tmp_path / "results.json")
    assert found.batch == 5
    assert "lstm has a batch of 4, fewer than 5" in found.measurements[0].failure


def test_a_batch_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run", "--batch", "0"])
    assert "at least one row" in capsys.readouterr().err


def test_all_inputs_are_cut() -> None:
    setting = Setting(size=Size.REDUCED, device=torch.device("cpu"), dtype=torch.float32)
    whole = instantiate(find_case("unet"), setting, training=False)
    images, steps = first_rows(whole, 1).inputs
    assert torch.equal(images, whole.inputs[0][:1]) and torch.equal(steps, whole.inputs[1][:1])


@pytest.mark.parametrize(
    ("backend", "replayed"),
    [
        ("inductor:reduce-overhead", True),
        ("inductor:max-autotune", True),
        ("inductor-max", False),
        ("inductor", False),
        ("eager", False),
        ("coilwork:reduce-overhead", False),
    ],
)
def test_a_call_that_replays_graphs_begins_a_step(backend: str, replayed: bool) -> None:
    assert replays_graphs(backend) == replayed
    arguments = ["--case=lstm", "--size=reduced", "--device=cpu", "--dtype=f32", "--mode=infer"]
    bench = worker.Bench(worker.parse([*arguments, f"--backend={backend}"]))
    with (
        mock.patch.object(worker, "compile_with", lambda function, name: function),
        mock.patch.object(torch.compiler, "cudagraph_mark_step_begin") as begin,
    ):
        function = worker.callable_for(bench.request, bench.instance, backend)
        for _ in range(3):
            function(*bench.instance.inputs)
    assert begin.call_count == (3 if replayed else 0)


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
