"""Open the store of what processes keep for each other."""

from __future__ import annotations

import os

from coilwork.compile_options import CompileOptions
from coilwork.errors import OptionError
from coilwork_cache import (
    InvalidSettingError,
    Limits,
    MissingExtraError,
    NullStore,
    Store,
    compiler_identity,
    connect_shared,
    open_store,
)
from coilwork_ir.device_traits import GROUP
from coilwork_tools.graph_key import STAGES, make_key_parts


def open_caches(options: CompileOptions) -> Store:
    """Return the store for what is compiled with `options`.

    If the folder cannot be used, a warning says so, and nothing is cached.

    Raises:
        OptionError: there is no secret for the server of `redis_url`, or it is too short; the address is
            malformed; the package `redis` is missing.
    """
    if not options.cache:
        return NullStore()
    limits = Limits(max_bytes=options.max_bytes, max_age_s=86400.0 * options.max_age_days)
    try:
        shared = connect_shared(options.redis_url, os.environ) if options.redis_url else None
    except (MissingExtraError, InvalidSettingError) as error:
        raise OptionError("bad-option", "redis_url: no such store can be had", reason=str(error)) from error
    return open_store(options.cache_dir, limits, shared=shared)


def list_key_parts(graph_text: str, targets_text: str, options: CompileOptions) -> dict[str, str]:
    """Return what the key of a graph is made of, by name; registered back ends are a part of the compiler."""
    return make_key_parts(graph_text, targets_text, options.key_text(), compiler_identity(STAGES, (GROUP,)))
