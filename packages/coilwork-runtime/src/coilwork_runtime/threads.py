"""Threads and locks in every state of a process: one whose main thread has ended, one that forks.

Imports nothing of torch's or ours, since a wheel is built without them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """Threads that work is given to while it is entered; work is done at once where there can be none.

    That is when the interpreter shuts down: once the main thread has ended, others may go on for long, and
    so may functions that were registered with `atexit`, but Python starts no threads any more.
    """

    def __init__(self, most: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=most, thread_name_prefix=name)
        self._alone = False

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        # an interrupt waits for what is at work, but nothing else is begun
        self._pool.shutdown(cancel_futures=kind is not None and not issubclass(kind, Exception))

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Begin `function` of `args`; returns the future of its result."""
        if not self._alone and threading.main_thread().is_alive():
            try:
                return self._pool.submit(function, *args)
            except RuntimeError:
                # the main thread has just ended
                self._alone = True
        done: Future[T] = Future()
        try:
            done.set_result(function(*args))
        # whatever is raised is for the one who asks for the result
        except BaseException as error:
            done.set_exception(error)
            if not isinstance(error, Exception):
                raise
        return done

    def map(self, function: Callable[[Any], T], items: Iterable[Any]) -> Iterable[T]:
        """`function` of each item, in order."""
        pending = [self.submit(function, item) for item in items]
        return (one.result() for one in pending)


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
