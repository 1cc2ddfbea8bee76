"""Counters of one store in one process. They belong to the store object: there is no global state."""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_cache.locks import ForkedLock


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What one store object did since it was made. Counts, except the two sizes in bytes."""

    hits: int = 0
    misses: int = 0
    puts: int = 0
    corrupt: int = 0  # entries found truncated, altered, badly signed or undecodable; each is a miss, too
    evicted: int = 0
    failures: int = 0  # operations that the disk or the network refused
    read_bytes: int = 0
    written_bytes: int = 0

    def __add__(self, other: StoreStats) -> StoreStats:
        return StoreStats(
            hits=self.hits + other.hits,
            misses=self.misses + other.misses,
            puts=self.puts + other.puts,
            corrupt=self.corrupt + other.corrupt,
            evicted=self.evicted + other.evicted,
            failures=self.failures + other.failures,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
        )


class Tally:
    """A StoreStats that threads add to."""

    def __init__(self) -> None:
        self._lock = ForkedLock()
        self._stats = StoreStats()

    def add(self, step: StoreStats) -> None:
        with self._lock:
            self._stats += step

    def hit(self, size_bytes: int) -> None:
        self.add(StoreStats(hits=1, read_bytes=size_bytes))

    def miss(self) -> None:
        self.add(StoreStats(misses=1))

    def put(self, size_bytes: int) -> None:
        self.add(StoreStats(puts=1, written_bytes=size_bytes))

    def snapshot(self) -> StoreStats:
        with self._lock:
            return self._stats
