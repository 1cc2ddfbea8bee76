"""A bundle: named byte records with JSON metadata, for what consists of several files.

A compiled graph, for instance, is `program` and `kernel/<name>.so`. The encoding is

    magic b"COILBNDL", format version (4 bytes), header length (8 bytes), header, records one after another

with little-endian integers and the header {"metadata": {…}, "records": [[name, length in bytes], …]} in JSON,
records sorted by name. Every byte is accounted for, so a bundle that decodes is complete.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coilwork_cache.codec import JsonValue, dump_json, load_json_object
from coilwork_cache.errors import CodecError
from coilwork_cache.folder import make_private_folders, write_atomically

MAGIC = b"COILBNDL"
BUNDLE_FORMAT = 1
_HEAD = struct.Struct("<8sIQ")


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
    """Bundles, as this module's docstring lays them out."""

    @property
    def name(self) -> str:
        return f"bundle-{BUNDLE_FORMAT}"

    def encode(self, value: Bundle) -> bytes:
        names = sorted(value.records)
        listing = [[name, len(value.records[name])] for name in names]
        header = dump_json({"metadata": dict(value.metadata), "records": listing})
        head = _HEAD.pack(MAGIC, BUNDLE_FORMAT, len(header))
        return b"".join([head, header, *(value.records[name] for name in names)])

    def decode(self, data: bytes) -> Bundle:
        if len(data) < _HEAD.size:
            raise CodecError("bundle", f"truncated: {len(data)} of {_HEAD.size} leading bytes")
        magic, version, header_bytes = _HEAD.unpack_from(data)
        if magic != MAGIC or version != BUNDLE_FORMAT:
            raise CodecError("bundle", f"starts with {magic!r} version {version}")
        at = _HEAD.size + header_bytes
        if at > len(data):
            raise CodecError("bundle", f"truncated within its header of {header_bytes} bytes")
        header = load_json_object(data[_HEAD.size : at])
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
