"""Worker processes that do not do as they should: what becomes of the unit."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from integration_tests.operators import checks, pool
from integration_tests.operators.calls import WAYS
from integration_tests.operators.database import operators
from integration_tests.operators.parts import Part
from integration_tests.operators.pool import Settings, run
from integration_tests.operators.units import Unit

UNIT = Unit(op="add", way="forward", dtype="float32")
WORKER = """
import json, sys, time
print(json.dumps({{"place": "here"}}), flush=True)
for line in sys.stdin:
    for sample in "abcdef":
        print(json.dumps({{"at": sample}}), flush=True)
        {after_each}
    print(json.dumps({{"outcomes": [{{"status": "ok"}}]}}), flush=True)
"""


def told(
    monkeypatch: pytest.MonkeyPatch, folder: Path, after_each: str, *, limit_s: float, seconds: float = 60.0
) -> tuple[list[dict[str, Any]], int]:
    """What is told of `UNIT` by a worker that does `after_each` after each sample, and how many units are
    left.
    """
    (folder / "worker.py").write_text(WORKER.format(after_each=after_each))
    monkeypatch.setattr(pool, "COMMAND", [sys.executable, str(folder / "worker.py")])
    settings = Settings(device="cpu", samples=0, limit_s=limit_s, deadline=time.monotonic() + seconds)
    done: SimpleQueue[list[dict[str, Any]]] = SimpleQueue()
    threads, pending = run([Part(unit=UNIT)], settings, processes=1, finished=done)
    for thread in threads:
        thread.join()
    return [] if done.empty() else done.get(), len(pending)


def test_a_unit_takes_as_long_as_its_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (outcome,), left = told(monkeypatch, tmp_path, "time.sleep(0.5)", limit_s=2.0)
    assert (outcome["status"], outcome["place"], left) == ("ok", "here", 0)
    assert float(outcome["seconds"]) > 2.5


def test_one_sample_may_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (outcome,), left = told(monkeypatch, tmp_path, "time.sleep(60 * (sample == 'b'))", limit_s=1.0)
    assert (outcome["status"], outcome["sample"], left) == ("timeout", "b", 0)


def test_the_end_of_a_process_is_no_timeout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (outcome,), left = told(monkeypatch, tmp_path, "sample == 'b' and sys.exit('why')", limit_s=30.0)
    assert (outcome["status"], outcome["sample"], left) == ("died", "b why", 0)


def test_what_is_not_finished_in_time_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcomes, left = told(monkeypatch, tmp_path, "time.sleep(0.6)", limit_s=1.0, seconds=0.5)
    assert (outcomes, left) == ([], 1)


def test_what_cannot_be_judged_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = checks.judge

    def fails(compiled: Any, eager: Any, *rest: Any, **more: Any) -> Any:
        if eager[0].dim() == 0:
            raise ValueError("a judge that is at a loss")
        return judge(compiled, eager, *rest, **more)

    monkeypatch.setattr(checks, "judge", fails)
    found = checks.check(
        "exp", operators()["exp"], way=WAYS["forward"], device="cpu", dtype=torch.float32, most=None
    )
    assert [one.status for one in found] == ["unjudged"]
    assert found[0].detail.startswith("ValueError: a judge that is at a loss")
    assert found[0].sample == "float32[]"
