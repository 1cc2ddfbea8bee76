r"""The store on local disk: one file per entry, safe against crashes, full disks and concurrent writers.

    ROOT/v1/ab/abcdef…      entries, in folders named by the key's first two digits
    ROOT/v1/tmp/            files being written, locked; renamed into place, or swept after a crash
    ROOT/v1/ledger          running size
    ROOT/v1/sweep.lock      held by the process that evicts
    ROOT/v1/claims/abc      held by the process that makes an entry whose key begins so
    ROOT/v1/aged            its time: when entries were last removed for their age
    ROOT/v1/counts          hits and misses by kind

No lock is taken to read or write: an entry appears by an atomic rename, and of two writers the last one wins.
A file's modification time is its last use; eviction removes the least recently used. A time in the future,
which a clock that was wrong has left, is set to now.

An entry is a fixed header, then the payload:

    offset  size  field
    0       8     magic  b"COILENT\n"
    8       4     format version, little endian
    12      8     payload length in bytes, little endian
    20      32    SHA-256 of (key, payload)
    52      …     payload

The key is part of the digest, so a file that was renamed to another key does not pass for that entry.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from coilwork_cache.codec import MAX_FRAME_BYTES, RAW_KIND, peek_kind
from coilwork_cache.errors import (
    CacheCorruptionWarning,
    CacheFullWarning,
    CacheUnavailableWarning,
    EntryTooLargeWarning,
    InsecureRootError,
    InsecureRootWarning,
    InvalidSettingError,
    OnceAnnouncer,
    RootUnavailableError,
    announce,
)
from coilwork_cache.folder import (
    BINARY_FLAG,
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    find_default_root,
    find_owner_problem,
    list_files,
    make_absolute,
    make_private_folders,
    open_private_folder,
    remove_abandoned,
    write_atomically,
)
from coilwork_cache.key import check_key, is_key
from coilwork_cache.memory_store import NullStore
from coilwork_cache.store import EntryInfo, StoreStats, Tally, UseCount
from coilwork_cache.use_counts import UseCounts

# ---- entry format ----


MAGIC = b"COILENT\n"
ENTRY_FORMAT = 1
_HEADER = struct.Struct("<8sIQ32s")
HEADER_BYTES = _HEADER.size


class DamagedEntry(ValueError):
    """Bytes are not an intact entry for this key; the message says in which way."""


def seal(key: str, payload: bytes) -> bytes:
    """Return the header that goes in front of `payload`."""
    return _HEADER.pack(MAGIC, ENTRY_FORMAT, len(payload), _digest(key, payload))


def unseal(key: str, header: bytes, payload: bytes) -> bytes:
    """Return `payload` if `header` vouches for it under `key`; raise DamagedEntry otherwise."""
    if len(header) < HEADER_BYTES:
        raise DamagedEntry(f"truncated: {len(header)} of {HEADER_BYTES} header bytes")
    magic, version, length, digest = _HEADER.unpack(header)
    if magic != MAGIC:
        raise DamagedEntry(f"not a cache entry: starts with {magic!r}")
    if version != ENTRY_FORMAT:
        raise DamagedEntry(f"entry format {version}, expected {ENTRY_FORMAT}")
    if length != len(payload):
        raise DamagedEntry(f"truncated or extended: {len(payload)} payload bytes, the header says {length}")
    if digest != _digest(key, payload):
        raise DamagedEntry("checksum does not match")
    return payload


def _digest(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(payload)
    return digest.digest()


# ---- store ----


_RECORD = struct.Struct("<q")
# A walk is due at the latest after so many writes, which bounds both the file (32 KiB) and the drift.
MAX_RECORDS = 4096


class Ledger:
    """The running size of one folder, shared by all processes that use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, size_bytes: int) -> int | None:
        """Record a write of `size_bytes`; the estimated total in bytes, or None if only a walk can tell.

        Raises OSError.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY_FLAG
        handle = os.open(self._path, flags, PRIVATE_FILE)
        try:
            os.write(handle, _RECORD.pack(size_bytes))
            os.lseek(handle, 0, os.SEEK_SET)
            data = os.read(handle, (MAX_RECORDS + 1) * _RECORD.size)
        finally:
            os.close(handle)
        if len(data) % _RECORD.size or len(data) > MAX_RECORDS * _RECORD.size:
            return None
        records: list[int] = [record for (record,) in _RECORD.iter_unpack(data)]
        if min(records) < 0:
            return None
        return sum(records)

    def mark(self) -> int:
        """Return where a walk begins, for `restart`. Raises OSError."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def restart(self, temporary_folder: Path, size_bytes: int, *, since: int | None = None) -> None:
        """Begin anew from the exact size that a walk found, and from what was recorded `since` its mark.
        Raises OSError.
        """
        later = b""
        if since is not None and since % _RECORD.size == 0:
            with contextlib.suppress(FileNotFoundError):
                later = self._path.read_bytes()[since:]
        whole = later[: len(later) // _RECORD.size * _RECORD.size]
        write_atomically(temporary_folder, self._path, (_RECORD.pack(size_bytes), whole), durable=False)


DEFAULT_MAX_BYTES = 4 << 30
LAYOUT = "v1"
# Eviction goes on down to this share of max_bytes, so that a full store isn't walked at every write.
LOW_WATER = 0.9
# Seconds: clocks of machines that share a folder differ by less.
CLOCK_SLACK_S = 60.0
# Longer than any kernel takes to compile: whoever holds a claim for so long hangs.
CLAIM_S = 120.0
# 4,096 claims: more than all processes of a machine build kernels at once.
CLAIM_DIGITS = 3
AGING_PERIOD_S = 86400.0
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of what a store keeps.

    Attributes:
        max_bytes: size on disk; beyond it the least recently used entries go.
        max_age_s: seconds without use after which an entry goes; 0 for never.
    """

    max_bytes: int = DEFAULT_MAX_BYTES
    max_age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    path: Path
    size_bytes: int
    last_used_s: float


class LocalStore:
    """Entries below `root`, at most `max_bytes` on disk (checked after each write, headers included).

    Between a write and the eviction it triggers, the limit may be exceeded by what was just written.
    With `max_age_s`, entries that were not used for so long go when the store is opened, once a day at most.
    `durable` flushes every entry to the disk before it becomes visible: slower, and only useful if a power
    cut should cost no entry, since a torn one is detected either way.

    Raises InsecureRootError or RootUnavailableError if the root can't be trusted or used, InvalidSettingError
    if `max_bytes` is not positive. `open_local_store` warns and goes on without a cache instead.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_age_s: float = 0.0,
        durable: bool = False,
    ) -> None:
        if max_bytes <= 0:
            raise InvalidSettingError(f"max_bytes={max_bytes}", "must be at least 1")
        self.root = find_default_root(os.environ) if root is None else make_absolute(root)
        self.max_bytes = max_bytes
        self.max_age_s = max_age_s
        self._durable = durable
        self._folder = self.root / LAYOUT
        self._temporary = self._folder / "tmp"
        for folder in (self.root, self._folder):
            open_private_folder(folder)
        self._ledger = Ledger(self._folder / "ledger")
        self._tally = Tally()
        self._process = _process_record(self.root)
        self.announcer = self._process.announcer
        remove_abandoned(self._temporary)
        if max_age_s > 0:
            self._remove_unused()

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            data = self._read(key, path)
        except FileNotFoundError:
            self._tally.miss()
            return None
        except OSError as error:
            self._tally.add(StoreStats(misses=1, failures=1))
            self.announcer.announce(CacheUnavailableWarning(str(path), f"reading: {error}"), topic="read")
            return None
        except DamagedEntry as damage:
            self._tally.add(StoreStats(misses=1, corrupt=1))
            self._remove(path)
            self.announcer.announce(CacheCorruptionWarning(str(path), str(damage)))
            return None
        # Only the eviction order depends on this; a read-only folder may refuse.
        with contextlib.suppress(OSError):
            os.utime(path)
        self._tally.hit(len(data))
        self._process.note_use(key)
        return data

    def check(self, key: str) -> str | None:
        path = self._path(key)
        try:
            self._read(key, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return str(CacheUnavailableWarning(str(path), f"reading: {error}"))
        except DamagedEntry as damage:
            self._remove(path)
            return str(CacheCorruptionWarning(str(path), str(damage)))
        return None

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        header = seal(key, data)
        size_bytes = len(header) + len(data)
        if size_bytes > self.max_bytes:
            # An older entry under the same key must not outlive the newer one that had no room.
            self._remove(path)
            reason = f"{size_bytes} bytes, and max_bytes is {self.max_bytes}"
            self.announcer.announce(EntryTooLargeWarning(f"entry {key}", reason))
            return
        try:
            self._write(path, header, data)
        except OSError as error:
            self._write_failed(path, error)
            return
        self._tally.put(len(data))
        self._process.note_use(key)
        try:
            total_bytes = self._ledger.append(size_bytes)
            if total_bytes is None or total_bytes > self.max_bytes:
                self._sweep()
        except OSError as error:
            self._write_failed(self._folder, error)

    def delete(self, key: str) -> None:
        self._remove(self._path(key))

    def contains(self, key: str) -> bool:
        path = self._path(key)
        try:
            return path.is_file()
        except OSError as error:
            self._tally.add(StoreStats(failures=1))
            self.announcer.announce(CacheUnavailableWarning(str(path), f"reading: {error}"), topic="read")
            return False

    @contextlib.contextmanager
    def claim(self, *keys: str) -> Iterator[None]:
        """Be the only one that makes the entries under `keys`, as `ClaimableStore` says. Each is waited for
        `CLAIM_S` at most.

        Keys with the same first digits share a claim, which costs time alone: do not claim further ones
        meanwhile.
        """
        # in one order for all, so that no two wait for each other
        names = sorted({check_key(key)[:CLAIM_DIGITS] for key in keys})
        with contextlib.ExitStack() as stack:
            for name in names:
                lock = FileLock(self._folder / "claims" / name, mode=PRIVATE_FILE)
                stack.callback(lock.release)
                # whatever ails the folder, the entries can be made without
                with contextlib.suppress(Timeout, OSError, NotImplementedError):
                    make_private_folders(self._folder / "claims")
                    lock.acquire(timeout=CLAIM_S)
            yield

    def count(self, kind: str, step: UseCount) -> None:
        self._process.counts.add(kind, step)

    def uses(self) -> Mapping[str, UseCount]:
        return self._process.counts.read()

    def entries(self) -> Iterator[EntryInfo]:
        for entry in self._walk():
            yield EntryInfo(
                key=entry.path.name,
                kind=_kind_of(entry.path),
                size_bytes=entry.size_bytes,
                last_used_s=entry.last_used_s,
                location=str(entry.path),
            )

    def clear(self) -> int:
        found = list(self._walk())
        removed = sum(self._remove(entry.path) for entry in found)
        self._process.counts.forget()
        try:
            self._ledger.restart(self._temporary_folder(), 0)
        except OSError as error:
            self._write_failed(self._folder, error)
        return removed

    def stats(self) -> StoreStats:
        return self._tally.snapshot()

    def list_used_keys(self, *, since: int = 0) -> tuple[str, ...]:
        """Return the keys of entries that this process read or wrote, by whatever store object, in the order
        of their last use; `since` a `count_uses` alone.
        """
        uses = sorted((number, key) for key, number in dict(self._process.used).items())
        return tuple(key for number, key in uses if number > since)

    def count_uses(self) -> int:
        """Return how often this process has read or written an entry so far."""
        return self._process.count

    def _path(self, key: str) -> Path:
        return self._folder / check_key(key)[:2] / key

    def _read(self, key: str, path: Path) -> bytes:
        """Return the payload of the entry at `path`. Raises OSError and DamagedEntry."""
        with path.open("rb") as file:
            # The root was checked once; if it was removed since, somebody else may have made it anew.
            stranger = find_owner_problem(file.fileno())
            if stranger is not None:
                raise DamagedEntry(stranger)
            header = file.read(HEADER_BYTES)
            # A damaged length, or a file that grew without end, is no reason to run out of memory.
            rest_bytes = os.fstat(file.fileno()).st_size - len(header)
            payload = file.read() if rest_bytes <= self.max_bytes else b""
        return unseal(key, header, payload)

    def _temporary_folder(self) -> Path:
        self._temporary.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        return self._temporary

    def _write(self, path: Path, header: bytes, data: bytes) -> None:
        # Somebody may remove the whole cache while we run, or sweep what seems abandoned; that is no reason
        # to stop caching.
        try:
            self._write_once(path, header, data)
        except FileNotFoundError:
            self._write_once(path, header, data)

    def _write_once(self, path: Path, header: bytes, data: bytes) -> None:
        make_private_folders(path.parent)
        write_atomically(self._temporary_folder(), path, (header, data), durable=self._durable)

    def _write_failed(self, path: Path, error: OSError) -> None:
        self._tally.add(StoreStats(failures=1))
        if error.errno in _DISK_FULL:
            self.announcer.announce(CacheFullWarning(str(path), str(error)))
        else:
            self.announcer.announce(CacheUnavailableWarning(str(path), f"writing: {error}"), topic="write")

    def _remove(self, path: Path) -> bool:
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            self._tally.add(StoreStats(failures=1))
            self.announcer.announce(CacheUnavailableWarning(str(path), f"removing: {error}"), topic="remove")
            return False
        return True

    def _walk(self) -> Iterator[_Entry]:
        """Yield all entry files, by key. Those that vanish meanwhile are left out."""
        for shard in (folder for folder in list_files(self._folder) if len(folder.name) == 2):
            # Strangers' files (".DS_Store", "._…") are none of ours to list or to evict.
            for path in (path for path in list_files(shard) if is_key(path.name)):
                with contextlib.suppress(OSError):
                    found = path.stat()
                    yield _Entry(path=path, size_bytes=found.st_size, last_used_s=found.st_mtime)

    def _remove_unused(self) -> None:
        """Sweep, if that was not done within the last day, or the last `max_age_s`."""
        mark = self._folder / "aged"
        try:
            with contextlib.suppress(FileNotFoundError):
                if 0 <= time.time() - mark.stat().st_mtime < min(self.max_age_s, AGING_PERIOD_S):
                    return
            mark.touch(mode=PRIVATE_FILE)
            self._sweep()
        except OSError as error:
            self._write_failed(self._folder, error)

    def _sweep(self) -> None:
        """Evict what is too old, and the least recently used down to the low-water mark.

        If another process is at it, nothing is done.

        Raises OSError.
        """
        lock = FileLock(self._folder / "sweep.lock", mode=PRIVATE_FILE)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return
        except NotImplementedError as error:
            raise OSError(errno.ENOLCK, str(error)) from error
        try:
            remove_abandoned(self._temporary)
            mark = self._ledger.mark()
            found = sorted(map(_correct_time, self._walk()), key=lambda entry: entry.last_used_s)
            total_bytes = sum(entry.size_bytes for entry in found)
            goal_bytes = LOW_WATER * self.max_bytes if total_bytes > self.max_bytes else total_bytes
            oldest_s = time.time() - self.max_age_s if self.max_age_s > 0 else 0.0
            evicted = 0
            for entry in found:
                if total_bytes <= goal_bytes and entry.last_used_s >= oldest_s:
                    break
                if self._remove(entry.path):
                    evicted += 1
                    total_bytes -= entry.size_bytes
            self._ledger.restart(self._temporary_folder(), total_bytes, since=mark)
            self._tally.add(StoreStats(evicted=evicted))
        finally:
            lock.release()


def open_local_store(
    root: Path | None = None,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_age_s: float = 0.0,
    durable: bool = False,
) -> LocalStore | NullStore:
    """Return a LocalStore, or a NullStore and a warning where its root can't be trusted or used."""
    try:
        return LocalStore(root, max_bytes=max_bytes, max_age_s=max_age_s, durable=durable)
    except InsecureRootError as error:
        announce(InsecureRootWarning(error.subject, error.reason))
    except RootUnavailableError as error:
        announce(CacheUnavailableWarning(error.subject, error.reason))
    return NullStore()


class _ProcessRecord:
    """The state that all store objects of one process share for one folder.

    Each compilation opens the store anew, and its folder ails as it did before.
    """

    def __init__(self, root: Path) -> None:
        self.announcer = OnceAnnouncer()
        self.counts = UseCounts(root / LAYOUT / "counts")
        self.count = 0
        # The number of the last use of each key.
        self.used: dict[str, int] = {}

    def note_use(self, key: str) -> None:
        # two threads may give one number to two uses, which are in the same compilations then
        self.count += 1
        self.used[key] = self.count


@functools.cache
def _process_record(root: Path) -> _ProcessRecord:
    return _ProcessRecord(root)


def _correct_time(entry: _Entry) -> _Entry:
    """`entry`, used now if it says that it was used in the future: else it would never go."""
    now_s = time.time()
    if entry.last_used_s <= now_s + CLOCK_SLACK_S:
        return entry
    with contextlib.suppress(OSError):
        os.utime(entry.path)
    return replace(entry, last_used_s=now_s)


def _kind_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(HEADER_BYTES)
            return peek_kind(file.read(MAX_FRAME_BYTES))
    except OSError:
        return RAW_KIND
