"""What building and measuring kernels leaves: their machine code, and how they run best.

Whoever builds and measures says in its keys what an entry was made from, and in its own records what an entry
means.
"""

from __future__ import annotations

from collections.abc import Iterator

from coilwork_cache.codec import BytesCodec, JsonCodec, JsonValue
from coilwork_cache.null import NullStore
from coilwork_cache.store import InspectableStore, Store
from coilwork_cache.typed import TypedCache


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
