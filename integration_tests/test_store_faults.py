"""The command that breaks caches under compilations: its parts, and its cheap faults on stores alone.

All of it: `python -m integration_tests.store_faults`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from coilwork_cache import KernelCache, LocalStore
from integration_tests import store_faults
from integration_tests.store_faults import FAULTS, Outcome, Place, Process, count_activity, start, watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def make_entries(index: int, variant: int, options: Mapping[str, object]) -> None:
    """In place of a compilation: what the store has is right, and what it lacks is made."""
    limits = {"max_bytes": options["max_bytes"]} if "max_bytes" in options else {}
    kernels = KernelCache(LocalStore(Path(str(options["cache_dir"])), **limits))
    for number in range(12):
        key = kernels.key(f"{index} {variant} {number}")
        expected = key.encode() * (1 + number * number)
        with kernels.claim(key):
            assert kernels.get_or_make(key, lambda expected=expected: expected) == expected


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(store_faults, "compile_and_compare", make_entries)
    # those of the test run are not for its children
    monkeypatch.setattr(store_faults, "atexit", SimpleNamespace(_run_exitfuncs=lambda: None))
    monkeypatch.setattr(store_faults.folders, "make_scratch_folder", lambda: str(tmp_path / "tmp" / "own"))
    (tmp_path / "tmp").mkdir()
    return Place(root=tmp_path / "cache", frozen=tmp_path / "frozen", temporary=tmp_path / "tmp")


def watch_for_a_while(running: list[Process], outcome: Outcome) -> list[Process]:
    time.sleep(0.02)
    return watch(running, outcome)


def test_stores_stand_faults_of_processes_disks_and_clocks(place: Place) -> None:
    draw, outcome = random.Random(0), Outcome()
    chosen = ("none", "kill -9", "full disk", "damaged entries", "clock jumps", "removed folders")
    running: list[Process] = []
    for name in chosen * 2:
        while len(running) >= 4:
            running = watch_for_a_while(running, outcome)
        run = FAULTS[name](draw, place, 0.05)
        running.append(start(run, name, draw.randrange(2), draw.randrange(2), place))
        outcome.groups.add(running[-1].number)
    while running:
        running = watch_for_a_while(running, outcome)
    assert outcome.problems == []
    assert sum(outcome.ends.values()) >= len(chosen * 2)
    assert store_faults.find_left(place, outcome.groups) == []


def test_wrong_results_and_hangs_are_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_faults, "GRACE_S", 0.3)
    outcome, draw = Outcome(), random.Random(0)

    def fail(*_: object) -> None:
        raise AssertionError("another result")

    for broken in (fail, lambda *_: time.sleep(60)):
        monkeypatch.setattr(store_faults, "compile_and_compare", broken)
        running = [start(FAULTS["none"](draw, place, 0.1), "none", 0, 0, place)]
        while running:
            running = watch_for_a_while(running, outcome)
    assert "another result" in outcome.problems[0] and "it hangs" in outcome.problems[1]
    (place.temporary / "left").touch()
    (left,) = store_faults.find_left(place, set())
    assert left == f"temporary: {place.temporary / 'left'}"


def test_who_works_or_asks_again_and_again_is_active() -> None:
    for seconds, is_active in ((60.0, False), (0.01, True), (0.0, True)):
        process = os.fork()
        if process == 0:
            os.setpgid(0, 0)
            while True:
                time.sleep(seconds)
        time.sleep(0.2)
        before = count_activity(process)
        time.sleep(0.3)
        assert (count_activity(process) > before) is is_active
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
