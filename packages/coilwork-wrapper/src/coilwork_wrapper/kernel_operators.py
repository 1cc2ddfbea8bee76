"""Built kernels as operators of torch's: what passes over FX graphs see of a launch.

The schema says which tensors a kernel writes, so that dead-code elimination, functionalization and tracing
with fake tensors treat a launch as any call that writes its arguments. Sizes may be symbolic.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import list_kernels
from coilwork_ir.wrapper import Launcher

NAMESPACE: Final = "coilwork_launches"
_DIGITS: Final = 12


def define_operators(
    program: Program, launchers: Mapping[str, Launcher], code: bytes | None = None
) -> Mapping[str, Launcher]:
    """Return the operators of all kernels of `program` that have a launcher, by name."""
    return {
        kernel.name: define_operator(kernel, launchers[kernel.name], code)
        for kernel in list_kernels(program)
        if kernel.name in launchers
    }


def define_operator(kernel: Kernel, launcher: Launcher, code: bytes | None = None) -> Callable[..., Any]:
    """Return the operator that launches `kernel` by `launcher`: tensors in order, then sizes.

    Kernels of one name and `code`, the bytes of their program's kernels, share one operator, and its name is
    the same in every process. Without `code` the operator has a name that no other one has. As torch's own
    table of operators, it lives as long as the process.
    """
    identity = uuid.uuid4().bytes if code is None else code
    digest = hashlib.sha256(repr((kernel.name, _write_schema(kernel))).encode() + identity).hexdigest()
    spelled = "".join(one if one.isascii() and one.isalnum() else "_" for one in kernel.name)
    return _OPERATORS.define(f"{spelled}_{digest[:_DIGITS]}", _write_schema(kernel), launcher)


def _write_schema(kernel: Kernel) -> str:
    """Return the schema without its name: the tensors with what is written marked, then the sizes."""
    tensors = (
        f"Tensor{'' if arg.role == 'in' else f'(a{number}!)'} t{number}"
        for number, arg in enumerate(kernel.args)
    )
    sizes = (f"SymInt s{number}" for number, _ in enumerate(kernel.sizes))
    return f"({', '.join((*tensors, *sizes))}) -> ()"


class _Operators:
    """The operators of this process, by name."""

    def __init__(self) -> None:
        self._library = torch.library.Library(NAMESPACE, "FRAGMENT")
        self._known: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def define(self, name: str, schema: str, launcher: Launcher) -> Callable[..., Any]:
        with self._lock:
            known = self._known.get(name)
            if known is None:
                self._library.define(name + schema)
                self._library.impl(name, _drop_result(launcher), "CompositeExplicitAutograd")
                self._library.impl(name, _launch_nothing, "Meta")
                known = self._known[name] = getattr(getattr(torch.ops, NAMESPACE), name).default
            return known


def _drop_result(launcher: Launcher) -> Callable[..., None]:
    def launch(*args: Any) -> None:
        launcher(*args)

    return launch


def _launch_nothing(*args: Any) -> None:
    """Do nothing: tensors without memory stay as they are."""


_OPERATORS: Final = _Operators()
