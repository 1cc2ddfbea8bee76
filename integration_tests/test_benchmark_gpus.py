"""Work shared out among GPUs, which here are names."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from benchmarks.gpus import VARIABLE, gpu_environment, gpu_names, side_by_side


def test_gpu_names_are_those_visible_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "5,3,6")
    assert gpu_names(1) == ("",)
    assert gpu_names(2) == ("5", "3")
    with pytest.raises(ValueError, match="4 GPUs were asked for, and there are 3"):
        gpu_names(4)
    assert gpu_environment("5") == {VARIABLE: "5"}
    assert gpu_environment("") == {}


@pytest.mark.parametrize("gpus", [("",), ("0", "1")])
def test_every_item_is_done_once(gpus: tuple[str, ...]) -> None:
    items = iter(range(50))
    assert sorted(side_by_side(gpus, lambda gpu: iter(list(items)))) == list(range(50))


def test_gpus_work_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=30)

    def work(gpu: str) -> Iterator[str]:
        meeting.wait()
        yield gpu

    assert set(side_by_side(("0", "1"), work)) == {"0", "1"}


def test_an_error_is_raised_after_the_other_results() -> None:
    def work(gpu: str) -> Iterator[str]:
        if gpu == "1":
            raise OSError("no such GPU")
        yield gpu

    found = side_by_side(("0", "1"), work)
    assert next(found) == "0"
    with pytest.raises(OSError, match="no such GPU"):
        next(found)
