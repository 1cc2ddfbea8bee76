"""Count how the entries of each kind are used, over all processes of one folder.

A process counts in memory and appends what is new to one file: after its first use of the store, then once a
second while it uses it, and at its end. A killed process loses the counts of its last second. A line of the
file is `KIND HITS SHARED_HITS MISSES PUTS DAMAGED`. A line that is no such line is skipped. A long file is
replaced by its sums.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from coilwork_cache.folder import BINARY_FLAG, PRIVATE_FILE
from coilwork_cache.key import is_kind
from coilwork_cache.store import ForkedLock, UseCount

# Seconds: what a killed process may lose, and how often one that compiles without end writes.
PERIOD_S: Final = 1.0
# From here on the file is summed up: some thousand lines, read in a millisecond.
LONGEST_BYTES: Final = 64 << 10


class UseCounts:
    """The counts of one folder, in the file `path`. Nothing that happens to the file raises or warns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = ForkedLock()
        self._process = os.getpid()
        self._pending: dict[str, UseCount] = {}
        self._written_s = float("-inf")
        atexit.register(self.flush)

    def add(self, kind: str, step: UseCount) -> None:
        """Add `step` to the counts of `kind`."""
        now_s = time.monotonic()
        with self._lock:
            pending = self._read_own_counts()
            pending[kind] = pending.get(kind, UseCount()) + step
            is_due = now_s - self._written_s >= PERIOD_S
        if is_due:
            self.flush()

    def flush(self) -> None:
        """Append what was counted since the last time."""
        with self._lock:
            pending = dict(self._read_own_counts())
            self._pending.clear()
            self._written_s = time.monotonic()
        if not pending:
            return
        with contextlib.suppress(OSError):
            if _append(self._path, pending) > LONGEST_BYTES:
                self._sum_up()

    def read(self) -> Mapping[str, UseCount]:
        """Return the counts by kind, of all processes so far."""
        self.flush()
        try:
            return _parse(self._path.read_bytes())
        except OSError:
            return {}

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self._pending.clear()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read_own_counts(self) -> dict[str, UseCount]:
        """Return what this process counted and did not write. A parent writes itself what it counted."""
        if self._process != os.getpid():
            self._process, self._pending = os.getpid(), {}
        return self._pending

    def _sum_up(self) -> None:
        """Replace the lines by their sums. Raises OSError, also if another process is at it."""
        taken = self._path.with_name(f"{self._path.name}-{secrets.token_hex(8)}")
        self._path.rename(taken)
        try:
            _append(self._path, _parse(taken.read_bytes()))
        finally:
            taken.unlink()


def _append(path: Path, counts: Mapping[str, UseCount]) -> int:
    """Append lines of `counts`; the size of the file afterwards. Raises OSError."""
    lines = "".join(
        f"{kind} {one.hits} {one.shared_hits} {one.misses} {one.puts} {one.damaged}\n"
        for kind, one in counts.items()
    )
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY_FLAG, PRIVATE_FILE)
    try:
        # one write, so that lines of two processes do not mix
        os.write(handle, lines.encode())
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _parse(data: bytes) -> dict[str, UseCount]:
    counts: dict[str, UseCount] = {}
    for line in data.decode(errors="replace").splitlines():
        kind, *numbers = line.split(" ")
        if is_kind(kind) and len(numbers) == 5 and all(one.isascii() and one.isdigit() for one in numbers):
            hits, shared_hits, misses, puts, damaged = map(int, numbers)
            step = UseCount(hits=hits, shared_hits=shared_hits, misses=misses, puts=puts, damaged=damaged)
            counts[kind] = counts.get(kind, UseCount()) + step
    return counts
