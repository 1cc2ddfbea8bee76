"""The store of a compiler: a local folder, and behind it, if there is one, a Redis server that machines
share.

Entries become code in the processes that read them, so each on the server is signed with a secret that only
trusted machines have.
"""

from __future__ import annotations

import functools
from pathlib import Path

from coilwork_cache.local import open_local_store
from coilwork_cache.store import InspectableStore, Store
from coilwork_cache.tiered import TieredStore


def open_store(folder: str = "", *, shared: InspectableStore | None = None) -> Store:
    """The store in `folder`, before the `shared` one, if there is one.

    Default: the platform's user cache folder. One that cannot be used is warned of, and nothing is cached
    there.
    """
    local = open_local_store(Path(folder) if folder else None)
    return local if shared is None else TieredStore(local, shared)


@functools.cache
def connect_shared(url: str, secret: str) -> InspectableStore:
    """The store on the server at `url`, which is asked at first use: one that is down costs a warning and a
    timeout.

    One per server and process: after a failure it leaves the server alone for a while, whoever asks.

    Raises:
        MissingExtraError: the package `redis` is missing.
        InvalidSettingError: the secret is too short, or `url` is malformed.
    """
    # an extra: most installations do without
    from coilwork_cache.redis_store import RedisStore

    return RedisStore.connect(url, signing_key=secret.encode())
