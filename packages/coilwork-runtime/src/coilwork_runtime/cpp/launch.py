"""Loading a built C++ kernel and calling it with tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from coilwork_runtime.checks import raise_check
from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.executor.forms import NATIVE, NativeLaunch, cpu_form
from coilwork_runtime.specs import CppKernel, parse_argument

Launcher = Callable[..., None]


def load_launcher(spec: CppKernel, library: Path) -> Launcher:
    """A callable over tensors, then sizes, that runs the kernel in `library`.

    Raises:
        OSError: the library does not load.
        AttributeError: it does not define the kernel.
    """
    function = ctypes.CDLL(str(library))[spec.entry]
    arguments = [parse_argument(text) for text in spec.args]
    function.argtypes = [ctypes.c_void_p if a.is_pointer else ctypes.c_int64 for a in arguments]
    function.restype = ctypes.c_int64 if spec.checks else None

    def report(failed: int) -> None:
        raise_check(spec.name, spec.checks, failed - 1)

    scope: dict[str, Any] = {
        "function": function,
        "report": report,
        "empty": _empty,
        "min": min,
        "max": max,
    }
    exec(compile(launcher_text(spec), f"<coilwork launcher of {spec.name}>", "exec"), scope)
    launch: Launcher = scope["launch"]
    form = cpu_form(spec, ctypes.cast(function, ctypes.c_void_p).value or 0)
    vars(launch)[NATIVE] = NativeLaunch(form=lambda: form, report=report)
    return launch


def launcher_text(spec: CppKernel) -> str:
    """The launcher's Python, written out for the kernel's arguments so that a call makes no list and no dictionary."""
    arguments = [parse_argument(text) for text in spec.args]
    names = spec.arg_names or tuple(f"a{position}" for position in range(len(arguments)))
    named = list(zip(names, arguments, strict=True))
    given = ", ".join(name for name, a in named if a.role != "scratch")
    passed = ", ".join(f"{name}.data_ptr()" if a.is_pointer else name for name, a in named)
    lines = [f"def launch({given}):"]
    # a scratch tensor needs a name: its memory must outlive the call
    lines += [f"    {name} = empty({a.elements}, {a.dtype!r})" for name, a in named if a.role == "scratch"]
    if spec.checks:
        lines += [f"    failed = function({passed})", "    if failed:", "        report(failed)"]
    else:
        lines.append(f"    function({passed})")
    return "\n".join(lines) + "\n"


def _empty(elements: int, dtype: str) -> torch.Tensor:
    return torch.empty(elements, dtype=torch_dtype(dtype))
