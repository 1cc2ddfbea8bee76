"""Codecs: values as bytes and back, without pickle, so that decoding data can't run code.

`Codec` is the contract; `BytesCodec`, `JsonCodec` and `BundleCodec` implement it. A bundle holds named byte
records with JSON metadata, for what consists of several files. A typed cache puts a frame in front of each
entry, which names the entry's kind and codec.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeAlias, TypeVar

from coilwork_cache.errors import CodecError
from coilwork_cache.folder import make_private_folders, write_atomically

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

T = TypeVar("T")
U = TypeVar("U")


class Codec(Protocol[T]):
    """Values of one type to bytes and back: `decode(encode(value)) == value`.

    Equal values give equal bytes. Neither direction may execute what it reads; pickle and marshal are out.
    """

    @property
    def name(self) -> str:
        """ASCII name with format version, such as "json-1". Entries of another name don't decode."""
        ...

    def encode(self, value: T) -> bytes:
        """Raises CodecError if `value` is not among what this codec documents."""
        ...

    def decode(self, data: bytes) -> T:
        """Raises CodecError, and nothing else, if `data` is not what `encode` writes."""
        ...


class BytesCodec:
    """Bytes as they are."""

    @property
    def name(self) -> str:
        return "bytes-1"

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class JsonCodec:
    """JSON objects: string keys, finite numbers. Tuples become lists; keys come back sorted."""

    @property
    def name(self) -> str:
        return "json-1"

    def encode(self, value: dict[str, JsonValue]) -> bytes:
        return dump_json(value)

    def decode(self, data: bytes) -> dict[str, JsonValue]:
        return load_json_object(data)


class MappedCodec(Generic[T, U]):
    """A codec for `T` by way of another codec's `U`; for example a dataclass by way of its JSON object.

    `revive` is given decoded but unchecked data. Where that lacks a field or has a wrong type it may raise
    KeyError, TypeError or ValueError, each of which counts as undecodable.
    """

    def __init__(
        self, inner: Codec[U], *, name: str, flatten: Callable[[T], U], revive: Callable[[U], T]
    ) -> None:
        self._inner = inner
        self._name = f"{name}/{inner.name}"
        self._flatten = flatten
        self._revive = revive

    @property
    def name(self) -> str:
        return self._name

    def encode(self, value: T) -> bytes:
        return self._inner.encode(self._flatten(value))

    def decode(self, data: bytes) -> T:
        flat = self._inner.decode(data)
        try:
            return self._revive(flat)
        except (KeyError, TypeError, ValueError) as error:
            raise CodecError(self._name, f"{type(error).__name__}: {error}") from error


def dump_json(value: object) -> bytes:
    """Canonical JSON: sorted keys, no spaces, ASCII. Raises CodecError for what JSON can't hold."""
    _check_string_keys(value)
    try:
        return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(type(value).__name__, f"not JSON: {error}") from error


def load_json_object(data: bytes) -> dict[str, JsonValue]:
    """Return the JSON object in `data`. Raises CodecError for anything else, NaN and infinity included."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CodecError("JSON", f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CodecError("JSON", f"an object is expected, not {type(value).__name__}")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _check_string_keys(value: object) -> None:
    # json.dumps would turn the key 1 into "1", and the value would come back different. An explicit stack,
    # since depth is the encoder's to judge.
    stack: list[object] = [value]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if not isinstance(item, dict | list | tuple) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise CodecError(type(item).__name__, f"key {key!r} is not a string")
            stack.extend(item.values())
        else:
            stack.extend(item)


# ---- bundles ----


BUNDLE_MAGIC = b"COILBNDL"
BUNDLE_FORMAT = 1
_BUNDLE_HEAD = struct.Struct("<8sIQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Records by name and metadata. Neither mapping may be changed once it is here.

    Invariant: a name is a relative path in POSIX spelling, without empty parts, `.` or `..`, so that a record
    can be written below a folder. Raises CodecError otherwise.
    """

    records: Mapping[str, bytes]
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.records:
            _check_name(name)


