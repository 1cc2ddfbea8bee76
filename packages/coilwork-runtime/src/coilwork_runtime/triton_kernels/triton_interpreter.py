"""Triton kernels on CPU tensors in Triton's interpreter, for tests where there is no GPU.

While a kernel of ours runs, the interpreter is repaired where it differs from Triton's compiler (3.6, 3.7).
As it comes, it calls a combine function once per element, in Python, for all but a few that it knows. Here a
call combines all pairs of a level, as on a GPU: some log2(length) calls for a reduction, twice that for a
scan. The earlier neighbour is the first operand, so combine functions need be associative only, not
commutative.
"""

from __future__ import annotations

import inspect
import os
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from coilwork_runtime.dtypes import get_torch_dtype
from coilwork_runtime.errors import raise_check
from coilwork_runtime.folders import new_folder
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.compilation import list_constants
from coilwork_runtime.triton_kernels.gluon_interpreter import interpret_gluon
from coilwork_runtime.triton_kernels.versions import keep_versions
from coilwork_runtime.triton_kernels.worker import load_function

Arrays = Sequence[Any]
"""One NumPy array for each operand that is joined, all of one shape, with the combined axis first."""

Combine = Callable[[Arrays, Arrays], Arrays]


def reduce_blocks(operation: Any, blocks: Sequence[Any]) -> list[Any]:
    """Do as `ReduceOps.generic_reduce`, but for the order in which elements are combined.

    Takes a `ReduceOps` and `tl.tensor`s of one shape whose extents are powers of two; `axis=None` is the axis
    of all elements.
    """
    import numpy

    axis, shape = operation.axis, blocks[0].handle.data.shape
    arrays = [
        block.handle.data.flatten() if axis is None else numpy.moveaxis(block.handle.data, axis, 0)
        for block in blocks
    ]
    combine = _combine_by_levels(operation, blocks)
    while len(arrays[0]) > 1:
        arrays = list(combine([x[0::2] for x in arrays], [x[1::2] for x in arrays]))
    results = [x[0] for x in arrays]
    if operation.keep_dims:
        kept = (
            [1] * len(shape)
            if axis is None
            else [1 if k == axis % len(shape) else n for k, n in enumerate(shape)]
        )
        results = [x.reshape(kept) for x in results]
    return _tensors(operation, results, blocks)


def scan_blocks(operation: Any, blocks: Sequence[Any]) -> list[Any]:
    """Do as `ScanOps.generic_scan`, but for the order in which elements are combined.

    Takes a `ScanOps` and `tl.tensor`s of one shape whose extents are powers of two. Who calls turns reversed
    scans around.
    """
    import numpy

    arrays = [numpy.moveaxis(block.handle.data, operation.axis, 0) for block in blocks]
    results = _scan(arrays, _combine_by_levels(operation, blocks))
    return _tensors(
        operation, [numpy.ascontiguousarray(numpy.moveaxis(x, 0, operation.axis)) for x in results], blocks
    )


def _scan(arrays: Arrays, combine: Combine) -> Arrays:
    """Inclusive prefixes along the first axis: those of the pairs are every second one (Ladner and Fischer,
    1980).
    """
    import numpy

    if len(arrays[0]) == 1:
        return arrays
    firsts = [x[0::2] for x in arrays]
    at_seconds = _scan(combine(firsts, [x[1::2] for x in arrays]), combine)
    # before the first pair there is nothing: it meets the last, for blocks must stay powers of two, and is
    # put back below
    at_firsts = combine([numpy.roll(x, 1, axis=0) for x in at_seconds], firsts)
    results = []
    for given, first, second in zip(arrays, at_firsts, at_seconds, strict=True):
        result = numpy.empty_like(given)
        result[0::2], result[1::2] = first, second
        result[0] = given[0]
        results.append(result)
    return results


