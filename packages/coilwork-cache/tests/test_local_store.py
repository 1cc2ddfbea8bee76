"""The store on local disk, and its file format."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from coilwork_cache import (
    CacheCorruptionWarning,
    CacheFullWarning,
    CacheUnavailableWarning,
    EntryTooLargeWarning,
    InsecureRootWarning,
    InvalidSettingError,
    LocalStore,
    NullStore,
    content_key,
    open_local_store,
)
from coilwork_cache.local_store import HEADER_BYTES, DamagedEntry, seal, unseal

KEYS = [content_key("k", str(i)) for i in range(64)]
KEY, OTHER = KEYS[:2]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "cache")


def file_of(store: LocalStore, key: str) -> Path:
    return store.root / "v1" / key[:2] / key


def age(store: LocalStore, key: str, seconds: int) -> None:
    """Make `key` last used `seconds` after the epoch."""
    os.utime(file_of(store, key), (seconds, seconds))


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_second_store_object_reads_what_the_first_wrote(store: LocalStore) -> None:
    store.put(KEY, b"value")
    assert LocalStore(store.root).get(KEY) == b"value"


def test_used_keys_are_those_of_all_store_objects_since_a_count(store: LocalStore) -> None:
    store.put(KEY, b"one")
    store.put(KEYS[2], b"two")
    before = store.count_uses()
    store.put(OTHER, b"three")
    assert LocalStore(store.root).get(KEY) == b"one"
    assert store.list_used_keys() == (KEYS[2], OTHER, KEY)
    assert store.list_used_keys(since=before) == (OTHER, KEY)
    assert store.list_used_keys(since=store.count_uses()) == ()


def test_claims_of_several_keys_wait_for_each_other_where_they_overlap(store: LocalStore) -> None:
    order: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def claim(name: str, *keys: str) -> None:
        with store.claim(*keys):
            order.append(name)
            entered.set()
            leave.wait(30)
            order.append(f"{name} ends")

    first = threading.Thread(target=claim, args=("first", KEYS[0], KEYS[1]))
    first.start()
    assert entered.wait(30)
    with store.claim(KEYS[2], KEYS[3]):
        order.append("apart")
    second = threading.Thread(target=claim, args=("second", KEYS[2], KEYS[1]))
    second.start()
    leave.set()
    for thread in (first, second):
        thread.join(30)
    assert order == ["first", "apart", "first ends", "second", "second ends"]


def test_refuses_an_empty_bound(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="invalid-setting"):
        LocalStore(tmp_path / "cache", max_bytes=0)


# Damage


def collect_reports(caught: list[warnings.WarningMessage], caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages on damaged entries: one warning, and what the log has of the others."""
    (warning,) = caught
    assert warning.category is CacheCorruptionWarning
    return [str(warning.message), *(record.getMessage() for record in caplog.records)]


def test_truncation_at_every_length_is_a_miss_and_one_warning(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "coilwork.cache")
    store.put(KEY, b"some payload")
    path = file_of(store, KEY)
    whole = path.read_bytes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            assert store.get(KEY) is None
            assert not path.exists()
    reports = collect_reports(caught, caplog)
    assert len(reports) == len(whole)
    for report in reports:
        assert str(path) in report and "truncated" in report and "try     " in report
    assert store.stats().corrupt == store.stats().misses == len(whole)
    store.put(KEY, b"rebuilt")
    assert store.get(KEY) == b"rebuilt"


def test_every_flipped_bit_is_a_miss_and_reported(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "coilwork.cache")
    store.put(KEY, b"payload")
    path = file_of(store, KEY)
    whole = path.read_bytes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for bit in range(8 * len(whole)):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            assert store.get(KEY) is None
    assert len(collect_reports(caught, caplog)) == 8 * len(whole)


def test_an_entry_moved_to_another_key_is_damaged(store: LocalStore) -> None:
    store.put(KEY, b"value")
    file_of(store, OTHER).parent.mkdir(exist_ok=True)
    file_of(store, KEY).rename(file_of(store, OTHER))
    with pytest.warns(CacheCorruptionWarning, match="checksum"):
        assert store.get(OTHER) is None


def test_an_entry_of_a_later_format_says_so(store: LocalStore) -> None:
    store.put(KEY, b"value")
    data = bytearray(file_of(store, KEY).read_bytes())
    data[8] = 9
    file_of(store, KEY).write_bytes(data)
    with pytest.warns(CacheCorruptionWarning, match="entry format 9, expected 1"):
        assert store.get(KEY) is None


