"""Work done once for several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from coilwork_runtime.single_flight import SingleFlight


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