class BundleCodec:
    """Bundles as bytes: magic b"COILBNDL", format version (4 bytes), header length (8), header, records.

    Integers are little-endian. The header is {"metadata": {…}, "records": [[name, length in bytes], …]} in
    JSON, records sorted by name. Every byte is accounted for, so a bundle that decodes is complete.
    """

    @property
    def name(self) -> str:
        return f"bundle-{BUNDLE_FORMAT}"

    def encode(self, value: Bundle) -> bytes:
        names = sorted(value.records)
        listing = [[name, len(value.records[name])] for name in names]
        header = dump_json({"metadata": dict(value.metadata), "records": listing})
        head = _BUNDLE_HEAD.pack(BUNDLE_MAGIC, BUNDLE_FORMAT, len(header))
        return b"".join([head, header, *(value.records[name] for name in names)])

    def decode(self, data: bytes) -> Bundle:
        if len(data) < _BUNDLE_HEAD.size:
            raise CodecError("bundle", f"truncated: {len(data)} of {_BUNDLE_HEAD.size} leading bytes")
        magic, version, header_bytes = _BUNDLE_HEAD.unpack_from(data)
        if magic != BUNDLE_MAGIC or version != BUNDLE_FORMAT:
            raise CodecError("bundle", f"starts with {magic!r} version {version}")
        at = _BUNDLE_HEAD.size + header_bytes
        if at > len(data):
            raise CodecError("bundle", f"truncated within its header of {header_bytes} bytes")
        header = load_json_object(data[_BUNDLE_HEAD.size : at])
        metadata = header.get("metadata")
        if not isinstance(metadata, dict):
            raise CodecError("bundle", "its header has no metadata")
        records: dict[str, bytes] = {}
        for name, size_bytes in _list_records(header.get("records")):
            if name in records:
                raise CodecError("bundle", f"record {name!r} occurs twice")
            if at + size_bytes > len(data):
                raise CodecError("bundle", f"truncated within record {name!r}")
            records[name] = data[at : at + size_bytes]
            at += size_bytes
        if at != len(data):
            raise CodecError("bundle", f"{len(data) - at} bytes after the last record")
        return Bundle(records=records, metadata=metadata)


def extract(bundle: Bundle, folder: Path, *, prefix: str = "") -> dict[str, Path]:
    """Write the records whose names start with `prefix` below `folder`; their paths by name.

    Each file appears complete or not at all, readable by this user alone; an existing one is replaced.
    Raises OSError.
    """
    written: dict[str, Path] = {}
    for name in sorted(bundle.records):
        if not name.startswith(prefix):
            continue
        path = folder.joinpath(*name.split("/"))
        make_private_folders(path.parent)
        write_atomically(path.parent, path, (bundle.records[name],), durable=False)
        written[name] = path
    return written


def _list_records(value: JsonValue) -> list[tuple[str, int]]:
    if not isinstance(value, list):
        raise CodecError("bundle", "its header lists no records")
    listing: list[tuple[str, int]] = []
    for row in value:
        match row:
            case [str() as name, int() as size_bytes] if not isinstance(size_bytes, bool) and size_bytes >= 0:
                listing.append((name, size_bytes))
            case _:
                raise CodecError("bundle", f"malformed record {row!r}")
    return listing


def _check_name(name: str) -> None:
    parts = name.split("/")
    # The colon and the backslash would leave the folder on Windows.
    if any(part in ("", ".", "..") for part in parts) or any(char in name for char in "\\:\0"):
        raise CodecError("bundle", f"record name {name!r} is not a plain relative path")


# ---- frames ----

# b"COILVAL\n", version (1 byte), then kind and codec name, each as one length byte and ASCII text. Listings
# read the kind from here; a typed cache refuses entries of another kind or codec.
FRAME_MAGIC = b"COILVAL\n"
FRAME_FORMAT = 1
MAX_FRAME_BYTES = len(FRAME_MAGIC) + 1 + 2 * 256
RAW_KIND = "raw"


def make_frame_head(kind: str, codec: str) -> bytes:
    """Return the head for entries of `kind` written by `codec`; both are ASCII of at most 255 characters."""
    head = FRAME_MAGIC + bytes([FRAME_FORMAT])
    for name in (kind, codec):
        text = name.encode("ascii")
        head += bytes([len(text)]) + text
    return head


def strip_head(data: bytes, kind: str, codec: str) -> bytes:
    """Return the bytes behind the head; CodecError if the head is not exactly that of `kind` and `codec`."""
    head = make_frame_head(kind, codec)
    if not data.startswith(head):
        raise CodecError(f"{kind} entry", f"its head is not that of kind {kind!r} written by codec {codec!r}")
    return data[len(head) :]


def peek_kind(start: bytes) -> str:
    """Return the kind named in an entry's first bytes, or "raw" if no typed cache wrote it."""
    at = len(FRAME_MAGIC) + 1
    if not start.startswith(FRAME_MAGIC) or len(start) <= at:
        return RAW_KIND
    text = start[at + 1 : at + 1 + start[at]]
    return text.decode("ascii") if text and text.isascii() else RAW_KIND
