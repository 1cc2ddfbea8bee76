"""The demo's text, verdicts and table; the demo itself is run by `nox -s demo`."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest
import torch

from coilwork_tools.demo.__main__ import Checks, Demo, Measurement, WorkerError, format_inference_table
from coilwork_tools.demo.worker import (
    INFERENCE_TOKENS,
    TEXT,
    Error,
    Findings,
    compute_error,
    is_within_bounds,
    make_byte_tokens,
)


def test_tokens_are_the_texts_bytes() -> None:
    tokens = make_byte_tokens(INFERENCE_TOKENS)
    assert bytes(tokens) == TEXT.encode("utf-8")[:INFERENCE_TOKENS]
    with pytest.raises(ValueError, match="bytes"):
        make_byte_tokens(100_000)


def test_errors_are_taken_over_all_tensors() -> None:
    error = compute_error(
        [torch.tensor([3.0]), torch.tensor([5.0, 0.0])], [torch.tensor([3.0]), torch.tensor([4.0, 0.0])]
    )
    assert error == Error(max_abs=1.0, relative_l2=1.0 / 5.0, scale=4.0)


def test_nan_is_out_of_bounds() -> None:
    exact = torch.tensor([1.0, 2.0])
    error = compute_error([torch.tensor([1.0, math.nan])], [exact])
    assert not is_within_bounds(error, compute_error([exact], [exact]))


def test_bounds_are_twice_eagers_error() -> None:
    eager = Error(max_abs=1e-3, relative_l2=1e-3, scale=1.0)
    assert is_within_bounds(Error(max_abs=1.9e-3, relative_l2=1e-3, scale=1.0), eager)
    assert not is_within_bounds(Error(max_abs=2.1e-3, relative_l2=1e-3, scale=1.0), eager)
    assert not is_within_bounds(Error(max_abs=1e-3, relative_l2=2.1e-3, scale=1.0), eager)


def test_table_shows_a_dash_for_a_backend_that_failed() -> None:
    error = Error(max_abs=1e-6, relative_l2=1e-7, scale=1.0)
    eager = Findings(first_call_s=1.0, ms=10.0, peak_bytes=1, kernels=3, errors={"logits": error})
    ours = Findings(first_call_s=5.0, ms=5.0, peak_bytes=1, kernels=2, errors={"logits": error})
    lines = format_inference_table({"eager": eager, "coilwork": ours}, ("eager", "inductor", "coilwork"))
    assert lines[0].split() == ["eager", "inductor", "coilwork"]
    assert lines[3].split()[-3:] == ["–", "–", "4.0"]
    assert lines[4].endswith("5.0 (2.00x)")


def test_checks_count_failures(capsys: pytest.CaptureFixture[str]) -> None:
    checks = Checks()
    checks.expect(True, "good")
    checks.expect(False, "bad")
    assert checks.failed == 1
    assert "FAIL  bad" in capsys.readouterr().out


def start_worker(folder: Path, script: str, patch: pytest.MonkeyPatch) -> Measurement:
    """A measurement whose worker is a shell script, which may work for a second at each step."""
    worker = folder / "worker"
    worker.write_text(f"#!/bin/sh\n{script}\n")
    worker.chmod(0o700)
    patch.setattr(sys, "executable", str(worker))
    return Measurement(
        Demo(device="cpu", folder=folder, timeout_s=1.0, subject="ours"), "infer", "ours", folder / "trace"
    )


def run_a_round(measurement: Measurement) -> None:
    measurement.wait_until_ready(print)
    measurement.next_round()
    measurement.wait_until_ready(print)


def test_time_in_which_a_worker_waits_for_others_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement = start_worker(tmp_path, "echo ready; while read line; do echo ready; done", monkeypatch)
    try:
        measurement.wait_until_ready(print)
        time.sleep(1.3)
        measurement.next_round()
        measurement.wait_until_ready(print)
    finally:
        measurement.close()


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo ready; exec 1>&-; echo lost >&2; exit 3", "lost\nexit status 3"), ("exec sleep 9", "after 1 s")],
)
def test_a_worker_that_ends_is_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    measurement = start_worker(tmp_path, script, monkeypatch)
    with pytest.raises(WorkerError, match=said):
        run_a_round(measurement)
