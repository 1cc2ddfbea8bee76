"""The archive of a package: a zip file of plain records, in one canonical form.

Every byte of the file is either a record's, and has a hash in the manifest, or follows from the records'
names, sizes and checksums. The reader computes these bytes as the writer does and compares, so it accepts
exactly what `write_archive` writes. Records are never compressed and never unpacked to disk.

The layout of zip files: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central
directory), 4.3.14 to 4.3.16 (ends of it, zip64).
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from coilwork_aot.errors import PackageError

ALIGNMENT_BYTES: Final = 64
MOST_RECORDS: Final = 65_000
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64: Final = struct.Struct("<4sLQL")
_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END_64_MAGIC, _LOCATOR_MAGIC = b"PK\x06\x06", b"PK\x06\x07"
_FULL_32, _FULL_16 = 0xFFFF_FFFF, 0xFFFF
# 1 January 1980, midnight, so that equal contents give equal files.
_TIME, _DATE = 0, 0x21
_VERSION: Final = 45
_MODE: Final = (stat.S_IFREG | 0o644) << 16
# Extra fields: sizes of 64 bits (4.5.3), and padding, as Android's zipalign writes it.
_SIZES_64, _PADDING = 0x0001, 0xD935
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of an archive, as its headers describe it. `data_at` is where its bytes begin in the file."""

    name: str
    size: int
    crc: int
    header_at: int

    @property
    def local_header(self) -> bytes:
        """The header before the bytes, whose padding aligns them."""
        name = self.name.encode()
        sizes = struct.pack("<2H2Q", _SIZES_64, 16, self.size, self.size)
        end = self.header_at + _LOCAL.size + len(name) + len(sizes) + 4
        padding = -end % ALIGNMENT_BYTES
        extra = sizes + struct.pack("<2H", _PADDING, padding) + bytes(padding)
        head = _LOCAL.pack(
            _LOCAL_MAGIC, _VERSION, 0, 0, _TIME, _DATE, self.crc, _FULL_32, _FULL_32, len(name), len(extra)
        )
        return head + name + extra

    @property
    def data_at(self) -> int:
        return self.header_at + len(self.local_header)

    @property
    def end(self) -> int:
        return self.data_at + self.size

    @property
    def central_header(self) -> bytes:
        """The header in the directory at the end of the file."""
        name = self.name.encode()
        extra = struct.pack("<2H3Q", _SIZES_64, 24, self.size, self.size, self.header_at)
        head = _CENTRAL.pack(
            _CENTRAL_MAGIC,
            0x0300 | _VERSION,
            _VERSION,
            0,
            0,
            _TIME,
            _DATE,
            self.crc,
            _FULL_32,
            _FULL_32,
            len(name),
            len(extra),
            0,
            0,
            0,
            _MODE,
            _FULL_32,
        )
        return head + name + extra


def _encode_end(records: Sequence[Record], directory: bytes, at: int) -> bytes:
    count = len(records)
    end_64 = _END_64.pack(
        _END_64_MAGIC, _END_64.size - 12, _VERSION, _VERSION, 0, 0, count, count, len(directory), at
    )
    locator = _LOCATOR_64.pack(_LOCATOR_MAGIC, 0, at + len(directory), 1)
    end = _END.pack(_END_MAGIC, 0, 0, _FULL_16, _FULL_16, _FULL_32, _FULL_32, 0)
    return end_64 + locator + end


Parts: TypeAlias = Sequence[bytes | memoryview]
"""The bytes of a record, in parts that follow each other, so that weights need no copy."""
_TAIL_BYTES: Final = _END_64.size + _LOCATOR_64.size + _END.size

# ---- Writing ----


def write_archive(path: Path, contents: Mapping[str, Parts]) -> None:
    """Write the records in the order of `contents`; the file appears complete or not at all.

    Raises:
        PackageError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        try:
            with open(partial, "wb") as file:
                for part in _encode(contents):
                    file.write(part)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise PackageError(
            "unwritable",
            f"the package {path} cannot be written",
            reason=str(error),
            remedy="choose a folder that exists, is yours, and has space",
        ) from error


def encode_archive(contents: Mapping[str, Parts]) -> bytes:
    """Return the bytes that `write_archive` writes."""
    return b"".join(_encode(contents))


def _encode(contents: Mapping[str, Parts]) -> Iterator[bytes | memoryview]:
    records: list[Record] = []
    at = 0
    for name, parts in contents.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a record")
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        record = Record(name=name, size=sum(map(len, parts)), crc=crc, header_at=at)
        records.append(record)
        at = record.end
        yield record.local_header
        yield from parts
    directory = b"".join(record.central_header for record in records)
    yield directory
    yield _encode_end(records, directory, at)


# ---- Reading ----


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive whose headers are verified, and its bytes, which nobody else writes to."""

    records: Mapping[str, Record]
    memory: mmap.mmap | bytearray

    def view(self, name: str) -> memoryview:
        """Return the bytes of a record, without a copy."""
        record = self.records[name]
        return memoryview(self.memory)[record.data_at : record.end]

    def read(self, name: str) -> bytes:
        """Return a copy of a record's bytes."""
        return bytes(self.view(name))


