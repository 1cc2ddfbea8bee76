"""How much a store's folder holds, known without walking it.

The ledger is a file of signed 64-bit records, one appended per write of an entry; their sum is the size. A
walk replaces those from before it with a single exact record. Overwritten entries, and what was written
during a walk, are counted twice, and a record may get lost while the file is replaced: the sum is an estimate
that decides *when* to walk, never what is in the store.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from coilwork_cache.folder import BINARY_FLAG, PRIVATE_FILE, write_atomically

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
