"""Stores without a disk: a bounded one in this process's memory, least recently used out first, and one that
keeps nothing, for caching that is switched off.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from coilwork_cache.codec import MAX_FRAME_BYTES, peek_kind
from coilwork_cache.errors import EntryTooLargeWarning, InvalidSettingError, OnceAnnouncer
from coilwork_cache.key import check_key
from coilwork_cache.store import EntryInfo, ForkedLock, StoreStats, Tally


class NullStore:
    """Every `get` is a miss, every `put` is forgotten."""

    def __init__(self) -> None:
        self._tally = Tally()

    def get(self, key: str) -> bytes | None:
        check_key(key)
        self._tally.miss()
        return None

    def put(self, key: str, data: bytes) -> None:
        check_key(key)

    def delete(self, key: str) -> None:
        check_key(key)

    def contains(self, key: str) -> bool:
        check_key(key)
        return False

    def check(self, key: str) -> str | None:
        check_key(key)
        return None

    def entries(self) -> Iterator[EntryInfo]:
        return iter(())

    def clear(self) -> int:
        return 0

    def stats(self) -> StoreStats:
        return self._tally.snapshot()


class MemoryStore:
    """At most `max_bytes` of payload; bounded exactly, at every moment. Thread-safe."""

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        if max_bytes <= 0:
            raise InvalidSettingError(f"max_bytes={max_bytes}", "must be at least 1")
        self._max_bytes = max_bytes
        self._lock = ForkedLock()
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0
        self._tally = Tally()
        self.announcer = OnceAnnouncer()

    def get(self, key: str) -> bytes | None:
        check_key(key)
        with self._lock:
            data = self._entries.get(key)
            if data is not None:
                self._entries.move_to_end(key)
        if data is None:
            self._tally.miss()
        else:
            self._tally.hit(len(data))
        return data

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        if len(data) > self._max_bytes:
            # An older entry under the same key must not outlive the newer one that had no room.
            self.delete(key)
            reason = f"{len(data)} bytes, and max_bytes is {self._max_bytes}"
            self.announcer.announce(EntryTooLargeWarning(f"entry {key}", reason))
            return
        evicted = 0
        with self._lock:
            self._size_bytes += len(data) - len(self._entries.pop(key, b""))
            self._entries[key] = data
            while self._size_bytes > self._max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._size_bytes -= len(oldest)
                evicted += 1
        self._tally.put(len(data))
        self._tally.add(StoreStats(evicted=evicted))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._size_bytes -= len(self._entries.pop(key, b""))

    def contains(self, key: str) -> bool:
        check_key(key)
        with self._lock:
            return key in self._entries

    def check(self, key: str) -> str | None:
        check_key(key)
        return None

    def entries(self) -> Iterator[EntryInfo]:
        with self._lock:
            found = sorted(self._entries.items())
        for key, data in found:
            kind = peek_kind(data[:MAX_FRAME_BYTES])
            yield EntryInfo(key=key, kind=kind, size_bytes=len(data), last_used_s=None, location="memory")

    def clear(self) -> int:
        with self._lock:
            count = len(self._entries)
            self._entries.clear()
            self._size_bytes = 0
        return count

    def stats(self) -> StoreStats:
        return self._tally.snapshot()
