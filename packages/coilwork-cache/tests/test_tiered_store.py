"""Reading through, filling back, writing to both."""

from __future__ import annotations

from pathlib import Path

import pytest

from coilwork_cache import (
    CacheCorruptionWarning,
    LocalStore,
    MemoryStore,
    StoreStats,
    TieredStore,
    content_key,
)

KEY, OTHER = content_key("k", "one"), content_key("k", "two")


def test_fills_the_fast_store_from_the_slow_one() -> None:
    fast, slow = MemoryStore(), MemoryStore()
    slow.put(KEY, b"value")
    store = TieredStore(fast, slow)
    assert store.get(KEY) == b"value" and fast.get(KEY) == b"value"
    store.get(KEY)
    assert slow.stats().hits == 1
    assert store.stats() == StoreStats(hits=2, read_bytes=10)


def test_writes_and_deletes_reach_both() -> None:
    fast, slow = MemoryStore(), MemoryStore()
    store = TieredStore(fast, slow)
    store.put(KEY, b"value")
    assert fast.get(KEY) == slow.get(KEY) == b"value"
    store.delete(KEY)
    assert not fast.contains(KEY) and not slow.contains(KEY)


def test_lists_the_union_once() -> None:
    fast, slow = MemoryStore(), MemoryStore()
    fast.put(KEY, b"both")
    slow.put(KEY, b"both")
    slow.put(OTHER, b"slow only")
    store = TieredStore(fast, slow)
    assert [entry.key for entry in store.entries()] == sorted([KEY, OTHER])
    assert store.contains(OTHER) and store.clear() == 2
    assert list(slow.entries()) == []


def test_a_damaged_fast_entry_is_healed_from_the_slow_store(tmp_path: Path) -> None:
    fast, slow = LocalStore(tmp_path / "cache"), MemoryStore()
    store = TieredStore(fast, slow)
    store.put(KEY, b"value")
    (entry,) = fast.entries()
    Path(entry.location).write_bytes(b"rubbish")
    with pytest.warns(CacheCorruptionWarning):
        assert store.get(KEY) == b"value"
    assert fast.get(KEY) == b"value"


def test_a_claim_is_the_fast_stores(tmp_path: Path) -> None:
    """It lets processes of this machine wait for each other; memory, which they do not share, has none."""
    local = LocalStore(tmp_path)
    with TieredStore(local, MemoryStore()).claim(KEY):
        assert (tmp_path / "v1" / "claims").is_dir()
    with TieredStore(MemoryStore(), local).claim(KEY):
        pass
