"""Typed caches: one kind of value each, over any store.

`TypedCache` adds to a store the kind's own key space, a codec, and counters. An entry that is intact but does
not decode (another version wrote it, say) is treated like a damaged one: warning, removal, miss.

`KernelCache` holds built kernels and `TuningCache` what was measured of them; whoever builds and measures
says what a key is made of. `GraphCache` holds compiled graphs, whose kernels lie in a `KernelCache`, and
`TraceCache` has what a process needs to run them without tracing. `RemedyCache` remembers what helped around
a fault of the compiler: the graph itself is not kept, so each process meets the fault again, warns of it, and
tries first what helped before.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from coilwork_cache.codec import (
    Bundle,
    BundleCodec,
    BytesCodec,
    Codec,
    JsonCodec,
    JsonValue,
    MappedCodec,
    make_frame_head,
    strip_head,
)
from coilwork_cache.errors import (
    CacheCorruptionWarning,
    CodecError,
    UnencodableValueWarning,
    find_announcer,
)
from coilwork_cache.key import check_kind, content_key
from coilwork_cache.memory_store import NullStore
from coilwork_cache.store import (
    ClaimableStore,
    CountingStore,
    InspectableStore,
    Store,
    StoreStats,
    Tally,
    UseCount,
)

T = TypeVar("T")


class TypedCache(Generic[T]):
    """Values of type `T`, as entries of `kind`, in `store`."""

    def __init__(self, store: Store, *, kind: str, codec: Codec[T]) -> None:
        self.store = store
        self.kind = check_kind(kind)
        self._codec = codec
        self._tally = Tally()
        self._announcer = find_announcer(store)
        self._counting = store if isinstance(store, CountingStore) else None

    def key(self, *parts: str | bytes) -> str:
        """Return the key of the value that `parts` fully determine."""
        return content_key(self.kind, *parts)

    def get(self, key: str) -> T | None:
        """Return the value under `key`, or None."""
        data = self.store.get(key)
        if data is None:
            self._tally.miss()
            self._count(UseCount(misses=1))
            return None
        try:
            value = self._codec.decode(strip_head(data, self.kind, self._codec.name))
        except CodecError as error:
            self._tally.add(StoreStats(misses=1, corrupt=1))
            self._count(UseCount(misses=1))
            self.drop(key, error.reason)
            return None
        self._tally.hit(len(data))
        self._count(UseCount(hits=1))
        return value

    def put(self, key: str, value: T) -> None:
        """Store `value`; where its codec can't write it, warn and go on."""
        try:
            payload = self._codec.encode(value)
        except CodecError as error:
            self._tally.add(StoreStats(failures=1))
            warning = UnencodableValueWarning(f"{self.kind} entry {key}", error.reason)
            self._announcer.announce(warning, topic=self.kind)
            return
        data = make_frame_head(self.kind, self._codec.name) + payload
        self.store.put(key, data)
        self._tally.put(len(data))
        self._count(UseCount(puts=1))

    def get_or_make(self, key: str, make: Callable[[], T]) -> T:
        """Return the value under `key`; on a miss, what `make` returns, stored. Two threads may both make
        it.
        """
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def claim(self, *keys: str) -> AbstractContextManager[None]:
        """Let only one make the values under `keys` while it is entered, if the store can."""
        return self.store.claim(*keys) if isinstance(self.store, ClaimableStore) else nullcontext()

    def delete(self, key: str) -> None:
        self.store.delete(key)

    def drop(self, key: str, reason: str) -> None:
        """Remove the entry under `key`, which is damaged; the first one of this kind is warned of."""
        self.store.delete(key)
        self._count(UseCount(damaged=1))
        warning = CacheCorruptionWarning(f"{self.kind} entry {key}", reason)
        self._announcer.announce(warning, topic=self.kind)

    def contains(self, key: str) -> bool:
        return self.store.contains(key)

    def stats(self) -> StoreStats:
        """Counters of this view; the store's own also count its other users."""
        return self._tally.snapshot()

    def _count(self, step: UseCount) -> None:
        if self._counting is not None:
            self._counting.count(self.kind, step)


class KernelCache(TypedCache[bytes]):
    """Built kernels and extension modules. Without a store, nothing is kept."""

    def __init__(self, store: Store | None) -> None:
        super().__init__(NullStore() if store is None else store, kind="kernel", codec=BytesCodec())


class TuningCache(TypedCache[dict[str, JsonValue]]):
    """Measurements of kernels, as JSON objects. Without a store, nothing is kept."""

    def __init__(self, store: Store | None) -> None:
        super().__init__(NullStore() if store is None else store, kind="tuning", codec=JsonCodec())

    def list(self) -> Iterator[tuple[str, dict[str, JsonValue]]]:
        """Yield all records by key, of a store that can be listed."""
        if isinstance(self.store, InspectableStore):
            for entry in self.store.entries():
                record = self.get(entry.key) if entry.kind == self.kind else None
                if record is not None:
                    yield entry.key, record


# ---- graphs ----