# A disk that fails


def test_a_full_disk_warns_once_and_leaves_nothing_behind(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, b"before")
    real = os.write
    written: list[int] = []

    def fill_up(handle: int, data: bytes) -> int:
        written.append(handle)
        if len(written) % 2 == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill_up)
        with pytest.warns(CacheFullWarning, match="disk-full"):
            store.put(OTHER, b"no room")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.put(OTHER, b"still no room")
        assert store.get(OTHER) is None and store.get(KEY) == b"before"
        assert store.stats().failures == 2 and len(written) == 4
    assert list((store.root / "v1" / "tmp").iterdir()) == []
    store.put(OTHER, b"room again")
    assert store.get(OTHER) == b"room again"


def test_a_full_disk_keeps_the_older_value(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(KEY, b"older")

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os, "write", full)
    with pytest.warns(CacheFullWarning):
        store.put(KEY, b"newer")
    assert store.get(KEY) == b"older"


def test_short_writes_are_continued(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:8])))
    store.put(KEY, b"more than eight bytes")
    assert store.get(KEY) == b"more than eight bytes"


def test_a_denied_write_is_a_warning(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by chmod: the tests may run as root, whom no mode stops.
    def deny(path: object, *rest: object, **named: object) -> int:
        raise PermissionError(errno.EACCES, "denied", str(path))

    monkeypatch.setattr(os, "open", deny)
    with pytest.warns(CacheUnavailableWarning, match=r"store-unavailable(.|\n)*writing: .*denied"):
        store.put(KEY, b"value")
    assert store.get(KEY) is None


def test_an_unreadable_entry_is_a_warning_and_a_miss(store: LocalStore) -> None:
    file_of(store, KEY).mkdir(parents=True)
    with pytest.warns(CacheUnavailableWarning, match="reading"):
        assert store.get(KEY) is None
    with pytest.warns(CacheUnavailableWarning, match="writing"):
        store.put(KEY, b"value")
    with pytest.warns(CacheUnavailableWarning, match="removing"):
        store.delete(KEY)
    assert not store.contains(KEY)
    assert store.stats().failures == 3


def test_a_read_only_folder_still_serves(store: LocalStore) -> None:
    store.put(KEY, b"value")
    folders = [store.root / "v1", file_of(store, KEY).parent, store.root / "v1" / "tmp"]
    for folder in folders:
        folder.chmod(0o500)
    try:
        if os.access(folders[0], os.W_OK):
            pytest.skip("no mode stops this user")
        assert store.get(KEY) == b"value"
        with pytest.warns(CacheUnavailableWarning):
            store.put(OTHER, b"value")
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_goes_on_after_the_whole_cache_was_removed(store: LocalStore) -> None:
    store.put(KEY, b"value")
    for path in files_below(store.root):
        path.unlink()
    for path in sorted(store.root.rglob("*"), reverse=True):
        path.rmdir()
    store.root.rmdir()
    assert store.get(KEY) is None and list(store.entries()) == []
    store.put(KEY, b"value")
    assert store.get(KEY) == b"value"
    assert store.root.stat().st_mode & 0o077 == 0


# Privacy


def test_another_users_entry_is_refused(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone may have put a folder of theirs where ours was removed while we ran."""
    store.put(KEY, b"value")
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.warns(CacheCorruptionWarning, match="belongs to user id"):
        assert store.get(KEY) is None


def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = LocalStore(tmp_path / "cache", max_bytes=1000)
        for key in KEYS:
            store.put(key, b"x" * 100)
    finally:
        os.umask(old)
    assert store.stats().evicted > 0
    found = [store.root, *store.root.rglob("*")]
    assert len(found) > 5
    assert {path.stat().st_mode & 0o777 for path in found} == {0o700, 0o600}


def test_an_insecure_root_means_no_cache(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(0o777)
    with pytest.warns(InsecureRootWarning, match="chmod go-w") as caught:
        store = open_local_store(root)
    assert isinstance(store, NullStore) and len(caught) == 1
    store.put(KEY, b"value")
    assert files_below(root) == []


def test_a_planted_subfolder_means_no_cache(tmp_path: Path) -> None:
    (tmp_path / "cache" / "v1").mkdir(parents=True)
    (tmp_path / "cache" / "v1").chmod(0o770)
    with pytest.warns(InsecureRootWarning, match="v1"):
        assert isinstance(open_local_store(tmp_path / "cache"), NullStore)


def test_an_impossible_root_means_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(CacheUnavailableWarning):
        assert isinstance(open_local_store(tmp_path / "file"), NullStore)
    with pytest.warns(CacheUnavailableWarning):
        assert isinstance(open_local_store(tmp_path / "file" / "below"), NullStore)


# Size


def test_stays_within_its_bound_and_evicts_the_least_recently_used(tmp_path: Path) -> None:
    entry_bytes = HEADER_BYTES + 100
    store = LocalStore(tmp_path / "cache", max_bytes=10 * entry_bytes)
    for i, key in enumerate(KEYS[:10]):
        store.put(key, bytes(100))
        age(store, key, 1000 + i)
    assert store.stats().evicted == 0
    assert store.get(KEYS[0]) is not None  # the oldest, and now the most recently used
    store.put(KEYS[10], bytes(100))
    assert [store.contains(key) for key in KEYS[:11]] == [True, False, False, *[True] * 8]
    assert store.stats().evicted == 2  # down to 90 %


def test_many_writes_never_leave_it_above_its_bound(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "cache", max_bytes=5000)
    for i in range(200):
        store.put(KEYS[i % 64], bytes(i * 7 % 900))
        assert sum(entry.size_bytes for entry in store.entries()) <= 5000


def test_bound_holds_across_short_processes(tmp_path: Path) -> None:
    for key in KEYS:
        LocalStore(tmp_path / "cache", max_bytes=2000).put(key, bytes(200))
    assert sum(entry.size_bytes for entry in LocalStore(tmp_path / "cache").entries()) <= 2000


def test_rewriting_one_entry_evicts_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "cache", max_bytes=1000)
    store.put(OTHER, b"bystander")
    for _ in range(50):
        store.put(KEY, bytes(100))
    assert store.get(OTHER) == b"bystander" and store.stats().evicted == 0


def test_too_large_an_entry_warns_once_and_hides_the_older(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "cache", max_bytes=200)
    store.put(KEY, b"old")
    with pytest.warns(EntryTooLargeWarning, match="the option max_bytes"):
        store.put(KEY, bytes(200))
    assert store.get(KEY) is None


def test_eviction_leaves_other_processes_and_strangers_files_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "cache", max_bytes=2000)
    store.put(KEY, b"x")
    stranger = file_of(store, KEY).parent / ".DS_Store"
    stranger.write_bytes(bytes(100))
    with FileLock(store.root / "v1" / "sweep.lock"):
        for key in KEYS[:20]:
            store.put(key, bytes(200))
        assert store.stats().evicted == 0  # somebody else is evicting
    store.put(KEY, b"x")
    assert store.stats().evicted > 0 and stranger.exists()


def test_a_torn_ledger_is_rebuilt(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "cache", max_bytes=2000)
    for rubbish in (b"torn", b"\xff" * 16, bytes(8 * 5000)):
        (store.root / "v1" / "ledger").write_bytes(rubbish)
        store.put(KEY, bytes(100))
        assert (store.root / "v1" / "ledger").read_bytes() == (HEADER_BYTES + 100).to_bytes(8, "little")


def test_eviction_under_threads(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "cache", max_bytes=4000)

    def work(seed: int) -> None:
        for step in range(60):
            key = KEYS[(seed * 7 + step) % 64]
            store.put(key, key.encode() * 4)
            data = store.get(key)
            assert data is None or data == key.encode() * 4

    failures: list[threading.ExceptHookArgs] = []
    old_hook, threading.excepthook = threading.excepthook, failures.append
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = old_hook
    assert failures == []
    assert store.stats().failures == store.stats().corrupt == 0 and store.stats().evicted > 0
    # records that got lost while others replaced the ledger delay the next walk, which counts what there is
    for key in KEYS:
        store.put(key, key.encode() * 4)
    store.put(KEY, b"x")
    assert sum(entry.size_bytes for entry in store.entries()) <= 4000


def test_what_is_written_during_a_walk_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = (LocalStore(tmp_path / "cache", max_bytes=4000) for _ in range(2))
    walk = store._walk

    def slowly() -> Iterator[Any]:
        found = list(walk())
        # behind the walk's back: too little to be over the limit by itself
        other.put(KEYS[-1], b"y" * 2000)
        yield from found

    monkeypatch.setattr(store, "_walk", slowly)
    for key in KEYS[:40]:
        store.put(key, key.encode() * 4)
        if store.stats().evicted:
            break
    monkeypatch.undo()
    assert store.stats().evicted
    store.put(KEY, b"x")
    assert sum(entry.size_bytes for entry in store.entries()) <= 4000


def test_files_of_dead_writers_are_removed_and_others_kept(store: LocalStore) -> None:
    store.put(KEY, b"value")
    dead, written = store.root / "v1" / "tmp" / "1-dead", store.root / "v1" / "tmp" / "2-written"
    dead.write_bytes(b"left by a crash")
    with written.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # clocks may say anything
        os.utime(written, (1000, 1000))
        LocalStore(store.root)
        assert not dead.exists() and written.exists()
    LocalStore(store.root)
    assert not written.exists()


def test_a_writer_whose_file_was_swept_writes_it_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[Path] = []

    def replace(source: Path, target: Path) -> None:
        if not swept:
            swept.append(source)
            source.unlink()
        source.rename(target)

    monkeypatch.setattr(os, "replace", replace)
    store.put(KEY, b"value")
    assert swept and store.get(KEY) == b"value" and store.stats().failures == 0


def test_entries_from_the_future_go_like_others(tmp_path: Path) -> None:
    """A clock that was ahead for a while made them the last to go, and they never got too old."""
    store = LocalStore(tmp_path, max_bytes=1000)
    store.put(KEY, bytes(300))
    age(store, KEY, int(time.time()) + 10**6)
    store.put(OTHER, bytes(300))
    store.put(KEYS[2], bytes(300))
    assert file_of(store, KEY).stat().st_mtime <= time.time() + 1
    assert not store.contains(OTHER) and store.contains(KEY)
    age(store, KEY, int(time.time()) + 10**6)
    LocalStore(tmp_path, max_age_s=3600)
    assert store.contains(KEY)  # used now, as far as anybody knows
    (tmp_path / "v1" / "aged").touch()
    (tmp_path / "v1" / "aged").unlink()
    age(store, KEY, 1000)
    LocalStore(tmp_path, max_age_s=3600)
    assert not store.contains(KEY)


ENTRY_KEY = content_key("k", "one")
OTHER_ENTRY_KEY = content_key("k", "two")


def reopen(data: bytes, key: str = ENTRY_KEY) -> bytes:
    return unseal(key, data[:HEADER_BYTES], data[HEADER_BYTES:])


@given(st.binary(max_size=200))
def test_a_sealed_payload_is_read_back(payload: bytes) -> None:
    assert reopen(seal(ENTRY_KEY, payload) + payload) == payload


@given(st.binary(max_size=60))
def test_every_prefix_is_damaged(payload: bytes) -> None:
    whole = seal(ENTRY_KEY, payload) + payload
    for length in range(len(whole)):
        with pytest.raises(DamagedEntry):
            reopen(whole[:length])


def test_every_bit_flip_is_damaged() -> None:
    whole = seal(ENTRY_KEY, b"payload") + b"payload"
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedEntry):
            reopen(bytes(flipped))


def test_appended_bytes_and_another_key_are_damaged() -> None:
    whole = seal(ENTRY_KEY, b"payload") + b"payload"
    with pytest.raises(DamagedEntry, match="extended"):
        reopen(whole + b"\0")
    with pytest.raises(DamagedEntry, match="checksum"):
        reopen(whole, OTHER_ENTRY_KEY)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_damaged(data: bytes) -> None:
    with pytest.raises(DamagedEntry):
        reopen(data)


def test_entries_that_were_not_used_for_long_go(tmp_path: Path) -> None:
    old, new = content_key("raw", "old"), content_key("raw", "new")
    store = LocalStore(tmp_path)
    for key in (old, new):
        store.put(key, b"data")
    place = next(Path(entry.location) for entry in store.entries() if entry.key == old)
    os.utime(place, (time.time() - 1000, time.time() - 1000))
    assert LocalStore(tmp_path).contains(old)
    LocalStore(tmp_path, max_age_s=500.0)
    assert [entry.key for entry in store.entries()] == [new]


def test_ages_are_looked_at_once_in_a_while(tmp_path: Path) -> None:
    key = content_key("raw", "old")
    LocalStore(tmp_path, max_age_s=500.0).put(key, b"data")
    place = next(Path(entry.location) for entry in LocalStore(tmp_path).entries())
    os.utime(place, (time.time() - 1000, time.time() - 1000))
    assert LocalStore(tmp_path, max_age_s=500.0).contains(key)
