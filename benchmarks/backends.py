"""What stands behind a backend's name, also where Coilwork runs from its source tree and no entry point is
installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import torch

Backend = str | Callable[..., Any]
# What `inductor-max` and `coilwork-max` are short for: the widest search that launches kernels one by one.
MAX = "max-autotune-no-cudagraphs"
# The modes in which Inductor records CUDA graphs on a GPU.
GRAPH_MODES = ("reduce-overhead", "max-autotune")


def family(name: str) -> str:
    """The backend of `backend`, `backend-max` or `backend:mode`."""
    return name.partition(":")[0].removesuffix("-max")


def mode_of(name: str) -> str | None:
    """Its mode, if it names one."""
    backend, _, mode = name.partition(":")
    return mode or (MAX if backend.endswith("-max") else None)


def replays_graphs(name: str) -> bool:
    """Tell if Inductor replays CUDA graphs: a call's results lie in the graphs' memory and last until the
    next step.
    """
    return family(name) == "inductor" and mode_of(name) in GRAPH_MODES


def resolve_backend(name: str) -> Backend:
    """Return what to give to `torch.compile(backend=...)` for `name`.

    An installed Coilwork is found by name through its entry point. In a source tree
    (PYTHONPATH=packages/*/src) nothing is registered, so the function that the entry point names is imported.
    ImportError where neither works.
    """
    if name != "coilwork" or any(point.name == name for point in entry_points(group="torch_dynamo_backends")):
        return name
    from coilwork.backend import backend

    resolved: Callable[..., Any] = backend
    return resolved


def compile_with(function: Callable[..., Any], name: str, *, dynamic: bool = False) -> Callable[..., Any]:
    """`function` compiled by what `name` says, `backend`, `backend-max` or `backend:mode`; `eager` returns it
    as it is.

    With `dynamic` all sizes are open from the first call on; else torch opens those that change.
    """
    backend = family(name)
    if backend == "eager":
        return function
    return torch.compile(
        function, backend=resolve_backend(backend), mode=mode_of(name), dynamic=dynamic or None
    )
