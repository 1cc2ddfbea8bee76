"""A fast store in front of a slow one: memory before disk, and local disk before a Redis server that machines
share, as a compiler opens them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from coilwork_cache.codec import MAX_FRAME_BYTES, peek_kind
from coilwork_cache.errors import InvalidSettingError, OnceAnnouncer, find_announcer
from coilwork_cache.local_store import Limits, open_local_store
from coilwork_cache.store import (
    ClaimableStore,
    CountingStore,
    EntryInfo,
    InspectableStore,
    Store,
    StoreStats,
    Tally,
    UseCount,
)


class TieredStore:
    """Reads `fast` first, then `slow`, and copies what `slow` had into `fast`. Writes and deletes reach both.

    `entries` lists the union, an entry in both appearing as the fast one. `stats` counts this store's own
    answers; ask `fast` and `slow` for theirs.
    """

    def __init__(self, fast: InspectableStore, slow: InspectableStore) -> None:
        self.fast = fast
        self.slow = slow
        self._tally = Tally()
        self._announcer = find_announcer(fast)

    def get(self, key: str) -> bytes | None:
        data = self.fast.get(key)
        if data is None:
            data = self.slow.get(key)
            if data is None:
                self._tally.miss()
                return None
            self.fast.put(key, data)
            self.count(peek_kind(data[:MAX_FRAME_BYTES]), UseCount(shared_hits=1))
        self._tally.hit(len(data))
        return data

    def put(self, key: str, data: bytes) -> None:
        self.fast.put(key, data)
        self.slow.put(key, data)
        self._tally.put(len(data))

    def delete(self, key: str) -> None:
        self.fast.delete(key)
        self.slow.delete(key)

    def contains(self, key: str) -> bool:
        return self.fast.contains(key) or self.slow.contains(key)

    def claim(self, *keys: str) -> AbstractContextManager[None]:
        """Claim `keys` in the fast store, among the processes of this machine."""
        return self.fast.claim(*keys) if isinstance(self.fast, ClaimableStore) else nullcontext()

    def check(self, key: str) -> str | None:
        """Return the faults of the entry in both stores."""
        return "\n".join(filter(None, (self.fast.check(key), self.slow.check(key)))) or None

    @property
    def announcer(self) -> OnceAnnouncer:
        return self._announcer

    def count(self, kind: str, step: UseCount) -> None:
        """Count in the fast store, which the processes of this machine share."""
        if isinstance(self.fast, CountingStore):
            self.fast.count(kind, step)

    def uses(self) -> Mapping[str, UseCount]:
        return self.fast.uses() if isinstance(self.fast, CountingStore) else {}

    def entries(self) -> Iterator[EntryInfo]:
        found = {entry.key: entry for entry in self.slow.entries()}
        found.update((entry.key, entry) for entry in self.fast.entries())
        return iter([found[key] for key in sorted(found)])

    def clear(self) -> int:
        count = sum(1 for _ in self.entries())
        self.fast.clear()
        self.slow.clear()
        return count

    def stats(self) -> StoreStats:
        return self._tally.snapshot()


def open_store(
    folder: str = "", limits: Limits | None = None, *, shared: InspectableStore | None = None
) -> Store:
    """Return the store in `folder`, which keeps within `limits`, before the `shared` one, if there is one.

    Default: the platform's user cache folder. One that cannot be used is warned of, and nothing is cached
    there.
    """
    limits = limits or Limits()
    local = open_local_store(
        Path(folder) if folder else None, max_bytes=limits.max_bytes, max_age_s=limits.max_age_s
    )
    return local if shared is None else TieredStore(local, shared)


SECRET: Final = "COILWORK_REDIS_KEY"
"""The environment variable of the secret that signs shared entries: options and arguments are logged."""


def connect_shared(url: str, environ: Mapping[str, str]) -> InspectableStore:
    """Return the store on the server at `url`, which is asked at first use: one that is down costs a warning
    and a timeout. `environ` has its secret.

    One per server and process: after a failure it leaves the server alone for a while, whoever asks.

    Raises:
        MissingExtraError: the package `redis` is missing.
        InvalidSettingError: the secret is missing or too short, or `url` is malformed.
    """
    secret = environ.get(SECRET, "")
    if not secret:
        raise InvalidSettingError(
            f"redis_url needs {SECRET}",
            "what is in a shared cache runs on every machine that reads it, so entries are signed; "
            f"set {SECRET} to the same secret of at least 16 bytes on all of them",
        )
    return _connect(url, secret)


@functools.cache
def _connect(url: str, secret: str) -> InspectableStore:
    # an extra: most installations do without
    from coilwork_cache.redis_store import RedisStore

    return RedisStore.connect(url, signing_key=secret.encode())
