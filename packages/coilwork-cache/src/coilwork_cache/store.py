"""What a cache is, to the rest of Coilwork: bytes under content keys.

The contract of every Store:

- `get` returns exactly the bytes of some earlier `put` under this key, or None. Never anything else.
- Nothing that happens to the medium (missing, full, slow, damaged) raises; it warns and counts as a miss.
- All methods may be called from several threads and, where the medium is shared, from several processes.
- A malformed key raises InvalidKeyError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coilwork_cache.stats import StoreStats


@runtime_checkable
class Store(Protocol):
    """Bytes under keys made by `content_key`."""

    def get(self, key: str) -> bytes | None:
        """The entry, verified; None if there is no intact one."""
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
        """All entries, in the order of their keys where the medium allows. Damaged ones may be included."""
        ...

    def clear(self) -> int:
        """Remove all entries; how many there were."""
        ...

    def stats(self) -> StoreStats:
        """Counters of this object since it was made."""
        ...
