"""Archives: exact, reproducible, and checked in full before anything is stored."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from coilwork_cache import (
    ArchiveError,
    ArchiveReport,
    Bundle,
    BundleCodec,
    LocalStore,
    MemoryStore,
    TypedCache,
    content_key,
    export_archive,
    import_archive,
)

KEYS = [content_key("k", str(i)) for i in range(3)]


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for i, key in enumerate(KEYS):
        store.put(key, bytes([i]) * 100)
    return store


@pytest.fixture
def archive(store: MemoryStore, tmp_path: Path) -> Path:
    export_archive(store, tmp_path / "cache.zip")
    return tmp_path / "cache.zip"


def write_zip(path: Path, manifest: object, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
        file.writestr("manifest.json", json.dumps(manifest))


def test_entries_travel_from_store_to_store(archive: Path, tmp_path: Path) -> None:
    target = LocalStore(tmp_path / "cache")
    assert import_archive(target, archive) == ArchiveReport(entries=3, size_bytes=300)
    assert [target.get(key) for key in KEYS] == [bytes([i]) * 100 for i in range(3)]


def test_typed_entries_travel(tmp_path: Path) -> None:
    kernels = TypedCache(MemoryStore(), kind="kernel", codec=BundleCodec())
    key = kernels.key("ir")
    kernels.put(key, Bundle(records={"k.so": b"\x7fELF"}))
    source = kernels.store
    assert isinstance(source, MemoryStore)
    export_archive(source, tmp_path / "a.zip")
    target = MemoryStore()
    import_archive(target, tmp_path / "a.zip")
    assert TypedCache(target, kind="kernel", codec=BundleCodec()).get(key) == Bundle(
        records={"k.so": b"\x7fELF"}
    )


def test_equal_stores_give_equal_archives_and_no_leftovers(store: MemoryStore, archive: Path) -> None:
    export_archive(store, archive.with_name("again.zip"))
    assert archive.read_bytes() == archive.with_name("again.zip").read_bytes()
    assert sorted(path.name for path in archive.parent.iterdir()) == ["again.zip", "cache.zip"]


def test_chosen_keys_only(store: MemoryStore, tmp_path: Path) -> None:
    absent = content_key("k", "absent")
    report = export_archive(store, tmp_path / "some.zip", keys=[KEYS[1], absent, KEYS[1]])
    assert report == ArchiveReport(entries=1, size_bytes=100)


def test_an_empty_store(tmp_path: Path) -> None:
    assert export_archive(MemoryStore(), tmp_path / "a.zip") == ArchiveReport(entries=0, size_bytes=0)
    assert import_archive(MemoryStore(), tmp_path / "a.zip") == ArchiveReport(entries=0, size_bytes=0)


def test_no_truncation_is_imported_even_in_part(archive: Path) -> None:
    whole = archive.read_bytes()
    target = MemoryStore()
    for length in range(len(whole)):
        archive.write_bytes(whole[:length])
        with pytest.raises(ArchiveError, match="bad-archive"):
            import_archive(target, archive)
    assert list(target.entries()) == []


def test_no_flipped_bit_changes_what_is_imported(archive: Path, store: MemoryStore) -> None:
    """A flip is refused, or hits a byte of the zip that means nothing (a time, say)."""
    whole = archive.read_bytes()
    refused = 0
    for position in range(len(whole)):
        for change in (1, 0x80, 0xFF):
            data = bytearray(whole)
            data[position] ^= change
            archive.write_bytes(data)
            target = MemoryStore()
            try:
                import_archive(target, archive)
            except ArchiveError:
                refused += 1
                assert list(target.entries()) == []
            else:
                assert {key: target.get(key) for key in KEYS} == {key: store.get(key) for key in KEYS}
                assert len(list(target.entries())) == 3
    assert refused > len(whole)


@pytest.mark.parametrize(
    ("manifest", "members"),
    [
        ([], {}),
        ({"format": 2, "entries": []}, {}),
        ({"format": 1}, {}),
        ({"format": 1, "entries": ["x"]}, {}),
        ({"format": 1, "entries": [{"key": "../x", "size_bytes": 0, "sha256": ""}]}, {"../x": b""}),
        ({"format": 1, "entries": [{"key": KEYS[0], "size_bytes": 1, "sha256": "0" * 64}]}, {KEYS[0]: b"x"}),
        ({"format": 1, "entries": [{"key": KEYS[0], "size_bytes": 2, "sha256": "0" * 64}]}, {KEYS[0]: b"x"}),
        ({"format": 1, "entries": [{"key": KEYS[0], "size_bytes": 1, "sha256": "0" * 64}]}, {}),
        ({"format": 1, "entries": []}, {"stowaway": b"x"}),
    ],
)
def test_malformed_archives_are_refused(tmp_path: Path, manifest: object, members: dict[str, bytes]) -> None:
    write_zip(tmp_path / "a.zip", manifest, members)
    target = MemoryStore()
    with pytest.raises(ArchiveError, match="export the archive again"):
        import_archive(target, tmp_path / "a.zip")
    assert list(target.entries()) == []


def test_a_zip_without_manifest_and_a_missing_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("x", b"y")
    with pytest.raises(ArchiveError, match="no manifest"):
        import_archive(MemoryStore(), tmp_path / "a.zip")
    with pytest.raises(FileNotFoundError):
        import_archive(MemoryStore(), tmp_path / "absent.zip")
