"""A process that runs or compiles Triton text for the tests: pickled requests on stdin, pickled replies on stdout.

Whether Triton interprets or compiles is decided when it is imported, by TRITON_INTERPRET; hence a process for each.
"""

from __future__ import annotations

import linecache
import os
import pickle
import struct
import sys
import traceback
from typing import Any, BinaryIO

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
    if all(extent > 0 for extent in request["grid"]):
        kernel[tuple(request["grid"])](*tensors, *sizes, **request["meta"], **request["options"])
    return [t.cpu() for t in tensors]


def round_as_gpus_do() -> None:
    """Conversions to and from bf16 in Triton's interpreter: to nearest, and of numbers, also of subnormal ones.

    As it comes (Triton 3.6, 3.7) it cuts bits off, takes subnormal numbers for 0, and for types other than f32 converts the bits.
    It multiplies matrices of bf16 by their bits, too.
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
        wide = torch.from_numpy(convert(source, tl.float32).data.copy())
        return TensorHandle(wide.bfloat16().view(torch.int16).numpy().view("uint16"), tl.bfloat16)

    multiply = interpreter_builder.create_dot

    def create_dot(left: Any, right: Any, sums: Any, *precision: Any) -> Any:
        wide = [x if x.dtype.scalar != tl.bfloat16 else cast_impl(x, tl.float32) for x in (left, right)]
        return multiply(*wide, sums, *precision)

    interpreter_builder.cast_impl, interpreter_builder.create_dot = cast_impl, create_dot


def interpreted_size(value: int) -> Any:
    """`value` as Triton's interpreter holds it.

    Of an int it makes an array of one element, which is no bound of a `range` in Triton 3.6 with NumPy 2.4.
    """
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype = tl.int32 if value < 2**31 else tl.int64
    return tl.tensor(TensorHandle(numpy.array(value, dtype=dtype.name), dtype), dtype)


def compile_(request: dict[str, Any]) -> Any:
    """Machine text of the kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=load(request["text"])[request["entry"]],
        signature=request["signature"],
        constexprs=request["constexprs"],
        attrs=request["attrs"],
    )
    done = triton.compile(source, target=GPUTarget(*request["target"]), options=request["options"])
    return done.asm["ptx" if request["target"][0] == "cuda" else "amdgcn"]


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until stdin ends."""
    if os.environ["TRITON_INTERPRET"] == "1":
        round_as_gpus_do()
    while header := requests.read(8):
        request = pickle.loads(requests.read(struct.unpack("<Q", header)[0]))
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
