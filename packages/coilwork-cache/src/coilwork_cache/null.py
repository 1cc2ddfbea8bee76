"""A store that keeps nothing: caching switched off, with the same interface."""

from __future__ import annotations

from collections.abc import Iterator

from coilwork_cache.key import check_key
from coilwork_cache.stats import StoreStats, Tally
from coilwork_cache.store import EntryInfo


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

    def entries(self) -> Iterator[EntryInfo]:
        return iter(())

    def clear(self) -> int:
        return 0

    def stats(self) -> StoreStats:
        return self._tally.snapshot()
