"""What Triton's interpreter does otherwise than Triton's compiler, put right while a kernel of ours runs in
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from coilwork_runtime.triton_kernels.interpreter_combining import reduce_blocks, scan_blocks


@contextmanager
def repaired_interpreter(options: Any) -> Iterator[None]:
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
        return TensorHandle(_small_bits(data, to), dtype.scalar)

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


def scalar_argument(value: int, dtype: str) -> Any:
    """A size as the interpreter's own value of its declared type, `"i32"` or `"i64"`.

    Left to itself, Triton takes an int for an array of one element, which is no bound of a `range` in Triton
    3.6 with NumPy 2.4.
    """
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    kind = {"i32": tl.int32, "i64": tl.int64}[dtype]
    return tl.tensor(TensorHandle(numpy.array(value, dtype=kind.name), kind), kind)


def _float32_of_bits(bits: Any) -> Any:
    """A NumPy array of bf16 as the interpreter keeps it, uint16, as float32."""
    return torch.from_numpy(bits.view("int16").copy()).view(torch.bfloat16).float().numpy()


def _bfloat16_bits(values: Any) -> Any:
    """A float32 NumPy array rounded to bf16, as uint16."""
    return torch.from_numpy(values.copy()).bfloat16().view(torch.int16).numpy().view("uint16")


def _float32_of_small(bits: Any, dtype: torch.dtype) -> Any:
    """A NumPy array of 8-bit floats as the interpreter keeps it, uint8, as float32."""
    return torch.from_numpy(bits.view("uint8").copy()).view(dtype).float().numpy()


def _small_bits(values: Any, dtype: torch.dtype) -> Any:
    """A float32 NumPy array rounded to 8-bit floats, as uint8."""
    return torch.from_numpy(values.copy()).to(dtype).view(torch.uint8).numpy()