_T = TypeVar("_T")
MOST_PART_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEntry:
    """The entry of a compiled graph.

    Attributes:
        module: text of the Python module, which people read.
        kernels: manifests and texts of its kernels, as bytes.
        program: the program as bytes.
        refusal: why the native executor refuses it, if it does.
        text: the program's canonical text, where a wrapper restores programs by it; else empty.
        roles: of its inputs and results, as text.
        constant_keys: names of the tensors that the program needs. Their contents are part of the key, and
            they are taken from the graph at hand.
        report: what the compiler says of the graph.
        lines: the user's source line of each call, which the other texts name.
        key_parts: what its key was made of, by name.
    """

    module: str
    kernels: bytes = b""
    program: bytes = b""
    refusal: str = ""
    text: str = ""
    roles: str = ""
    constant_keys: tuple[str, ...] = ()
    report: dict[str, JsonValue]
    lines: tuple[str, ...] = ()
    key_parts: Mapping[str, str] = field(default_factory=dict)

    def rename(self, texts: Callable[[str], str], *, program: bytes, kernels: bytes) -> GraphEntry:
        """Return the entry with other source lines: of `program` and `kernels`, and as `texts` changes all
        texts."""
        report = {name: _rename_value(value, texts) for name, value in self.report.items()}
        return replace(
            self,
            module=texts(self.module),
            kernels=kernels,
            program=program,
            refusal=texts(self.refusal),
            report=report,
            lines=tuple(map(texts, self.lines)),
        )


def _rename_value(value: JsonValue, texts: Callable[[str], str]) -> JsonValue:
    match value:
        case str():
            return texts(value)
        case list():
            return [_rename_value(item, texts) for item in value]
        case dict():
            return {name: _rename_value(item, texts) for name, item in value.items()}
        case _:
            return value


def _write_records(entry: GraphEntry) -> Bundle:
    records = {
        "module.py": entry.module.encode(),
        "kernels.bin": entry.kernels,
        "program.bin": entry.program,
        "refusal.txt": entry.refusal.encode(),
        "program.txt.z": zlib.compress(entry.text.encode()),
        "roles.txt": entry.roles.encode(),
        "report.json": json.dumps(entry.report).encode(),
        "constants.json": json.dumps(list(entry.constant_keys)).encode(),
        "lines.json": json.dumps(list(entry.lines)).encode(),
        "key_parts.json.z": zlib.compress(json.dumps(dict(entry.key_parts)).encode()),
    }
    return Bundle(records=records)


def _read_records(bundle: Bundle) -> GraphEntry:
    records = bundle.records
    report = json.loads(records["report.json"])
    if not isinstance(report, dict):
        raise TypeError("its report is no JSON object")
    return GraphEntry(
        module=records["module.py"].decode(),
        kernels=records["kernels.bin"],
        program=records["program.bin"],
        refusal=records["refusal.txt"].decode(),
        text=_unpack(records["program.txt.z"]).decode(),
        roles=records["roles.txt"].decode(),
        constant_keys=tuple(str(key) for key in json.loads(records["constants.json"])),
        report=report,
        lines=tuple(str(line) for line in json.loads(records["lines.json"])),
        key_parts=_read_parts(records["key_parts.json.z"]),
    )


def _unpack(data: bytes) -> bytes:
    """Return the bytes that were compressed, but no more than `MOST_PART_BYTES`: damaged ones may claim to be
    gigabytes."""
    try:
        return zlib.decompressobj().decompress(data, MOST_PART_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error


def _read_parts(data: bytes) -> dict[str, str]:
    parts = json.loads(_unpack(data))
    return {str(name): str(text) for name, text in parts.items()}


class GraphCache(TypedCache[GraphEntry]):
    """Whole compiled graphs, by canonical graph, targets, options and versions.

    Targets belong in the key, for caches that machines share, and so does the compiler's identity, so that an
    upgrade never meets old entries.
    """

    def __init__(self, store: Store) -> None:
        codec = MappedCodec(BundleCodec(), name="graph-6", flatten=_write_records, revive=_read_records)
        super().__init__(store, kind="graph", codec=codec)


class RemedyCache(TypedCache[dict[str, JsonValue]]):
    """Ways around faults, as JSON objects, by the graph's key in the graph cache."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, kind="remedy", codec=JsonCodec())


class TraceCache(TypedCache[dict[str, JsonValue]]):
    """Records of what tracing made of captured graphs, as JSON objects; their programs lie in a
    `GraphCache`."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, kind="trace", codec=JsonCodec())


@dataclass(frozen=True, slots=True)
class Entry(Generic[_T]):
    """One entry of a cache; without a key, of something that is not cached, nothing is read or kept."""

    cache: TypedCache[_T]
    key: str | None

    def read(self) -> _T | None:
        """Return the value, or None."""
        return None if self.key is None else self.cache.get(self.key)

    def write(self, value: _T) -> None:
        """Keep `value` under the key of this entry; do nothing if the entry has none."""
        if self.key is not None:
            self.cache.put(self.key, value)
