"""Threads and locks that work in every state of a process, and work that threads share.

`Threads` runs work at once where Python starts no threads any more, `ForkedLock` is free in a forked child,
and `SingleFlight` does work once that several threads ask for at the same time. The build of a wheel imports
this module, so it needs neither torch nor another package.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

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


# ---- single flight ----


class SingleFlight(Generic[T]):
    """Runs at most one piece of work per key at a time. It remembers nothing afterwards."""

    def __init__(self) -> None:
        self._lock = ForkedLock()
        # results; None for those that were left out
        self._running: dict[str, Future[tuple[T] | None]] = {}
        self._process = os.getpid()

    def run(self, key: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, which runs here or in the thread that is already at it."""
        mine: Future[tuple[T] | None] = Future()
        while (other := self._claim(key, mine)) is not mine:
            answer = other.result()
            if answer is not None:
                return answer[0]
        try:
            value = make()
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result((value,))
            return value
        finally:
            with self._lock:
                self._running.pop(key, None)

    def run_for(self, keys: Iterable[str], make: Callable[[Sequence[str]], Mapping[str, T]]) -> None:
        """Run `make` for those of `keys` that no other thread is at. What it leaves out, or if it raises, is
        for `run` to make.
        """
        claims: dict[str, Future[tuple[T] | None]] = {key: Future() for key in keys}
        mine = {key: claim for key, claim in claims.items() if self._claim(key, claim) is claim}
        results: Mapping[str, T] = {}
        try:
            results = make(tuple(mine)) if mine else {}
        finally:
            with self._lock:
                for key in mine:
                    self._running.pop(key, None)
            for key, claim in mine.items():
                claim.set_result((results[key],) if key in results else None)

    def _claim(self, key: str, mine: Future[tuple[T] | None]) -> Future[tuple[T] | None]:
        """Return the claim on `key`: `mine` from now on if there was none."""
        with self._lock:
            if self._process != os.getpid():
                # what threads of the parent's were at, nobody finishes in a forked child
                self._running, self._process = {}, os.getpid()
            return self._running.setdefault(key, mine)
