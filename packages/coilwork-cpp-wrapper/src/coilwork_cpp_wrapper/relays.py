"""Operators whose names of process groups torch's C dispatcher cannot pass: called through operators of ours,
in Python.

Since torch 2.13 collectives take a process group or its name, a parameter of type `Any`, for which torch's
C interface has no form. Each gets a relay: an operator with the same parameters that takes a name, a `str`,
and hands it on. Relays are registered where a program is loaded, so programs that need some run in
processes with Python alone.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable
from typing import Final

from coilwork_cpp_wrapper.torch_compat import Library, new_library, relay_to
from coilwork_ir.buffers import Argument
from coilwork_runtime.schemas import Parameter, Schema

_NAMESPACE: Final = "coilwork_relays"
_REGISTERING: Final = threading.Lock()


def needs_relay(bound: Iterable[tuple[Parameter, Argument]]) -> bool:
    """Tell if a call is given a name that only Python can pass."""
    return any(parameter.type.name == "Any" and isinstance(value, str) for parameter, value in bound)


def relay_name(schema: Schema) -> str:
    """The relay of an operator: `coilwork_relays::_c10d_functional__all_reduce`."""
    return f"{_NAMESPACE}::{schema.name.replace('::', '__')}"


def register_relays(targets: Iterable[str]) -> None:
    """Register the relays of operators such as `"_c10d_functional.all_reduce.default"` that are not yet
    there.
    """
    for target in targets:
        with _REGISTERING:
            _register(target)


def _free_in_child() -> None:
    # a thread of the parent's may hold it, and none goes on with that here
    if _REGISTERING.locked():
        _REGISTERING.release()


os.register_at_fork(after_in_child=_free_in_child)


@functools.cache
def _library() -> Library:
    """The library of all relays; they live as long as it does."""
    return new_library(_NAMESPACE)


@functools.cache
def _register(target: str) -> None:
    namespace, name, overload = target.split(".")
    relay_to(_library(), f"{namespace}__{name}", namespace, name, overload)
