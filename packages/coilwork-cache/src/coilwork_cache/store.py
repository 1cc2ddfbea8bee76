"""The contract of a store: bytes under content keys. With its counters, and a lock that survives a fork.

- `get` returns exactly the bytes of some earlier `put` under this key, or None. Never anything else.
- Nothing that happens to the medium (missing, full, slow, damaged) raises; it warns and counts as a miss.
- All methods may be called from several threads and, where the medium is shared, from several processes.
- A malformed key raises InvalidKeyError.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class ForkedLock:
    """A lock that is free in a forked child, even if a thread of its parent's held it then: nobody would give
    it back there.
    """

    __slots__ = ("_by_process",)

    def __init__(self) -> None:
        self._by_process: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        process = os.getpid()
        lock = self._by_process.get(process)
        if lock is None:
            # atomic: all threads get the same one
            lock = self._by_process.setdefault(process, threading.Lock())
        lock.acquire()

    def __exit__(self, *_error: object) -> None:
        lock = self._by_process.get(os.getpid())
        # a thread that forked in between holds the lock of its parent's process, not of this one
        if lock is not None and lock.locked():
            lock.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Counters of one store object since it was made. Counts, except the two sizes in bytes."""

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


@runtime_checkable
class Store(Protocol):
    """Bytes under keys made by `content_key`."""

    def get(self, key: str) -> bytes | None:
        """Return the entry, verified; None if there is no intact one."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Store `data`, in place of an earlier entry. When it can't be stored, warn and go on."""
        ...

    def delete(self, key: str) -> None:
        """Forget the entry, if there is one."""
        ...

    def contains(self, key: str) -> bool:
        """Tell if an entry seems to be there. A later `get` may still miss: it verifies, this does not."""
        ...


@runtime_checkable
class ClaimableStore(Store, Protocol):
    """A Store whose processes can leave the making of an entry to one of them."""

    def claim(self, *keys: str) -> AbstractContextManager[None]:
        """Be the only one of threads and processes that makes the entries under `keys` while it is entered.

        Whoever enters later waits, and asks `contains` first. A claim ends with its process. It is no
        promise: after a while, or where the medium has no locks, several enter at once.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryInfo:
    """One entry as a listing shows it."""

    key: str
    kind: str  # of the typed cache that wrote it ("kernel", "graph", …); "raw" if none did
    size_bytes: int  # as stored, headers included
    last_used_s: float | None  # seconds since the epoch; None where the medium doesn't record it
    location: str  # file path or address, for people


@runtime_checkable
class InspectableStore(Store, Protocol):
    """A Store that can also be listed, cleared and asked for its counters."""

    def entries(self) -> Iterator[EntryInfo]:
        """Return all entries, in the order of their keys where the medium allows. Damaged ones may be
        included.
        """
        ...

    def clear(self) -> int:
        """Remove all entries; how many there were."""
        ...

    def check(self, key: str) -> str | None:
        """Return the fault of the entry under `key`, as a message for people; None if it is intact, or not
        there.

        No use of the entry, and no warning. A damaged entry is removed, unless others may be able to read it.
        """
        ...

    def stats(self) -> StoreStats:
        """Counters of this object since it was made."""
        ...


# ---- how entries of each kind are used ----


@dataclass(frozen=True, slots=True, kw_only=True)
class UseCount:
    """Counts of how often entries of one kind were found and written, over many processes.

    Attributes:
        hits: reads that found an intact entry, wherever it lay.
        shared_hits: those among them that the slow store of two gave.
        misses: reads that found none.
        puts: entries that were written.
        damaged: entries that were found and removed, because they do not decode or do not load.
    """

    hits: int = 0
    shared_hits: int = 0
    misses: int = 0
    puts: int = 0
    damaged: int = 0

    def __add__(self, other: UseCount) -> UseCount:
        return UseCount(
            hits=self.hits + other.hits,
            shared_hits=self.shared_hits + other.shared_hits,
            misses=self.misses + other.misses,
            puts=self.puts + other.puts,
            damaged=self.damaged + other.damaged,
        )


@runtime_checkable
class CountingStore(Store, Protocol):
    """A Store that remembers how its typed caches were used."""

    def count(self, kind: str, step: UseCount) -> None:
        """Add `step` to the counts of `kind`. Costs a microsecond, and may be lost with the process."""
        ...

    def uses(self) -> Mapping[str, UseCount]:
        """Return the counts by kind, of all processes so far."""
        ...
