"""Locks of processes that fork."""

from __future__ import annotations

import os
import threading


class ForkedLock:
    """A lock that is free in a forked child, even if a thread of its parent's held it then: nobody would give
    it back there.
    """

    __slots__ = ("_by_process",)

    def __init__(self) -> None:
        self._by_process: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        process = os.getpid()
        lock = self._by_process.get(process)
        if lock is None:
            # atomic: all threads get the same one
            lock = self._by_process.setdefault(process, threading.Lock())
        lock.acquire()

    def __exit__(self, *_error: object) -> None:
        lock = self._by_process.get(os.getpid())
        # a thread that forked in between holds the lock of its parent's process, not of this one
        if lock is not None and lock.locked():
            lock.release()
