"""Work that several threads may ask for at the same time, done by the first and shared with the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs at most one piece of work per key at a time. It remembers nothing afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[T]] = {}

    def run(self, key: str, make: Callable[[], T]) -> T:
        """What `make` returns or raises, here or in the thread that is already at it."""
        with self._lock:
            other = self._running.get(key)
            mine: Future[T] = Future()
            if other is None:
                self._running[key] = mine
        if other is not None:
            return other.result()
        try:
            value = make()
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(value)
            return value
        finally:
            with self._lock:
                del self._running[key]
