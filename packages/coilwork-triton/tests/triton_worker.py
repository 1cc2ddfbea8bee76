"""A process that runs or compiles Triton text for the tests: pickled requests on stdin, pickled replies on
stdout.

Whether Triton interprets or compiles is decided when it is imported, by TRITON_INTERPRET; hence a process for
each.
"""

from __future__ import annotations

import linecache
import os
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO
from unittest.mock import patch

NAMESPACES: dict[str, dict[str, Any]] = {}


def load(text: str) -> dict[str, Any]:
    """Execute source text as a module of its own; Triton reads functions back through `linecache`."""
    if text not in NAMESPACES:
        name = f"<kernel {len(NAMESPACES)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        space: dict[str, Any] = {"__name__": f"kernel_{len(NAMESPACES)}"}
        exec(compile(text, name, "exec"), space)
        NAMESPACES[text] = space
    return NAMESPACES[text]


def run(request: dict[str, Any]) -> Any:
    """Launch, on the GPU unless interpreted; returns the tensors, which the kernel may have changed.

    A tensor that is given twice is the same memory for the kernel, too.
    """
    kernel = load(request["text"])[request["entry"]]
    interpreted = os.environ["TRITON_INTERPRET"] == "1"
    moved = {id(t): t.to("cpu" if interpreted else "cuda") for t in request["tensors"]}
    tensors = [moved[id(t)] for t in request["tensors"]]
    sizes = [interpreted_size(n) for n in request["sizes"]] if interpreted else request["sizes"]
    options = dict(request["options"])
    # assertions are made in debug mode only
    checked = {"debug": request.get("debug", False), "sanitize_overflow": False}
    if interpreted:
        from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

        interpreter_builder.options = InterpreterOptions(**checked)
    else:
        import torch
        import triton

        # for descriptors of the copy engine, which a kernel makes in memory that its launcher brings
        triton.set_allocator(lambda size, align, stream: torch.zeros(size, dtype=torch.int8, device="cuda"))
        options |= checked if checked["debug"] else {}
    if all(extent > 0 for extent in request["grid"]):
        kernel[tuple(request["grid"])](*tensors, *sizes, **request["meta"], **options)
    return [t.cpu() for t in tensors]


def round_as_gpus_do() -> None:
    """Conversions to and from bf16 in Triton's interpreter: to nearest, and of numbers, also of subnormal
    ones.

    As it comes (Triton 3.6, 3.7) it cuts bits off, takes subnormal numbers for 0, and for types other than
    f32 converts the bits. It multiplies matrices of bf16 by their bits, too.
    """
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    convert = interpreter_builder.cast_impl

    def cast_impl(source: Any, dtype: Any) -> Any:
        if (source.dtype.scalar == tl.bfloat16) == (dtype.scalar == tl.bfloat16):
            return convert(source, dtype)
        if source.dtype.scalar == tl.bfloat16:
            wide = torch.from_numpy(source.data.view("int16").copy()).view(torch.bfloat16).float().numpy()
            return convert(TensorHandle(wide, tl.float32), dtype)
        rounded = torch.from_numpy(convert(source, tl.float32).data.copy())
        return TensorHandle(rounded.bfloat16().view(torch.int16).numpy().view("uint16"), tl.bfloat16)

    multiply = interpreter_builder.create_dot

    def create_dot(left: Any, right: Any, sums: Any, *precision: Any) -> Any:
        wide = [x if x.dtype.scalar != tl.bfloat16 else cast_impl(x, tl.float32) for x in (left, right)]
        return multiply(*wide, sums, *precision)

    interpreter_builder.cast_impl, interpreter_builder.create_dot = cast_impl, create_dot


