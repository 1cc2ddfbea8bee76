"""Running Triton kernels on CPU tensors in Triton's interpreter: for tests where there is no GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from coilwork_runtime.checks import raise_check
from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.folders import new_folder
from coilwork_runtime.specs import TritonKernel
from coilwork_runtime.triton_kernels.requests import constants_of, run_time_arguments
from coilwork_runtime.triton_kernels.worker import load_function

Launcher = Callable[..., None]

_ONE_AT_A_TIME: Final = threading.RLock()


def interpreting(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether Triton is told to interpret."""
    return environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def make_interpreted(spec: TritonKernel) -> Launcher:
    """A callable over tensors, then sizes, that interprets the kernel in its first configuration."""
    # Only here: what is compiled ahead needs no Triton in this process.
    from triton.runtime.errors import InterpreterError
    from triton.runtime.interpreter import InterpreterOptions

    function = load_function(spec.source, spec.entry, new_folder("triton"))
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
    pointers = [name for name, a in arguments if a.is_pointer]
    sizes = {name: a.dtype for name, a in arguments if a.role == "size"}

    def launch(*args: Any) -> None:
        tensors, numbers = args[: len(args) - len(sizes)], args[len(args) - len(sizes) :]
        scope = constants | dict(zip(sizes, numbers, strict=True))
        extents = tuple(int(eval(code, {}, scope)) for code in grid)
        if 0 in extents:
            return
        extra = [
            torch.empty(int(eval(code, {}, scope)), dtype=d, device=tensors[0].device) for code, d in scratch
        ]
        given = dict(zip(pointers, (*tensors, *extra), strict=True))
        given |= {name: _scalar(scope[name], dtype) for name, dtype in sizes.items()}
        # the interpreter patches triton.language while it runs, and has one builder
        with _ONE_AT_A_TIME, _mended(options):
            try:
                function[extents](**given, **constants)
            except InterpreterError as error:
                _raise_failed_check(spec, error)
                raise

    return launch


def _scalar(value: int, dtype: str) -> Any:
    """A size as the interpreter's own value of its declared type.

    Left to itself, Triton takes an int for an array of one element, which is no bound of a `range` in Triton 3.6 with
    NumPy 2.4.
    """
    import numpy
    import triton.language
    from triton.runtime.interpreter import TensorHandle

    kind = {"i32": triton.language.int32, "i64": triton.language.int64}[dtype]
    return triton.language.tensor(
        TensorHandle(numpy.array(value, dtype=dtype.replace("i", "int")), kind), kind
    )


@contextmanager
def _mended(options: Any) -> Iterator[None]:
    """Triton's interpreter with `options`, and with comparisons that give truth values.

    It labels a comparison's result with the operands' type and, where a single result meets a block of them, converts
    it to that type; `&` then refuses the floats.
    """
    import triton.language
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    compute = interpreter_builder.binary_op

    def binary_op(lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        result = compute(lhs, rhs, op)
        return TensorHandle(result.data, triton.language.int1) if result.data.dtype == bool else result

    before = interpreter_builder.options
    interpreter_builder.options = options
    interpreter_builder.binary_op = binary_op
    try:
        yield
    finally:
        interpreter_builder.options = before
        interpreter_builder.binary_op = compute


def _raise_failed_check(spec: TritonKernel, error: BaseException) -> None:
    """If a device assertion is what went wrong, raise its check's own error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AssertionError):
            for number, message in enumerate(spec.checks):
                if message in str(cause):
                    raise_check(spec.name, spec.checks, number)
        cause = cause.__cause__
