"""Work done once for several threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from coilwork_runtime.threads import SingleFlight


def test_threads_that_ask_meanwhile_share_the_result() -> None:
    flights: SingleFlight[object] = SingleFlight()
    begun, go = threading.Event(), threading.Event()

    def work() -> object:
        begun.set()
        go.wait(10)
        return object()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(flights.run, "key", work)
        begun.wait(10)
        # `work` is running, so this one may not start its own
        second = threads.submit(flights.run, "key", lambda: pytest.fail("ran twice"))
        while not second.running():
            pass
        threading.Timer(0.05, go.set).start()
        assert first.result() is second.result()


def test_afterwards_it_runs_again() -> None:
    flights: SingleFlight[int] = SingleFlight()
    assert [flights.run("key", lambda: 1), flights.run("key", lambda: 2)] == [1, 2]


def test_errors_reach_the_caller_and_are_not_remembered() -> None:
    flights: SingleFlight[int] = SingleFlight()
    with pytest.raises(ZeroDivisionError):
        flights.run("key", lambda: 1 // 0)
    assert flights.run("key", lambda: 3) == 3


def test_of_several_those_are_made_that_nobody_is_at() -> None:
    flights: SingleFlight[str] = SingleFlight()
    begun, go = threading.Event(), threading.Event()

    def work(keys: Sequence[str]) -> dict[str, str]:
        assert tuple(keys) == ("a", "b")
        begun.set()
        go.wait(10)
        return {"a": "first's"}

    noted: list[str] = []

    def note(keys: Sequence[str]) -> dict[str, str]:
        noted.extend(keys)
        return {}

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(flights.run_for, ("a", "b"), work)
        begun.wait(10)
        second = threads.submit(flights.run, "a", lambda: pytest.fail("ran twice"))
        third = threads.submit(flights.run, "b", lambda: "left out, and made by who waited")
        flights.run_for(("b", "c"), note)
        assert noted == ["c"]
        while not (second.running() and third.running()):
            pass
        threading.Timer(0.05, go.set).start()
        first.result()
        assert (second.result(), third.result()) == ("first's", "left out, and made by who waited")


def test_who_waits_for_several_that_fail_makes_its_own() -> None:
    flights: SingleFlight[int] = SingleFlight()
    with pytest.raises(ZeroDivisionError):
        flights.run_for(("a",), lambda _: {"a": 1 // 0})
    assert flights.run("a", lambda: 2) == 2