def read_archive(path: Path) -> Archive:
    """Map the file, and verify its headers.

    Raises:
        PackageError: it is no archive, is damaged, or holds what no package holds.
    """
    memory = map_file(path)
    return Archive(records=read_headers(memory, str(path)), memory=memory)


def map_file(path: Path) -> mmap.mmap:
    """Map a regular file. This process has its own copy of what it writes to the memory.

    Raises:
        PackageError: the file cannot be read, or is empty.
    """
    try:
        # not to wait for who writes to a pipe
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError("it is no regular file")
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise PackageError(
            "unreadable", f"{path} cannot be read", reason=str(error), remedy="check the path"
        ) from error


def read_headers(memory: Any, name: str) -> dict[str, Record]:
    """Return the records of the archive in `memory`, bytes or mapped ones. `name` is for messages.

    Raises:
        PackageError: as `read_archive`.
    """
    return _HeaderReader(memoryview(memory), name).read()


class _HeaderReader:
    def __init__(self, data: memoryview, name: str) -> None:
        self._data = data
        self._name = name

    def read(self) -> dict[str, Record]:
        if bytes(self._data[:4]) != _LOCAL_MAGIC:
            raise self._make_error("not-a-package", "it does not begin like an archive")
        at, size, count = self._read_end()
        records = self._read_directory(at, size, count)
        expected = 0
        for record in records:
            if record.header_at != expected:
                raise self._make_error(
                    "overlapping-records", f"record {record.name} is not behind the one before"
                )
            if record.end > at:
                raise self._make_error("oversized-record", f"record {record.name} reaches beyond the records")
            header = record.local_header
            if self._data[record.header_at : record.data_at] != header:
                raise self._make_error(
                    "damaged-header", f"the header of record {record.name} is not canonical"
                )
            expected = record.end
        if expected != at:
            raise self._make_error("overlapping-records", "there is a gap behind the last record")
        directory = b"".join(record.central_header for record in records)
        if self._data[at:] != directory + _encode_end(records, directory, at):
            raise self._make_error("damaged-header", "the directory is not canonical")
        return {record.name: record for record in records}

    def _read_end(self) -> tuple[int, int, int]:
        """Return where the directory begins, its size, and the number of its records."""
        total = len(self._data)
        if total < _TAIL_BYTES:
            raise self._make_error("truncated", "it ends too early")
        fields = _END_64.unpack_from(self._data, total - _TAIL_BYTES)
        if fields[0] != _END_64_MAGIC or bytes(self._data[-_END.size :][:4]) != _END_MAGIC:
            raise self._make_error("truncated", "it does not end like a package")
        count, size, at = fields[7], fields[8], fields[9]
        if count > MOST_RECORDS:
            raise self._make_error("oversized-record", f"it says that it has {count} records")
        if at + size + _TAIL_BYTES != total:
            raise self._make_error("truncated", "its directory is not where it says")
        return at, size, count

    def _read_directory(self, at: int, size: int, count: int) -> list[Record]:
        records: list[Record] = []
        names: set[str] = set()
        end = at + size
        for _ in range(count):
            if at + _CENTRAL.size > end:
                raise self._make_error("truncated", "its directory ends too early")
            fields = _CENTRAL.unpack_from(self._data, at)
            name_size, extra_size, comment_size = fields[10:13]
            here = at + _CENTRAL.size
            at = here + name_size + extra_size + comment_size
            if fields[0] != _CENTRAL_MAGIC or at > end:
                raise self._make_error("damaged-header", "an entry of the directory is damaged")
            name = self._check_name(bytes(self._data[here : here + name_size]))
            self._check_kind(name, fields)
            extra = self._data[here + name_size : here + name_size + extra_size]
            if len(extra) != 28 or struct.unpack_from("<2H", extra) != (_SIZES_64, 24):
                raise self._make_error("damaged-header", f"record {name} has no sizes of 64 bits")
            stored, plain, header_at = struct.unpack_from("<3Q", extra, 4)
            if stored != plain:
                raise self._make_error("compressed-record", f"record {name} unpacks to another size")
            if header_at + plain > len(self._data):
                raise self._make_error("oversized-record", f"record {name} is larger than the file")
            if name in names:
                raise self._make_error("duplicate-record", f"there are two records {name}")
            names.add(name)
            records.append(Record(name=name, size=plain, crc=fields[7], header_at=header_at))
        if at != end:
            raise self._make_error("damaged-header", "something follows the last entry of the directory")
        return records

    def _check_name(self, raw: bytes) -> str:
        name = raw.decode("ascii", "backslashreplace")
        if not _NAME.fullmatch(name):
            raise self._make_error("unsafe-path", f"a record is called {name[:200]!r}")
        return name

    def _check_kind(self, name: str, fields: tuple[Any, ...]) -> None:
        flags, method, mode = fields[3], fields[4], fields[15] >> 16
        if method or flags:
            raise self._make_error("compressed-record", f"record {name} is compressed, encrypted or streamed")
        if stat.S_IFMT(mode) != stat.S_IFREG:
            raise self._make_error("symlink-record", f"record {name} is no regular file")

    def _make_error(self, code: str, reason: str) -> PackageError:
        return PackageError(
            code, f"{self._name} is no intact package", reason=reason, remedy="copy or export it again"
        )
