"""Counters add up across threads."""

from __future__ import annotations

import threading

from coilwork_cache import StoreStats
from coilwork_cache.store import Tally


def test_addition_is_by_field() -> None:
    one = StoreStats(
        hits=1, misses=2, puts=3, corrupt=4, evicted=5, failures=6, read_bytes=7, written_bytes=8
    )
    assert one + one == StoreStats(
        hits=2, misses=4, puts=6, corrupt=8, evicted=10, failures=12, read_bytes=14, written_bytes=16
    )


def test_threads_lose_no_count() -> None:
    tally = Tally()

    def work() -> None:
        for _ in range(500):
            tally.hit(3)
            tally.miss()
            tally.put(2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.snapshot() == StoreStats(
        hits=2000, misses=2000, puts=2000, read_bytes=6000, written_bytes=4000
    )
