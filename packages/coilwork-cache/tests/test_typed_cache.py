"""Typed caches: their own key space, their codec, and what does not decode is a miss."""

from __future__ import annotations

from pathlib import Path

import pytest

from coilwork_cache import (
    Bundle,
    BundleCodec,
    BytesCodec,
    CacheCorruptionWarning,
    GraphCache,
    GraphEntry,
    InvalidKeyError,
    JsonCodec,
    JsonValue,
    LocalStore,
    MemoryStore,
    NullStore,
    StoreStats,
    TypedCache,
    UnencodableValueWarning,
    content_key,
)

KERNEL = Bundle(records={"kernel/k0.so": b"\x7fELF", "source": b"void k0() {}"}, metadata={"entry": "k0"})
GRAPH = GraphEntry(module="x = 1\n", program=b"p", constant_keys=("a.b",), report={"kernels": 2})


def test_kernels_graphs_and_tuning_results_come_back(tmp_path: Path) -> None:
    def caches() -> tuple[TypedCache[Bundle], GraphCache, TypedCache[dict[str, JsonValue]]]:
        store = LocalStore(tmp_path / "cache")
        return (
            TypedCache(store, kind="kernel", codec=BundleCodec()),
            GraphCache(store),
            TypedCache(store, kind="tuning", codec=JsonCodec()),
        )

    kernels, graphs, tuning = caches()
    kernels.put(kernels.key("ir"), KERNEL)
    graphs.put(graphs.key("ir"), GRAPH)
    tuning.put(tuning.key("ir"), {"choice": 3, "times_us": [1.5, 2.0]})
    kernels, graphs, tuning = caches()
    assert kernels.get(kernels.key("ir")) == KERNEL
    assert graphs.get(graphs.key("ir")) == GRAPH
    assert tuning.get(tuning.key("ir")) == {"choice": 3, "times_us": [1.5, 2.0]}


def test_kinds_have_their_own_keys() -> None:
    store = MemoryStore()
    keys = {
        TypedCache(store, kind="kernel", codec=BundleCodec()).key("x"),
        GraphCache(store).key("x"),
        TypedCache(store, kind="tuning", codec=JsonCodec()).key("x"),
    }
    assert len(keys) == 3
    assert TypedCache(store, kind="kernel", codec=BundleCodec()).key("x", b"y") == content_key(
        "kernel", "x", b"y"
    )
    with pytest.raises(InvalidKeyError):
        TypedCache(store, kind="No Name", codec=BytesCodec())


def test_another_kinds_entry_is_a_miss() -> None:
    store = MemoryStore()
    graphs, kernels = GraphCache(store), TypedCache(store, kind="kernel", codec=BundleCodec())
    key = graphs.key("x")
    graphs.put(key, GRAPH)
    with pytest.warns(CacheCorruptionWarning, match="kernel entry"):
        assert kernels.get(key) is None
    assert not store.contains(key)


@pytest.mark.parametrize(
    "data", [b"", b"COILVAL\n", b"rubbish", b"COILVAL\n\x01\x06tuning\x06json-1{not json"]
)
def test_what_does_not_decode_warns_goes_and_is_a_miss(data: bytes) -> None:
    store = MemoryStore()
    tuning = TypedCache(store, kind="tuning", codec=JsonCodec())
    key = tuning.key("x")
    store.put(key, data)
    with pytest.warns(CacheCorruptionWarning, match=key):
        assert tuning.get(key) is None
    assert not store.contains(key)
    assert tuning.stats() == StoreStats(misses=1, corrupt=1)


def test_a_value_that_cannot_be_written_warns() -> None:
    tuning = TypedCache(MemoryStore(), kind="tuning", codec=JsonCodec())
    key = tuning.key("x")
    with pytest.warns(UnencodableValueWarning, match="unencodable-value"):
        tuning.put(key, {"time_us": float("inf")})
    assert not tuning.contains(key)


def test_get_or_make_makes_once() -> None:
    kernels = TypedCache(MemoryStore(), kind="kernel", codec=BundleCodec())
    made: list[int] = []

    def make() -> Bundle:
        made.append(1)
        return KERNEL

    key = kernels.key("ir")
    assert [kernels.get_or_make(key, make) for _ in range(3)] == [KERNEL] * 3
    assert made == [1]
    assert (kernels.stats().hits, kernels.stats().misses, kernels.stats().puts) == (2, 1, 1)
    kernels.delete(key)
    assert not kernels.contains(key)


def test_without_a_store_everything_is_made() -> None:
    kernels = TypedCache(NullStore(), kind="kernel", codec=BundleCodec())
    assert kernels.get_or_make(kernels.key("ir"), lambda: KERNEL) == KERNEL
    assert kernels.get(kernels.key("ir")) is None
