"""Work that several threads may ask for at the same time, done by the first and shared with the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from coilwork_runtime.threads import ForkedLock

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs at most one piece of work per key at a time. It remembers nothing afterwards."""

    def __init__(self) -> None:
        self._lock = ForkedLock()
        # results; None for those that were left out
        self._running: dict[str, Future[tuple[T] | None]] = {}
        self._process = os.getpid()

    def run(self, key: str, make: Callable[[], T]) -> T:
        """Return what `make` returns or raises, here or in the thread that is already at it."""
        mine: Future[tuple[T] | None] = Future()
        while (other := self._claim(key, mine)) is not mine:
            found = other.result()
            if found is not None:
                return found[0]
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
        made: Mapping[str, T] = {}
        try:
            made = make(tuple(mine)) if mine else {}
        finally:
            with self._lock:
                for key in mine:
                    self._running.pop(key, None)
            for key, claim in mine.items():
                claim.set_result((made[key],) if key in made else None)

    def _claim(self, key: str, mine: Future[tuple[T] | None]) -> Future[tuple[T] | None]:
        """Return who is at `key`: `mine` from now on if nobody was."""
        with self._lock:
            if self._process != os.getpid():
                # what threads of the parent's were at, nobody finishes in a forked child
                self._running, self._process = {}, os.getpid()
            return self._running.setdefault(key, mine)
