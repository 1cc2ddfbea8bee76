"""Addresses in two steps: windows from a common start, and columns from their row."""

from __future__ import annotations

import torch
from kernel_bench import TritonProcess, along, arg, compile_source, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, floordiv, maximum, minimum, symbol
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import Scalar, const, index_value, load, op
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.facts.vectorization import split_constant
from coilwork_triton.statements.loads import find_windows

F32 = DType.F32
X = symbol("x0", extent=64)


def body(kernel: Kernel) -> str:
    text = TritonCodegen().emit(kernel, get_target("sm_90"), {}).text
    return text[text.index(f"\ndef {kernel.name}(") :]


def test_constants_are_split_off() -> None:
    assert split_constant(X * 2 - 3) == (X * 2, -3)
    assert split_constant(X * 2) == (X * 2, 0)
    assert split_constant(as_expr(5)) == (as_expr(5), 0)


def test_windows_are_three_loads_or_more_of_one_buffer() -> None:
    near = [load("in0", [X * 2 + k], F32) for k in (-1, 0, 1)]
    far = [load("in0", [X * 3], F32), load("in1", [X * 2 + 5], F32), load("in0", [X * 3 + 1], F32)]
    assert find_windows([*near, *far]) == frozenset(near)


def pooling(rows: int, columns: int) -> Kernel:
    """The maximum of windows of 3, two apart, of rows padded by one on the left."""
    x0, x1 = along("x0", rows), along("x1", columns)
    at = index_value(x1.symbol * 2 - 1)
    inside = op("ge", at, const(0, DType.I64))
    start = x0.symbol * (2 * columns + 1) + x1.symbol * 2
    value: Scalar = load("in0", [start - 1], F32, mask=inside, other=float("-inf"))
    for k in (0, 1):
        value = op("maximum", value, load("in0", [start + k], F32))
    return Kernel(
        name="pooling",
        ranges=(x0, x1),
        args=(arg("in0", F32, rows * (2 * columns + 1)), arg("out0", F32, rows * columns)),
        stores=(Store(buffer="out0", index=x0.symbol * columns + x1.symbol, value=value),),
    )


def test_a_window_has_one_start(engine: TritonProcess) -> None:
    kernel = pooling(30, 30)
    text = body(kernel)
    assert text.count("in0 + ") == 1 and text.count("tl.load(in0_at") == 3
    assert "tl.assume(xoffset >= 0)" in text
    x = torch.randn(30, 61)
    got = run_source(
        engine, TritonCodegen().emit(kernel, get_target("sm_90"), {}), [x.flatten(), torch.zeros(900)]
    )[-1]
    wanted = torch.nn.functional.max_pool1d(x, 3, 2, padding=1)[:, :30]
    assert torch.equal(got.reshape(30, 30), wanted)


def test_a_start_in_one_place_has_the_shape_of_each_mask(compiler: TritonProcess) -> None:
    x0 = along("x0", 7)
    value: Scalar = load("in0", [as_expr(0)], F32)
    for k in (1, 2):
        before = op("lt", index_value(x0.symbol), const(k, DType.I64))
        value = op("add", value, load("in0", [as_expr(0)], F32, mask=before, other=0.0))
    kernel = Kernel(
        name="one_place",
        ranges=(x0,),
        args=(arg("in0", F32, 7), arg("out0", F32, 7)),
        stores=(Store(buffer="out0", index=x0.symbol, value=value),),
    )
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    assert "in0_at" in source.text
    assert compile_source(compiler, source, "sm_90")


def enlarged(rows: int, columns: int) -> Kernel:
    """Rows and columns of a matrix, each of them twice, from the place before where they are odd."""
    x0, x1 = along("x0", 2 * rows), along("x1", 2 * columns)
    row = maximum(floordiv(x0.symbol + 1, 2) - 1, as_expr(0))
    column = minimum(floordiv(x1.symbol + 1, 2), as_expr(columns - 1))
    value = load("in0", [row * columns + column], F32)
    return Kernel(
        name="enlarged",
        ranges=(x0, x1),
        args=(arg("in0", F32, rows * columns), arg("out0", F32, 4 * rows * columns)),
        stores=(Store(buffer="out0", index=x0.symbol * 2 * columns + x1.symbol, value=op("neg", value)),),
    )


def test_columns_start_from_their_row(engine: TritonProcess) -> None:
    kernel = enlarged(10, 40)
    # of a thread's two rows and two columns, the second column
    assert "in0 + tl.maximum(x0 - 1, 0) * 40 + tl.minimum(x1 * 2 + 2, 39)" in body(kernel)
    x = torch.randn(10, 40)
    got = run_source(
        engine, TritonCodegen().emit(kernel, get_target("sm_90"), {}), [x.flatten(), torch.zeros(1600)]
    )[-1]
    rows = ((torch.arange(20) + 1) // 2 - 1).clamp(min=0)
    columns = ((torch.arange(80) + 1) // 2).clamp(max=39)
    assert torch.equal(got.reshape(20, 80), -x[rows][:, columns])


def test_neighbouring_elements_have_one_offset() -> None:
    x0, x1 = along("x0", 8), along("x1", 64)
    value = load("in0", [x0.symbol * 100 + x1.symbol], F32)
    kernel = Kernel(
        name="rows",
        ranges=(x0, x1),
        args=(arg("in0", F32, 800), arg("out0", F32, 512)),
        stores=(Store(buffer="out0", index=x0.symbol * 64 + x1.symbol, value=op("neg", value)),),
    )
    assert "in0 + (x0 * 100 + x1)" in body(kernel)
