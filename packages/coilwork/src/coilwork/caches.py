"""Open the store of what processes keep for each other."""

from __future__ import annotations

import os

from coilwork.compile_options import SECRET, CompileOptions
from coilwork.errors import OptionError
from coilwork_cache import (
    InvalidSettingError,
    MissingExtraError,
    NullStore,
    Store,
    connect_shared,
    open_store,
)


def open_caches(options: CompileOptions) -> Store:
    """Return the store for what is compiled with `options`.

    If the folder cannot be used, a warning says so, and nothing is cached.

    Raises:
        OptionError: there is no secret for the server of `redis_url`, or it is too short; the address is
            malformed; the package `redis` is missing.
    """
    if not options.cache:
        return NullStore()
    if not options.redis_url:
        return open_store(options.cache_dir)
    secret = os.environ.get(SECRET, "")
    if not secret:
        raise OptionError(
            "bad-option",
            f"redis_url needs {SECRET}",
            reason="what is in a shared cache runs on every machine that reads it, so entries are signed",
            remedy=f"set {SECRET} to the same secret of at least 16 bytes on all of them",
        )
    try:
        return open_store(options.cache_dir, shared=connect_shared(options.redis_url, secret))
    except (MissingExtraError, InvalidSettingError) as error:
        raise OptionError("bad-option", "redis_url: no such store can be had", reason=str(error)) from error
