"""Typed caches: one kind of value each, over any Store.

They add to a store the kind's own key space, a codec, and counters. An entry that is intact but doesn't
decode (another version wrote it, say) is treated like a damaged one: warning, removal, miss.

What building and measuring kernels leaves: their machine code, and how they run best.

Whoever builds and measures says in its keys what an entry was made from, and in its own records what an entry
means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from coilwork_cache.codec import BytesCodec, Codec, JsonCodec, JsonValue
from coilwork_cache.errors import CacheCorruptionWarning, CodecError, UnencodableValueWarning, announce
from coilwork_cache.frame import frame_head, strip_head
from coilwork_cache.key import check_kind, content_key
from coilwork_cache.memory import NullStore
from coilwork_cache.store import InspectableStore, Store, StoreStats, Tally

T = TypeVar("T")


class TypedCache(Generic[T]):
    """Values of type `T`, as entries of `kind`, in `store`."""

    def __init__(self, store: Store, *, kind: str, codec: Codec[T]) -> None:
        self.store = store
        self.kind = check_kind(kind)
        self._codec = codec
        self._tally = Tally()

    def key(self, *parts: str | bytes) -> str:
        """The key of the value that `parts` fully determine."""
        return content_key(self.kind, *parts)

    def get(self, key: str) -> T | None:
        """The value under `key`, or None."""
        data = self.store.get(key)
        if data is None:
            self._tally.miss()
            return None
        try:
            value = self._codec.decode(strip_head(data, self.kind, self._codec.name))
        except CodecError as error:
            self._tally.add(StoreStats(misses=1, corrupt=1))
            self.store.delete(key)
            announce(CacheCorruptionWarning(f"{self.kind} entry {key}", error.reason))
            return None
        self._tally.hit(len(data))
        return value

    def put(self, key: str, value: T) -> None:
        """Store `value`; where its codec can't write it, warn and go on."""
        try:
            payload = self._codec.encode(value)
        except CodecError as error:
            self._tally.add(StoreStats(failures=1))
            announce(UnencodableValueWarning(f"{self.kind} entry {key}", error.reason))
            return
        data = frame_head(self.kind, self._codec.name) + payload
        self.store.put(key, data)
        self._tally.put(len(data))

    def get_or_make(self, key: str, make: Callable[[], T]) -> T:
        """The value under `key`; on a miss, what `make` returns, stored. Two threads may both make it."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def delete(self, key: str) -> None:
        self.store.delete(key)

    def drop(self, key: str, reason: str) -> None:
        """Remove the entry under `key`, which decodes and yet is damaged, with a warning."""
        self.store.delete(key)
        announce(CacheCorruptionWarning(f"{self.kind} entry {key}", reason))

    def contains(self, key: str) -> bool:
        return self.store.contains(key)

    def stats(self) -> StoreStats:
        """Counters of this view; the store's own also count its other users."""
        return self._tally.snapshot()


class KernelCache(TypedCache[bytes]):
    """Built kernels and extension modules. Without a store, nothing is kept."""

    def __init__(self, store: Store | None) -> None:
        super().__init__(NullStore() if store is None else store, kind="kernel", codec=BytesCodec())


class TuningCache(TypedCache[dict[str, JsonValue]]):
    """What was measured of kernels, as JSON objects. Without a store, nothing is kept."""

    def __init__(self, store: Store | None) -> None:
        super().__init__(NullStore() if store is None else store, kind="tuning", codec=JsonCodec())

    def list(self) -> Iterator[tuple[str, dict[str, JsonValue]]]:
        """All records by key, of a store that can be listed."""
        if isinstance(self.store, InspectableStore):
            for entry in self.store.entries():
                record = self.get(entry.key) if entry.kind == self.kind else None
                if record is not None:
                    yield entry.key, record
