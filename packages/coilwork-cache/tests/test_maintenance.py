"""Reports, verification and selective clearing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from coilwork_cache import (
    Bundle,
    BundleCodec,
    GraphCache,
    GraphEntry,
    InvalidKeyError,
    LocalStore,
    StoreStats,
    TypedCache,
    clear,
    content_key,
    describe,
    load,
    save,
    verify,
)
from coilwork_cache.commands import cache
from coilwork_cache.maintenance import compare_graphs, find_key


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


def test_save_writes_what_this_process_used(tmp_path: Path) -> None:
    root, other = tmp_path / "cache", tmp_path / "other"
    keys = [content_key("raw", name) for name in "abc"]
    for key in keys:
        LocalStore(root).put(key, key.encode())
    # written by another process, as far as this one knows
    Path(root / "v1" / "ff").mkdir()
    stranger = "ff" + keys[0][2:]
    Path(root / "v1" / "ff" / stranger).write_bytes(b"")
    LocalStore(root).get(content_key("raw", "missing"))
    assert save(tmp_path / "file", folder=root).entries == 3
    assert load(tmp_path / "file", folder=other).entries == 3
    assert [LocalStore(other).get(key) for key in keys] == [key.encode() for key in keys]


def test_why_two_graphs_are_two(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    graphs = GraphCache(LocalStore(root))
    parts = {"graph": "0 add\n1 mul", "options": "fusion=True"}
    keys = []
    for one in (parts, {**parts, "options": "fusion=False"}, {**parts, "graph": "0 add\n1 sub"}):
        keys.append(graphs.key(*one.values()))
        graphs.put(keys[-1], GraphEntry(module="", report={}, key_parts=one))
    lines = compare_graphs(LocalStore(root), keys[0], keys[1])
    assert lines == ["graph: equal", "options: different", "  -fusion=True", "  +fusion=False"]
    shown = CliRunner().invoke(cache, ["--dir", str(root), "why", keys[0][:12], keys[2][:12]])
    assert shown.exit_code == 0
    assert shown.output.splitlines() == ["graph: different", "  -1 mul", "  +1 sub", "options: equal"]
    listed = CliRunner().invoke(cache, ["--dir", str(root), "ls", "--kind", "graph"]).output
    assert sorted(line.split()[0] for line in listed.splitlines()) == sorted(key[:16] for key in keys)


@pytest.mark.parametrize("start", ["", "no key"])
def test_a_start_of_none_or_several_keys_is_refused(start: str, store: LocalStore) -> None:
    with pytest.raises(InvalidKeyError, match="cache ls"):
        find_key(store, start)
