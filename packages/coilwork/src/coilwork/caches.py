"""Stores and keys of what is kept between processes."""

from __future__ import annotations

import os
from typing import Final

import torch

from coilwork.compile_options import SECRET, CompileOptions
from coilwork.errors import OptionError
from coilwork_cache import (
    GraphCache,
    InvalidSettingError,
    MissingExtraError,
    NullStore,
    Store,
    compiler_identity,
    connect_shared,
    open_store,
)
from coilwork_ir.device_traits import GROUP

COMPONENTS: Final = (
    "coilwork",
    "coilwork_cache",
    "coilwork_cpp",
    "coilwork_cpp_wrapper",
    "coilwork_frontend",
    "coilwork_ir",
    "coilwork_lowering",
    "coilwork_runtime",
    "coilwork_scheduler",
    "coilwork_tools",
    "coilwork_triton",
    "coilwork_wrapper",
)
"""The packages that make one compiler."""
# The cache checks by itself what it reads; tools decide nothing about what is compiled.
_STAGES: Final = tuple(name for name in COMPONENTS if name not in ("coilwork_cache", "coilwork_tools"))


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


def graph_key(graphs: GraphCache, graph_text: str, targets_text: str, options: CompileOptions) -> str:
    """Return the key of a graph in `graphs`.

    It contains the targets, for caches that machines share, and torch's version and the compiler's identity,
    so that an upgrade never meets old entries.
    """
    identity = compiler_identity(_STAGES, (GROUP,))
    return graphs.key(graph_text, targets_text, options.key_text(), torch.__version__, identity)
