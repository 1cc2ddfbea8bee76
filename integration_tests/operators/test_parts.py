"""Units with many samples, divided among the workers of a sweep."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from integration_tests.operators import checks, parts
from integration_tests.operators.calls import WAYS
from integration_tests.operators.database import operators
from integration_tests.operators.parts import SAMPLES, Part, Parts, parts_left
from integration_tests.operators.pool import Settings, run
from integration_tests.operators.units import Unit

ADD = Unit(op="add", way="forward", dtype="float32")
MUL = Unit(op="mul", way="forward", dtype="float32")


def test_the_rest_of_what_was_begun_comes_first() -> None:
    pending = Parts([Part(unit=ADD), Part(unit=MUL)])
    first = pending.take()
    assert first == Part(unit=ADD)
    pending.tell(first, 2 * SAMPLES + 1)
    pending.tell(first, 2 * SAMPLES + 1)
    assert [pending.take() for _ in range(3)] == [
        Part(unit=ADD, first=SAMPLES),
        Part(unit=ADD, first=2 * SAMPLES),
        Part(unit=MUL),
    ]


def test_nobody_leaves_before_it_is_known_what_is_left() -> None:
    pending = Parts([Part(unit=ADD)])
    first = pending.take()
    assert first is not None
    taken: list[Part | None] = []
    other = threading.Thread(target=lambda: taken.append(pending.take()))
    other.start()
    time.sleep(0.05)
    assert other.is_alive()
    pending.tell(first, SAMPLES + 1)
    other.join()
    assert taken == [Part(unit=ADD, first=SAMPLES)]
    assert pending.take() is None


def test_what_is_left_of_units() -> None:
    records: list[dict[str, Any]] = [
        {"unit": ADD.key, "first": SAMPLES, "of": 3 * SAMPLES},
        {"unit": ADD.key, "first": 0, "of": 3 * SAMPLES},
    ]
    assert parts_left([MUL, ADD], records) == [Part(unit=ADD, first=2 * SAMPLES), Part(unit=MUL)]
    assert parts_left([MUL, ADD], [{"unit": MUL.key}]) == [Part(unit=ADD)]


def test_a_part_checks_its_samples() -> None:
    told: list[int] = []
    database = operators()

    def samples(part: slice) -> int:
        (outcome,) = checks.check(
            "add", database["add"], way=WAYS["forward"], device="cpu", dtype=torch.int64, most=None,
            part=part, count=told.append,
        )  # fmt: skip
        assert outcome.status == "ok"
        return outcome.samples

    found = samples(slice(0, 3)), samples(slice(3, None))
    assert found[0] == 3
    assert told == [sum(found)] * 2


def test_workers_share_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    # workers are processes of their own and cut by `SAMPLES` themselves: the parts here overlap, and are all
    # there
    monkeypatch.setattr(parts, "SAMPLES", 4)
    unit = Unit(op="expand", way="forward", dtype="int64")
    settings = Settings(device="cpu", samples=0, limit_s=100.0, deadline=time.monotonic() + 100.0)
    done: SimpleQueue[list[dict[str, Any]]] = SimpleQueue()
    threads, _ = run([Part(unit=unit)], settings, processes=2, finished=done)
    for thread in threads:
        thread.join()
    records = [record for _ in range(done.qsize()) for record in done.get()]
    total = {record["of"] for record in records}
    assert len(total) == 1 and min(total) > 4
    assert sorted(record["first"] for record in records) == list(range(0, total.pop(), 4))
    assert {record["status"] for record in records} == {"ok"}
