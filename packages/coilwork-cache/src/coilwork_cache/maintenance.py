"""List, verify, clear, export and import the entries of a store: functions behind the command line.

An archive is a zip of one member per entry, named by its key, after `manifest.json`: {"format": 1, "entries":
[{"key": …, "size_bytes": …, "sha256": …}, …]}. Import checks all of it before it stores anything. The
checksums find damage, not malice: import only archives from people whose programs you would run.
"""

from __future__ import annotations

import difflib
import hashlib
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from coilwork_cache.codec import JsonValue, dump_json, load_json_object
from coilwork_cache.errors import ArchiveError, CodecError, InvalidKeyError
from coilwork_cache.key import check_key
from coilwork_cache.local_store import LocalStore
from coilwork_cache.store import CountingStore, EntryInfo, InspectableStore, Store, StoreStats, UseCount
from coilwork_cache.typed_cache import GraphCache

# ---- reports ----


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTotal:
    """All entries of one kind together."""

    kind: str
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """A store at one moment. `stats` are the counters of the store object that was asked, `uses` those of all
    processes by kind, where the store keeps such."""

    entries: tuple[EntryInfo, ...]
    kinds: tuple[KindTotal, ...]  # sorted by name
    size_bytes: int
    stats: StoreStats
    uses: Mapping[str, UseCount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Outcome of reading every entry. `problems` holds one message per entry that was not intact."""

    intact: int
    problems: tuple[str, ...]


def describe(store: InspectableStore) -> StoreReport:
    """List `store` without touching the order of eviction."""
    entries = tuple(store.entries())
    kinds = tuple(
        KindTotal(
            kind=kind,
            entries=sum(entry.kind == kind for entry in entries),
            size_bytes=sum(entry.size_bytes for entry in entries if entry.kind == kind),
        )
        for kind in sorted({entry.kind for entry in entries})
    )
    size_bytes = sum(entry.size_bytes for entry in entries)
    uses = store.uses() if isinstance(store, CountingStore) else {}
    return StoreReport(entries=entries, kinds=kinds, size_bytes=size_bytes, stats=store.stats(), uses=uses)


def clear(store: InspectableStore, *, kind: str | None = None) -> int:
    """Remove the entries of `kind`, or all; how many went."""
    if kind is None:
        return store.clear()
    chosen = [entry.key for entry in store.entries() if entry.kind == kind]
    for key in chosen:
        store.delete(key)
    return len(chosen)


def verify(store: InspectableStore) -> VerifyReport:
    """Read every entry. Damaged ones are removed, as any `get` would. No use of the entries."""
    found = [store.check(entry.key) for entry in list(store.entries())]
    problems = tuple(problem for problem in found if problem is not None)
    return VerifyReport(intact=len(found) - len(problems), problems=problems)


# ---- differences ----


def find_key(store: InspectableStore, start: str) -> str:
    """Return the only key in `store` that begins with `start`.

    Raises InvalidKeyError if there is none, or there are several.
    """
    found = [entry.key for entry in store.entries() if entry.key.startswith(start)]
    if len(found) != 1:
        reason = f"{len(found)} entries have keys that begin so; `coilwork cache ls` lists them"
        raise InvalidKeyError(start, reason)
    return found[0]


def compare_graphs(store: InspectableStore, one: str, other: str) -> list[str]:
    """Return what differs between the keys of two compiled graphs, in lines as of a diff.

    Raises InvalidKeyError if a key is that of no graph.
    """
    parts = []
    for key in (one, other):
        entry = GraphCache(store).get(key)
        if entry is None:
            raise InvalidKeyError(key, "there is no such graph in the cache")
        parts.append(entry.key_parts)
    lines = []
    for name in dict.fromkeys([*parts[0], *parts[1]]):
        before, after = (part.get(name, "").splitlines() for part in parts)
        if before == after:
            lines.append(f"{name}: equal")
            continue
        lines.append(f"{name}: different")
        changes = difflib.unified_diff(before, after, n=0, lineterm="")
        lines += [f"  {line}" for line in changes if not line.startswith(("---", "+++", "@@"))]
    return lines


# ---- archives ----


ARCHIVE_FORMAT = 1
MANIFEST = "manifest.json"
# The manifest is read before anything vouches for its size.
MAX_MANIFEST_BYTES = 256 << 20
# Equal entries give equal archives, so members carry no time of their own (zip's earliest).
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
# What zipfile is known to raise on damaged files; offsets beyond the file surface as OSError and ValueError.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """The amount that was exported or imported; `size_bytes` counts payloads before compression."""

    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    key: str
    size_bytes: int
    sha256: str


def export_archive(
    store: InspectableStore, path: Path, *, keys: Iterable[str] | None = None
) -> ArchiveReport:
    """Write the entries under `keys`, or all, to the file `path`. Entries that miss meanwhile are left out.

    The file appears complete or not at all. Raises OSError, and InvalidKeyError for malformed keys.
    """
    wanted = sorted({entry.key for entry in store.entries()} if keys is None else set(keys))
    members: list[_Member] = []
    with TemporaryDirectory(dir=path.absolute().parent, prefix=".coilwork-export-") as folder:
        temporary = Path(folder) / "archive"
        with zipfile.ZipFile(temporary, "w") as archive:
            for key in wanted:
                data = store.get(key)
                if data is None:
                    continue
                digest = hashlib.sha256(data).hexdigest()
                members.append(_Member(key=key, size_bytes=len(data), sha256=digest))
                _add(archive, key, data)
            rows = [{"key": m.key, "size_bytes": m.size_bytes, "sha256": m.sha256} for m in members]
            _add(archive, MANIFEST, dump_json({"format": ARCHIVE_FORMAT, "entries": rows}))
        temporary.replace(path)
    return _report(members)


def save(path: str | Path, *, folder: str | Path | None = None, everything: bool = False) -> ArchiveReport:
    """Write what this process compiled or took from the cache to the file `path`, from which `load` makes
    another machine start warm.

    `folder` is that of the cache; default: the platform's user cache folder, or COILWORK_CACHE_DIR. With
    `everything`, all of its entries are written. Raises OSError, and as `LocalStore` does.
    """
    store = LocalStore(None if folder is None else Path(folder))
    return export_archive(store, Path(path), keys=None if everything else store.list_used_keys())


def load(path: str | Path, *, folder: str | Path | None = None) -> ArchiveReport:
    """Add what `save` wrote to the cache in `folder`, as there. The file holds code that will run: load only
    what you would run.

    Raises ArchiveError if any part of the file is damaged, before anything is stored; OSError if it can't be
    opened.
    """
    return import_archive(LocalStore(None if folder is None else Path(folder)), Path(path))


def import_archive(store: Store, path: Path) -> ArchiveReport:
    """Put all entries of the archive at `path` into `store`, over those it has.

    Raises ArchiveError if any part of the file is damaged, before anything is stored; OSError if it
    can't be opened.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = _read_manifest(archive, path)
                # Once to check everything, once to store: an archive may be larger than memory.
                for member in members:
                    _read_member(archive, path, member)
                for member in members:
                    store.put(member.key, _read_member(archive, path, member))
        except ArchiveError:
            raise
        except _DAMAGE as error:
            raise ArchiveError(str(path), f"{type(error).__name__}: {error}") from error
    return _report(members)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=_TIMESTAMP)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o600 << 16
    archive.writestr(info, data)


