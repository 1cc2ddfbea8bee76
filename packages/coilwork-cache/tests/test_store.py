"""What every store promises, run against all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import fakeredis
import pytest

from coilwork_cache import (
    BundleCodec,
    InspectableStore,
    InvalidKeyError,
    LocalStore,
    MemoryStore,
    NullStore,
    Store,
    StoreStats,
    TieredStore,
    TypedCache,
    content_key,
)
from coilwork_cache.codec import Bundle
from coilwork_cache.redis_store import RedisStore

SECRET = b"sixteen bytes or more"
KEYS = [content_key("k", str(i)) for i in range(8)]
KEY, OTHER = KEYS[:2]

MAKERS: dict[str, Callable[[Path], InspectableStore]] = {
    "local": lambda path: LocalStore(path / "cache"),
    "durable": lambda path: LocalStore(path / "cache", durable=True),
    "memory": lambda path: MemoryStore(),
    "redis": lambda path: RedisStore(fakeredis.FakeRedis(), signing_key=SECRET),
    "tiered": lambda path: TieredStore(MemoryStore(), LocalStore(path / "cache")),
}


@pytest.fixture(params=MAKERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> InspectableStore:
    return MAKERS[request.param](tmp_path)


def test_protocols_are_checked_at_run_time(store: InspectableStore) -> None:
    candidates: list[object] = [store, NullStore(), {}]
    assert [isinstance(candidate, Store) for candidate in candidates] == [True, True, False]
    assert [isinstance(candidate, InspectableStore) for candidate in candidates] == [True, True, False]


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 1000, bytes(range(256)) * 4000])
def test_returns_what_was_put(store: InspectableStore, data: bytes) -> None:
    assert store.get(KEY) is None and not store.contains(KEY)
    store.put(KEY, data)
    assert store.contains(KEY)
    assert store.get(KEY) == data
    assert store.get(OTHER) is None


def test_last_write_wins_and_delete_forgets(store: InspectableStore) -> None:
    store.put(KEY, b"first, and longer")
    store.put(KEY, b"second")
    assert store.get(KEY) == b"second"
    store.delete(KEY)
    store.delete(KEY)
    assert store.get(KEY) is None and not store.contains(KEY)


def test_a_store_counts_hits_misses_puts_and_bytes(store: InspectableStore) -> None:
    store.get(KEY)
    store.put(KEY, b"four")
    store.get(KEY)
    store.get(KEY)
    assert store.stats() == StoreStats(hits=2, misses=1, puts=1, read_bytes=8, written_bytes=4)


def test_lists_and_clears(store: InspectableStore) -> None:
    for key in KEYS:
        store.put(key, b"raw bytes")
    kernels = TypedCache(store, kind="kernel", codec=BundleCodec())
    kernel_key = kernels.key("ir")
    kernels.put(kernel_key, Bundle(records={"k.so": b"\x7fELF"}))
    found = {entry.key: entry for entry in store.entries()}
    assert sorted(found) == list(found) == sorted([*KEYS, kernel_key])
    assert found[kernel_key].kind == "kernel" and found[KEY].kind == "raw"
    assert all(entry.size_bytes >= len(b"raw bytes") and entry.location for entry in found.values())
    assert store.clear() == 9
    assert list(store.entries()) == [] and store.get(KEY) is None and store.clear() == 0


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_refuses_malformed_keys(store: InspectableStore, bad: str) -> None:
    for operation in (store.get, store.delete, store.contains, lambda key: store.put(key, b"")):
        with pytest.raises(InvalidKeyError):
            operation(bad)


def test_threads_see_only_whole_values(store: InspectableStore) -> None:
    """Every value names its key, so a mixed-up or torn one shows."""
    wrong: list[object] = []

    def work(seed: int) -> None:
        for step in range(40):
            key = KEYS[(seed + step) % len(KEYS)]
            if step % 3 == 0:
                store.put(key, key.encode() * (1 + (seed + step) % 50))
            elif step % 11 == 0:
                store.delete(key)
            else:
                data = store.get(key)
                if data is not None and data != key.encode() * (len(data) // 64):
                    wrong.append((key, data))

    def guarded(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.stats().corrupt == 0 and store.stats().failures == 0


def test_null_store_keeps_nothing() -> None:
    store = NullStore()
    store.put(KEY, b"x")
    store.delete(KEY)
    assert store.get(KEY) is None and not store.contains(KEY)
    assert list(store.entries()) == [] and store.clear() == 0
    assert store.stats() == StoreStats(misses=1)
    with pytest.raises(InvalidKeyError):
        store.get("x")
