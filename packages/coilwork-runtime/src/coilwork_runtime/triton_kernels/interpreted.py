"""Running Triton kernels on CPU tensors in Triton's interpreter: for tests where there is no GPU."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_runtime.checks import raise_check
from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.specs import TritonKernel
from coilwork_runtime.triton_kernels.requests import constants_of, run_time_arguments
from coilwork_runtime.triton_kernels.worker import load_function

Launcher = Callable[..., None]

_ONE_AT_A_TIME: Final = threading.RLock()


def interpreting(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether Triton is told to interpret."""
    return environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def make_interpreted(spec: TritonKernel, folder: tempfile.TemporaryDirectory[str]) -> Launcher:
    """A callable over tensors, then sizes, that interprets the kernel in its first configuration.

    Triton reads the source's file when the kernel first runs, so `folder` stays as long as the callable.
    """
    # Only here: what is compiled ahead needs no Triton in this process.
    from triton.runtime.errors import InterpreterError
    from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

    function = load_function(spec.source, spec.entry, Path(folder.name))
    arguments = run_time_arguments(spec)
    constants = constants_of(spec.configs[0])
    # device assertions run in debug mode only; the overflow checks that come with it are not wanted
    options = InterpreterOptions(debug=bool(spec.checks), sanitize_overflow=False)
    grid = [compile(extent, spec.name, "eval") for extent in spec.grid]
    scratch = [
        (compile(a.elements, spec.name, "eval"), torch_dtype(a.dtype))
        for _, a in arguments
        if a.role == "scratch"
    ]
    names = [name for name, a in arguments if a.role != "scratch"]
    size_names = [name for name, a in arguments if a.role == "size"]

    def launch(*args: Any) -> None:
        scope = constants | dict(zip(size_names, args[len(args) - len(size_names) :], strict=True))
        extents = tuple(int(eval(code, {}, scope)) for code in grid)
        if 0 in extents:
            return
        device = args[0].device
        extra = [torch.empty(int(eval(code, {}, scope)), dtype=d, device=device) for code, d in scratch]
        by_position = [*args[: len(names)], *extra]
        # the interpreter patches triton.language while it runs, and has one set of options
        with _ONE_AT_A_TIME:
            before = interpreter_builder.options
            interpreter_builder.options = options
            try:
                function[extents](*by_position, **constants)
            except InterpreterError as error:
                _raise_failed_check(spec, error)
                raise
            finally:
                interpreter_builder.options = before
        # keeps the source's file
        assert folder.name

    return launch


def _raise_failed_check(spec: TritonKernel, error: BaseException) -> None:
    """If a device assertion is what went wrong, raise its check's own error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AssertionError):
            for number, message in enumerate(spec.checks):
                if message in str(cause):
                    raise_check(spec.name, spec.checks, number)
        cause = cause.__cause__
