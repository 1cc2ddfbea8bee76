"""The cache that machines share: a Redis server behind the local folder (option `redis_url`).

Entries become code in the processes that read them, so each is signed with a secret that only trusted machines have. It is read
from the environment alone: options are printed, logged and compared.
"""

from __future__ import annotations

import functools
import os
from typing import Final

from coilwork.errors import OptionError
from coilwork_cache import InspectableStore, InvalidSettingError

SECRET: Final = "COILWORK_REDIS_KEY"


def shared_store(url: str) -> InspectableStore:
    """The store on the server at `url`, which is asked at first use: one that is down costs a warning and a timeout.

    Raises:
        OptionError: there is no secret in the environment, or it is too short; `url` is malformed; the package `redis` is missing.
    """
    secret = os.environ.get(SECRET, "")
    if not secret:
        raise OptionError(
            "bad-option",
            f"redis_url needs {SECRET}",
            reason="what is in a shared cache runs on every machine that reads it, so entries are signed",
            remedy=f"set {SECRET} to the same secret of at least 16 bytes on all of them",
        )
    return _connected(url, secret)


@functools.cache
def _connected(url: str, secret: str) -> InspectableStore:
    """One per server and process: after a failure it leaves the server alone for a while, whichever graph asks."""
    try:
        # an extra: most installations do without
        from coilwork_cache.redis_store import RedisStore

        return RedisStore.connect(url, signing_key=secret.encode())
    except (ImportError, InvalidSettingError) as error:
        raise OptionError("bad-option", "redis_url: no such store can be had", reason=str(error)) from error
