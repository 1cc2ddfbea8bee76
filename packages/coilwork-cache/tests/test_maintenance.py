"""Reports, verification and selective clearing."""

from __future__ import annotations

from pathlib import Path

import pytest

from coilwork_cache import (
    Bundle,
    BundleCodec,
    GraphCache,
    GraphEntry,
    LocalStore,
    StoreStats,
    TypedCache,
    clear,
    content_key,
    describe,
    verify,
)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "cache")
    kernels, graphs = TypedCache(store, kind="kernel", codec=BundleCodec()), GraphCache(store)
    for name in "abc":
        kernels.put(kernels.key(name), Bundle(records={"k.so": name.encode()}))
    graphs.put(graphs.key("g"), GraphEntry(module="", report={}))
    store.put(content_key("other", "x"), b"raw")
    return store


def test_describe_adds_up_and_is_no_use_of_the_entries(store: LocalStore) -> None:
    before = {entry.key: entry.last_used_s for entry in store.entries()}
    report = describe(store)
    assert [(total.kind, total.entries) for total in report.kinds] == [
        ("graph", 1),
        ("kernel", 3),
        ("raw", 1),
    ]
    assert report.size_bytes == sum(total.size_bytes for total in report.kinds)
    assert report.size_bytes == sum(Path(entry.location).stat().st_size for entry in report.entries)
    assert {entry.key: entry.last_used_s for entry in report.entries} == before
    assert report.stats.puts == 5 and report.stats.hits == 0


def test_describe_an_empty_store(tmp_path: Path) -> None:
    report = describe(LocalStore(tmp_path / "empty"))
    assert (report.entries, report.kinds, report.size_bytes, report.stats) == ((), (), 0, StoreStats())


def test_clear_by_kind_then_all(store: LocalStore) -> None:
    assert clear(store, kind="kernel") == 3
    assert clear(store, kind="nothing") == 0
    assert [total.kind for total in describe(store).kinds] == ["graph", "raw"]
    assert clear(store) == 2
    assert describe(store).kinds == ()


def test_verify_names_and_removes_what_is_damaged(store: LocalStore) -> None:
    victim = next(store.entries())
    Path(victim.location).write_bytes(b"rubbish")
    report = verify(store)
    assert report.intact == 4
    (problem,) = report.problems
    assert victim.location in problem
    assert verify(store).intact == 4 and verify(store).problems == ()
