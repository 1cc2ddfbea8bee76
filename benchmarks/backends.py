"""What stands behind a backend's name, also where Coilwork runs from its source tree and no entry point is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import torch

Backend = str | Callable[..., Any]


def resolve_backend(name: str) -> Backend:
    """What to give to `torch.compile(backend=...)` for `name`.

    An installed Coilwork is found by name through its entry point. In a source tree (PYTHONPATH=packages/*/src) nothing
    is registered, so the function that the entry point names is imported. ImportError where neither works.
    """
    if name != "coilwork" or any(point.name == name for point in entry_points(group="torch_dynamo_backends")):
        return name
    from coilwork.backend import backend

    resolved: Callable[..., Any] = backend
    return resolved


def compile_with(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`function` compiled by the named backend, written `backend` or `backend:mode`; `eager` returns it as it is."""
    backend, _, mode = name.partition(":")
    if backend == "eager":
        return function
    return torch.compile(function, backend=resolve_backend(backend), mode=mode or None)
