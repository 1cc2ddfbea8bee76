"""Warnings that a store issues at most once per reason, so that a full disk isn't reported per kernel."""

from __future__ import annotations

import warnings

from coilwork_cache.errors import CacheWarning
from coilwork_cache.locks import ForkedLock


class OnceAnnouncer:
    """Issues the first warning of each class and topic, and drops the rest."""

    def __init__(self) -> None:
        self._lock = ForkedLock()
        self._seen: set[tuple[type[CacheWarning], str]] = set()

    def once(self, warning: CacheWarning, *, topic: str = "") -> None:
        """Issue `warning`, unless one of its class was issued for `topic` before."""
        with self._lock:
            mark = (type(warning), topic)
            if mark in self._seen:
                return
            self._seen.add(mark)
        announce(warning, stacklevel=4)


def announce(warning: CacheWarning, *, stacklevel: int = 3) -> None:
    """Issue `warning`. `stacklevel` 3 points at the caller of the store's method."""
    warnings.warn(warning, stacklevel=stacklevel)
