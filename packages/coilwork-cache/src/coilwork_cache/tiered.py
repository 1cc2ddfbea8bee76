"""A fast store in front of a slow one: local disk before Redis, memory before disk."""

from __future__ import annotations

from collections.abc import Iterator

from coilwork_cache.stats import StoreStats, Tally
from coilwork_cache.store import EntryInfo, InspectableStore


class TieredStore:
    """Reads `fast` first, then `slow`, and copies what `slow` had into `fast`. Writes and deletes reach both.

    `entries` lists the union, an entry in both appearing as the fast one. `stats` counts this store's own
    answers; ask `fast` and `slow` for theirs.
    """

    def __init__(self, fast: InspectableStore, slow: InspectableStore) -> None:
        self.fast = fast
        self.slow = slow
        self._tally = Tally()

    def get(self, key: str) -> bytes | None:
        data = self.fast.get(key)
        if data is None:
            data = self.slow.get(key)
            if data is None:
                self._tally.miss()
                return None
            self.fast.put(key, data)
        self._tally.hit(len(data))
        return data

    def put(self, key: str, data: bytes) -> None:
        self.fast.put(key, data)
        self.slow.put(key, data)
        self._tally.put(len(data))

    def delete(self, key: str) -> None:
        self.fast.delete(key)
        self.slow.delete(key)

    def contains(self, key: str) -> bool:
        return self.fast.contains(key) or self.slow.contains(key)

    def entries(self) -> Iterator[EntryInfo]:
        found = {entry.key: entry for entry in self.slow.entries()}
        found.update((entry.key, entry) for entry in self.fast.entries())
        return iter([found[key] for key in sorted(found)])

    def clear(self) -> int:
        count = sum(1 for _ in self.entries())
        self.fast.clear()
        self.slow.clear()
        return count

    def stats(self) -> StoreStats:
        return self._tally.snapshot()
