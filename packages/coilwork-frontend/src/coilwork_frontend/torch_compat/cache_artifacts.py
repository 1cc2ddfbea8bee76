"""Cache entries among what `torch.compiler.save_cache_artifacts` writes and `load_cache_artifacts` reads.

Torch asks for the bytes of an artifact when it is recorded, and keeps them. An entry is recorded by its store
instead, and read when torch writes it down, so that recording costs no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

KIND: Final = "coilwork"


class EntryStore(Protocol):
    """A store of bytes under keys."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, data: bytes) -> None: ...


def register_artifacts(open_store: Callable[[], EntryStore]) -> None:
    """Let torch load artifacts into the store that `open_store` returns. Later calls change nothing."""
    if KIND in CacheArtifactFactory._artifact_types:
        return

    class StoredEntry(CacheArtifact):
        """An entry: its key, and its bytes or the store that has them."""

        def __init__(self, key: str, content: bytes | EntryStore) -> None:
            object.__setattr__(self, "key", key)
            object.__setattr__(self, "_source", content)

        @property
        def content(self) -> bytes:
            source: bytes | EntryStore = vars(self)["_source"]
            # evicted entries are empty, and not loaded
            return source if isinstance(source, bytes) else source.get(self.key) or b""

        def __eq__(self, other: object) -> bool:
            return isinstance(other, StoredEntry) and other.key == self.key

        def __hash__(self) -> int:
            return hash(self.key)

        def __repr__(self) -> str:
            return f"StoredEntry({self.key!r})"

        @staticmethod
        def encode(content: Any) -> Any:
            return content

        @staticmethod
        def type() -> str:
            return KIND

        def populate_cache(self) -> None:
            content = self.content
            if content:
                open_store().put(self.key, content)

    CacheArtifactFactory.register(StoredEntry)


def record_artifacts(keys: Iterable[str], store: EntryStore) -> None:
    """Record entries of `store`, which torch will read when it writes artifacts down. Those that are recorded
    already are left out; before `register_artifacts`, nothing is recorded."""
    if KIND not in CacheArtifactFactory._artifact_types:
        return
    for key in keys:
        CacheArtifactManager.record_artifact(KIND, key, store)