def _read_manifest(archive: zipfile.ZipFile, path: Path) -> list[_Member]:
    names = archive.namelist()
    if MANIFEST not in names:
        raise ArchiveError(str(path), f"it has no {MANIFEST}")
    if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
        raise ArchiveError(str(path), f"its {MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        manifest = load_json_object(archive.read(MANIFEST))
    except CodecError as error:
        raise ArchiveError(str(path), f"{MANIFEST}: {error.reason}") from error
    if manifest.get("format") != ARCHIVE_FORMAT:
        raise ArchiveError(str(path), f"format {manifest.get('format')!r}, expected {ARCHIVE_FORMAT}")
    rows = manifest.get("entries")
    if not isinstance(rows, list):
        raise ArchiveError(str(path), f"{MANIFEST} lists no entries")
    members = [_member(row, path) for row in rows]
    if sorted(names) != sorted([MANIFEST, *(member.key for member in members)]):
        raise ArchiveError(str(path), f"its members are not those that {MANIFEST} lists")
    return members


def _member(row: JsonValue, path: Path) -> _Member:
    match row:
        case {"key": str() as key, "size_bytes": int() as size_bytes, "sha256": str() as sha256}:
            try:
                return _Member(key=check_key(key), size_bytes=size_bytes, sha256=sha256)
            except InvalidKeyError as error:
                raise ArchiveError(str(path), f"{error.subject}: {error.reason}") from error
        case _:
            raise ArchiveError(str(path), f"malformed entry {row!r} in {MANIFEST}")


def _read_member(archive: zipfile.ZipFile, path: Path, member: _Member) -> bytes:
    info = archive.getinfo(member.key)
    # Before unpacking: a few kilobytes may claim to be gigabytes.
    if info.file_size != member.size_bytes:
        raise ArchiveError(
            str(path), f"entry {member.key}: {info.file_size} bytes, expected {member.size_bytes}"
        )
    with archive.open(info) as file:
        data = file.read(member.size_bytes + 1)
    if len(data) != member.size_bytes or hashlib.sha256(data).hexdigest() != member.sha256:
        raise ArchiveError(str(path), f"entry {member.key}: checksum does not match")
    return data


def _report(members: list[_Member]) -> ArchiveReport:
    return ArchiveReport(entries=len(members), size_bytes=sum(member.size_bytes for member in members))
