"""Running Triton kernels on CPU tensors in Triton's interpreter: for tests where there is no GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

import torch

from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.errors import raise_check
from coilwork_runtime.folders import new_folder
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.compilation import constants_of
from coilwork_runtime.triton_kernels.interpreter_repairs import repaired_interpreter, scalar_argument
from coilwork_runtime.triton_kernels.versions import keep_versions
from coilwork_runtime.triton_kernels.worker import load_function

_ONE_AT_A_TIME: Final = threading.RLock()


def interpreting(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell if Triton is told to interpret."""
    return environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def make_interpreted(spec: KernelSpec) -> Launcher:
    """A callable over tensors, then sizes, that interprets the kernel in the first configuration for them."""
    # Only here: what is compiled ahead needs no Triton in this process.
    from triton.runtime.errors import InterpreterError
    from triton.runtime.interpreter import InterpreterOptions

    function = load_function(spec.source, spec.entry, new_folder("triton"))
    # of each version the first configuration
    firsts = keep_versions(spec, spec.configs)
    # device assertions run in debug mode only; the overflow checks that come with it are not wanted
    options = InterpreterOptions(debug=bool(spec.checks), sanitize_overflow=False)
    scratch = [(a.elements, torch_dtype(a.dtype)) for a in spec.args if a.elements is not None]
    pointers = {a.name: torch_dtype(a.dtype) for a in spec.args if a.is_pointer}
    sizes = {a.name: a.dtype for a in spec.args if a.role == "size"}

    def launch(*args: Any) -> None:
        tensors, numbers = args[: len(args) - len(sizes)], args[len(args) - len(sizes) :]
        given_sizes = dict(zip(sizes, numbers, strict=True))
        config = firsts[spec.first_version(numbers)]
        values = spec.values_of(config)
        extents = tuple(code.evaluate(numbers, values) for code in spec.grid)
        if 0 in extents:
            return
        extra = [
            torch.empty(code.evaluate(numbers, values), dtype=dtype, device=tensors[0].device)
            for code, dtype in scratch
        ]
        # kernels may take 8-bit floats as their bits
        given = {
            name: one if one.element_size() > 1 or one.dtype is dtype else one.view(dtype)
            for (name, dtype), one in zip(pointers.items(), (*tensors, *extra), strict=True)
        }
        given |= {name: scalar_argument(given_sizes[name], dtype) for name, dtype in sizes.items()}
        # the interpreter patches triton.language while it runs, and has one builder
        with _ONE_AT_A_TIME, repaired_interpreter(options):
            try:
                function[extents](**given, **constants_of(config))
            except InterpreterError as error:
                _raise_failed_check(spec, error)
                raise

    return Launcher(call=launch)


def _raise_failed_check(spec: KernelSpec, error: BaseException) -> None:
    """If a device assertion is what went wrong, raise its check's own error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AssertionError):
            for number, message in enumerate(spec.checks):
                if message in str(cause):
                    raise_check(spec.name, spec.checks, number)
        cause = cause.__cause__
