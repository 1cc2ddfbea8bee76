"""The modules and shared libraries that define the operators which a program calls, beside torch's own.

A generated module that runs by itself imports them first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from coilwork_ir.program.nodes import ExternCall, Program
from coilwork_ir.program.walk import walk
from coilwork_wrapper.torch_compat import find_defining_module

OWN: Final = ("torch", "coilwork_runtime", "coilwork_wrapper")
"""Packages whose operators are there without further imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLibraries:
    """The libraries that a module imports and loads before it looks operators up.

    Attributes:
        modules: names of Python modules.
        files: paths of shared libraries: all that this process has loaded, if an operator is defined in C++.
    """

    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def find_libraries(program: Program) -> OperatorLibraries:
    """Return the libraries of the operators of `program` that this process knows."""
    targets = {
        step.target
        for part in walk(program)
        for step in part.instructions
        if isinstance(step, ExternCall) and not step.target.startswith(("aten.", "prims."))
    }
    modules: dict[str, None] = {}
    is_native = False
    for target in sorted(targets):
        namespace, _, rest = target.partition(".")
        module = find_defining_module(f"{namespace}::{rest.removesuffix('.default')}")
        if module is None:
            is_native = True
        elif module.partition(".")[0] not in OWN:
            modules.setdefault(module)
    return OperatorLibraries(
        modules=tuple(modules), files=tuple(sorted(torch.ops.loaded_libraries)) if is_native else ()
    )