def _combine_by_levels(operation: Any, blocks: Sequence[Any]) -> Combine:
    """Return the combine function of `operation` on arrays of any length, in the types of `blocks`."""
    import numpy
    import triton.language as tl

    def combine(left: Arrays, right: Arrays) -> Arrays:
        answer = operation.combine_fn.fn(
            *_tensors(operation, left, blocks), *_tensors(operation, right, blocks)
        )
        parts = answer if isinstance(answer, tuple) else (answer,)
        # a combine function may also return a plain number
        data = [part.handle.data if isinstance(part, tl.tensor) else part for part in parts]
        return [
            numpy.broadcast_to(numpy.asarray(x, dtype=y.dtype), y.shape)
            for x, y in zip(data, left, strict=True)
        ]

    return combine


def _tensors(operation: Any, arrays: Arrays, like: Sequence[Any]) -> list[Any]:
    """Return the arrays, or single numbers, as tensors with the element types of `like`."""
    return [operation.to_tensor(x, block.dtype) for x, block in zip(arrays, like, strict=True)]


# ---- repairs ----


@contextmanager
def repair_interpreter(options: Any) -> Iterator[None]:
    """Triton's interpreter with `options` (an `InterpreterOptions`) and these repairs, in Triton 3.6 to 3.7:

    - A comparison gives booleans. As it comes, the result is labelled with the operands' type and, where a
      single one meets a block of them, converted to that type; `&` then refuses the floats.
    - Conversions to bf16 round to nearest, as GPUs do, instead of to zero, and those between bf16 and any
      type but f32 convert numbers instead of bits.
    - Conversions from and to 8-bit floats round to nearest, and know subnormals, infinities and NaN.
    - Matrices of bf16 are multiplied as numbers, too.
    - Reductions and scans combine whole blocks level by level, not element by element in Python.
    - `triton.language` is patched once per launch and module, not at every call of a device function.

    The interpreter has one builder per process: not for two threads at once.
    """
    # Only where kernels are interpreted: what is compiled ahead needs no Triton in this process.
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle, interpreter_builder

    patch, patched = interpreter._patch_lang, set[int]()
    compute, convert = interpreter_builder.binary_op, interpreter_builder.cast_impl
    multiply = interpreter_builder.create_dot

    def binary_op(lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        result = compute(lhs, rhs, op)
        return TensorHandle(result.data, tl.int1) if result.data.dtype == bool else result

    def cast_impl(source: Any, dtype: Any) -> Any:
        if (source.dtype.scalar == tl.bfloat16) == (dtype.scalar == tl.bfloat16):
            return convert(source, dtype)
        if source.dtype.scalar == tl.bfloat16:
            return convert(TensorHandle(_float32_of_bits(source.data), tl.float32), dtype)
        return TensorHandle(_bfloat16_bits(convert(source, tl.float32).data), tl.bfloat16)

    small = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
    between_floats = interpreter_builder.create_fp_to_fp

    def create_fp_to_fp(source: Any, dtype: Any, rounding: Any) -> Any:
        of, to = small.get(source.dtype.scalar), small.get(dtype.scalar)
        if of is None and to is None:
            return between_floats(source, dtype, rounding)
        data = cast_impl(source, tl.float32).data if of is None else _float32_of_small(source.data, of)
        if to is None:
            return cast_impl(TensorHandle(data, tl.float32), dtype.scalar)
        return TensorHandle(_round_to_8_bits(data, to), dtype.scalar)

    def create_dot(left: Any, right: Any, sums: Any, *precision: Any) -> Any:
        wide = [x if x.dtype.scalar != tl.bfloat16 else cast_impl(x, tl.float32) for x in (left, right)]
        return multiply(*wide, sums, *precision)

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return interpreter._LangPatchScope()
        patched.add(module)
        return patch(function)

    repairs: tuple[tuple[Any, str, Any], ...] = (
        (interpreter_builder, "options", options),
        (interpreter_builder, "binary_op", binary_op),
        (interpreter_builder, "cast_impl", cast_impl),
        (interpreter_builder, "create_fp_to_fp", create_fp_to_fp),
        (interpreter_builder, "create_dot", create_dot),
        (interpreter, "_patch_lang", patch_once),
        (ReduceOps, "generic_reduce", reduce_blocks),
        (ScanOps, "generic_scan", scan_blocks),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in repairs]
    for owner, name, value in repairs:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def make_scalar_argument(value: int, dtype: str) -> Any:
    """Return a size as the interpreter's own value of its declared type, `"i32"` or `"i64"`.

    Left to itself, Triton takes an int for an array of one element, which is no bound of a `range` in Triton
    3.6 with NumPy 2.4.
    """
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    kind = {"i32": tl.int32, "i64": tl.int64}[dtype]
    return tl.tensor(TensorHandle(numpy.array(value, dtype=kind.name), kind), kind)


def _float32_of_bits(bits: Any) -> Any:
    """Return a NumPy array of bf16 as the interpreter keeps it, uint16, as float32."""
    return torch.from_numpy(bits.view("int16").copy()).view(torch.bfloat16).float().numpy()


def _bfloat16_bits(values: Any) -> Any:
    """Return a float32 NumPy array rounded to bf16, as uint16."""
    return torch.from_numpy(values.copy()).bfloat16().view(torch.int16).numpy().view("uint16")


def _float32_of_small(bits: Any, dtype: torch.dtype) -> Any:
    """Return a NumPy array of 8-bit floats as the interpreter keeps it, uint8, as float32."""
    return torch.from_numpy(bits.view("uint8").copy()).view(dtype).float().numpy()


def _round_to_8_bits(values: Any, dtype: torch.dtype) -> Any:
    """Return a float32 NumPy array rounded to 8-bit floats, as uint8."""
    return torch.from_numpy(values.copy()).to(dtype).view(torch.uint8).numpy()


# ---- launching ----


_ONE_AT_A_TIME: Final = threading.RLock()


def is_interpreting(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if Triton is told to interpret."""
    return environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


class InterpretedKernel:
    """A kernel of ours that Triton interprets. `kernel[grid](...)` launches it as if Triton compiled it."""

    def __init__(self, spec: KernelSpec) -> None:
        # Only here: what is compiled ahead needs no Triton in this process.
        from triton.runtime.interpreter import InterpreterOptions

        self._function = interpret_gluon(load_function(spec.source, spec.entry, new_folder("triton")))
        self._spec = spec
        # device assertions run in debug mode only; the overflow checks that come with it are not wanted
        self._options = InterpreterOptions(debug=bool(spec.checks), sanitize_overflow=False)
        self._pointers = {a.name: get_torch_dtype(a.dtype) for a in spec.args if a.is_pointer}
        self._sizes = {a.name: a.dtype for a in spec.args if a.role == "size"}

    @property
    def fn(self) -> types.FunctionType:
        """The function that is interpreted."""
        function: types.FunctionType = self._function.fn
        return function

    @property
    def arg_names(self) -> list[str]:
        """The names of its parameters, in order."""
        names: list[str] = self._function.arg_names
        return names

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        def launch(*args: Any, **given: Any) -> None:
            self.run(grid, dict(zip(self.arg_names, args, strict=False)) | given)

        return launch

    def run(self, grid: Sequence[int], given: Mapping[str, Any]) -> None:
        """Launch it with arguments by name: tensors, sizes, scratch memory and compile-time parameters."""
        from triton.runtime.errors import InterpreterError

        if 0 in grid:
            return
        # kernels may take 8-bit floats as their bits
        arguments = {
            name: given[name] if dtype.itemsize > 1 or given[name].dtype is dtype else given[name].view(dtype)
            for name, dtype in self._pointers.items()
        }
        arguments |= {name: make_scalar_argument(given[name], dtype) for name, dtype in self._sizes.items()}
        others = {name: value for name, value in given.items() if name not in arguments}
        # the interpreter patches triton.language while it runs, and has one builder
        with _ONE_AT_A_TIME, repair_interpreter(self._options):
            try:
                self._function[tuple(grid)](**arguments, **list_constants(others))
            except InterpreterError as error:
                _raise_failed_check(self._spec, error)
                raise


def make_interpreted(spec: KernelSpec) -> Launcher:
    """Return a callable over tensors, then sizes, that interprets the kernel in the first configuration for
    them.
    """
    kernel = InterpretedKernel(spec)
    # of each version the first configuration
    firsts = keep_versions(spec, spec.configs)
    scratch = {a.name: (a.elements, get_torch_dtype(a.dtype)) for a in spec.args if a.elements is not None}
    passed = [a.name for a in spec.args if a.name not in scratch]

    def launch(*args: Any) -> None:
        numbers = args[len(args) - len(spec.sizes) :]
        config = firsts[spec.first_version(numbers)]
        values = spec.values_of(config)
        extents = tuple(code.evaluate(numbers, values) for code in spec.grid)
        extra = {
            name: torch.empty(code.evaluate(numbers, values), dtype=dtype, device=args[0].device)
            for name, (code, dtype) in scratch.items()
        }
        kernel.run(extents, {**dict(zip(passed, args, strict=True)), **extra, **config})

    return Launcher(call=launch)


def _raise_failed_check(spec: KernelSpec, error: BaseException) -> None:
    """Raise a check's own error if `error` is a failed device assertion."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AssertionError):
            for number, message in enumerate(spec.checks):
                if message in str(cause):
                    raise_check(spec.name, spec.checks, number)
        cause = cause.__cause__


# ---- kernels of the user's ----


def run_interpreted(kernel: Any, grid: Any, arguments: Mapping[str, Any]) -> None:
    """Launch a kernel of the user's over CPU tensors, in its first configuration.

    `grid` are three extents, or a function that returns them for a launch's arguments. An autotuner's
    measuring is left out, and so are the hooks around it; a configuration's own hook runs.
    """
    # Only here: what is compiled ahead needs no Triton in this process.
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.interpreter import InterpreterOptions

    given = dict(arguments)
    while isinstance(kernel, Autotuner | Heuristics):
        if isinstance(kernel, Heuristics):
            for name, choose in kernel.values.items():
                given[name] = choose(given)
        else:
            config = kernel.configs[0]
            given |= config.all_kwargs()
            if config.pre_hook is not None:
                config.pre_hook(given)
        kernel = kernel.fn
    function = interpret_function(kernel.fn)
    extents = tuple(grid(given) if callable(grid) else grid)
    values = {
        one.name: _truth(given[one.name]) if isinstance(given[one.name], bool) else given[one.name]
        for one in kernel.params
        if one.name in given and not one.is_constexpr
    }
    values |= {one.name: given[one.name] for one in kernel.params if one.is_constexpr and one.name in given}
    with _ONE_AT_A_TIME, repair_interpreter(InterpreterOptions()):
        function[extents](**values)


def _truth(value: bool) -> Any:
    """Return a truth value as the interpreter's own, which it would take for an integer of 32 bits."""
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(numpy.array([value], dtype=bool), tl.int1), tl.int1)


def interpret_function(function: types.FunctionType) -> Any:
    """Return `function`, as the user wrote it, for Triton's interpreter, with all device functions that it
    calls."""
    return _interpret_function(function, {})


def _interpret_function(function: types.FunctionType, known: dict[types.FunctionType, Any]) -> Any:
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    if function in known:
        return known[function]
    # a namespace of its own: the interpreter changes it, and sees no closures
    namespace = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__annotations__ = function.__annotations__
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    interpreted = known[function] = InterpretedFunction(copy)
    for name in (*function.__code__.co_names, *function.__code__.co_freevars):
        callee = namespace.get(name)
        if isinstance(callee, JITFunction):
            namespace[name] = _interpret_function(callee.fn, known)
    return interpreted