def combine_whole_blocks() -> None:
    """Reductions and scans in Triton's interpreter: a combine function is called for all pairs of neighbours
    at once.

    As it comes (Triton 3.6, 3.7) it calls one for every element, except for a few that it knows.
    """
    import numpy
    from triton.runtime.interpreter import ReduceOps, ScanOps

    def pairs_of(operation: Any, blocks: Sequence[Any]) -> Callable[..., list[Any]]:
        """The combine function on arrays, which have the combined axis first."""

        def combine(left: list[Any], right: list[Any]) -> list[Any]:
            given = [
                operation.to_tensor(x, block.dtype)
                for side in (left, right)
                for x, block in zip(side, blocks)
            ]
            found = operation.combine_fn.fn(*given)
            return [part.handle.data for part in (found if isinstance(found, tuple) else (found,))]

        return combine

    def reduce_blocks(operation: Any, blocks: Sequence[Any]) -> list[Any]:
        if operation.axis is None:
            raise NotImplementedError("the kernels of this package name the axis that they reduce")
        arrays = [numpy.moveaxis(block.handle.data, operation.axis, 0) for block in blocks]
        combine = pairs_of(operation, blocks)
        while len(arrays[0]) > 1:
            arrays = combine([x[0::2] for x in arrays], [x[1::2] for x in arrays])
        results = [numpy.moveaxis(x, 0, operation.axis) if operation.keep_dims else x[0] for x in arrays]
        return [operation.to_tensor(x, block.dtype) for x, block in zip(results, blocks)]

    def prefixes(arrays: list[Any], combine: Callable[..., list[Any]]) -> list[Any]:
        if len(arrays[0]) == 1:
            return arrays
        evens = [x[0::2] for x in arrays]
        at_odds = prefixes(combine(evens, [x[1::2] for x in arrays]), combine)
        # shapes are powers of two: the first, with nothing before it, is combined all the same
        at_evens = combine([numpy.roll(x, 1, axis=0) for x in at_odds], evens)
        results = [numpy.stack(both, 1).reshape(x.shape) for x, *both in zip(arrays, at_evens, at_odds)]
        for result, x in zip(results, arrays):
            result[0] = x[0]
        return results

    def scan_blocks(operation: Any, blocks: Sequence[Any]) -> list[Any]:
        arrays = [numpy.moveaxis(block.handle.data, operation.axis, 0) for block in blocks]
        results = [
            numpy.moveaxis(x, 0, operation.axis) for x in prefixes(arrays, pairs_of(operation, blocks))
        ]
        return [operation.to_tensor(x.copy(), block.dtype) for x, block in zip(results, blocks)]

    ReduceOps.generic_reduce, ScanOps.generic_scan = reduce_blocks, scan_blocks


def patch_once() -> set[int]:
    """Let Triton's interpreter patch `triton.language` for a module's functions once, not at every call of
    one.

    Returns the modules for which it has, to be cleared for every launch, whose end undoes it.
    """
    from triton.runtime import interpreter

    original, patched = interpreter._patch_lang, set[int]()

    def patch_lang(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return interpreter._LangPatchScope()
        patched.add(module)
        return original(function)

    interpreter._patch_lang = patch_lang
    return patched


def interpreted_size(value: int) -> Any:
    """`value` as Triton's interpreter holds it.

    Of an int it makes an array of one element, which is no bound of a `range` in Triton 3.6 with NumPy 2.4.
    """
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype = tl.int32 if value < 2**31 else tl.int64
    return tl.tensor(TensorHandle(numpy.array(value, dtype=dtype.name), dtype), dtype)


@contextmanager
def no_machine_code() -> Iterator[None]:
    """Let Triton compile to LLVM's IR, unoptimised, and no further: what is left of its own work is none."""
    import triton

    def replace_stages(*given: Any) -> tuple[str, str] | None:
        if not given:
            return "no machine code", "1"
        given[1].update(ptx=lambda llir, metadata: metadata.setdefault("name", ""), cubin=lambda *_: b"")
        return None

    with patch.dict(os.environ, DISABLE_LLVM_OPT="1"):
        triton.knobs.runtime.add_stages_inspection_hook = replace_stages
        try:
            yield
        finally:
            triton.knobs.runtime.add_stages_inspection_hook = None


def compile_(request: dict[str, Any]) -> Any:
    """Machine text of the kernel, or LLVM's, of a kernel for NVIDIA's, if no machine code is wanted."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    function = load(request["text"])[request["entry"]]
    source = (GluonASTSource if function.is_gluon() else ASTSource)(
        fn=function,
        signature=request["signature"],
        constexprs=request["constexprs"],
        attrs=request["attrs"],
    )
    target = GPUTarget(*request["target"])
    if not request["machine_code"]:
        with no_machine_code():
            return triton.compile(source, target=target, options=request["options"]).asm["llir"]
    done = triton.compile(source, target=target, options=request["options"])
    return done.asm["ptx" if request["target"][0] == "cuda" else "amdgcn"]


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until stdin ends."""
    patched = set[int]()
    if os.environ["TRITON_INTERPRET"] == "1":
        round_as_gpus_do()
        combine_whole_blocks()
        patched = patch_once()
    while header := requests.read(8):
        request = pickle.loads(requests.read(struct.unpack("<Q", header)[0]))
        patched.clear()
        try:
            reply: Any = ("ok", {"run": run, "compile": compile_}[request["do"]](request))
        except Exception:  # noqa: BLE001 - whatever Triton raises is the test's to show
            reply = ("error", traceback.format_exc())
        data = pickle.dumps(reply)
        replies.write(struct.pack("<Q", len(data)) + data)
        replies.flush()


if __name__ == "__main__":
    # Triton prints; replies keep the real stdout to themselves
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    main(sys.stdin.buffer, channel)
