"""Loading a built C++ kernel and calling it with tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from coilwork_runtime.checks import raise_check
from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.specs import CppKernel, parse_argument

Launcher = Callable[..., None]


def load_launcher(spec: CppKernel, library: Path) -> Launcher:
    """A callable over tensors, then sizes, that runs the kernel in `library`.

    Raises:
        OSError: the library does not load.
    """
    handle = ctypes.CDLL(str(library))
    function = getattr(handle, spec.entry)
    arguments = [parse_argument(text) for text in spec.args]
    function.argtypes = [ctypes.c_void_p if a.is_pointer else ctypes.c_int64 for a in arguments]
    function.restype = ctypes.c_int64 if spec.checks else None
    pointers = sum(a.is_pointer and a.role != "scratch" for a in arguments)
    if any(a.role == "scratch" for a in arguments):
        return _with_scratch(spec, function, pointers)
    if spec.checks:
        return _checked(spec, function, pointers)
    return _plain(function, pointers, len(arguments) - pointers)


def _plain(function: Any, pointers: int, sizes: int) -> Launcher:
    """The common case, written out for the number of arguments so that a call makes no list."""
    tensors = [f"t{k}" for k in range(pointers)]
    numbers = [f"n{k}" for k in range(sizes)]
    passed = [f"{t}.data_ptr()" for t in tensors] + numbers
    text = f"def launch({', '.join(tensors + numbers)}):\n    function({', '.join(passed)})\n"
    scope: dict[str, Any] = {"function": function}
    exec(text, scope)
    launch: Launcher = scope["launch"]
    return launch


def _checked(spec: CppKernel, function: Any, pointers: int) -> Launcher:
    def launch(*args: Any) -> None:
        failed = function(*(t.data_ptr() for t in args[:pointers]), *args[pointers:])
        if failed:
            raise_check(spec.name, spec.checks, failed - 1)

    return launch


def _with_scratch(spec: CppKernel, function: Any, pointers: int) -> Launcher:
    arguments = [parse_argument(text) for text in spec.args]
    names = [name for name, a in zip(spec.arg_names, arguments, strict=True) if a.role == "size"]
    codes = [(compile(a.elements, spec.name, "eval"), a.dtype) for a in arguments if a.role == "scratch"]

    def launch(*args: Any) -> None:
        sizes = dict(zip(names, args[pointers:], strict=True))
        scratch = [torch.empty(int(eval(code, {}, sizes)), dtype=torch_dtype(dtype)) for code, dtype in codes]
        failed = function(
            *(t.data_ptr() for t in args[:pointers]), *args[pointers:], *(t.data_ptr() for t in scratch)
        )
        if spec.checks and failed:
            raise_check(spec.name, spec.checks, failed - 1)

    return launch
