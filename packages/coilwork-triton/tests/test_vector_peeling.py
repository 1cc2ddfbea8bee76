"""Rows that begin or end within 16 bytes are accessed in whole vectors, and nothing of their neighbours
counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kernel_bench import WALKS, TritonProcess, along, arg, compile_source, run_source
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.ops import ReduceKind, ScanKind
from coilwork_ir.scalar import cast, const, load, op, placeholder, reduce, scan
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32, BF16, I64 = DType.F32, DType.BF16, DType.I64
TORCH = {F32: torch.float32, BF16: torch.bfloat16, DType.U8: torch.uint8, I64: torch.int64}
# Too long for a block in registers by a vector, and not.
LENGTHS = (1001, 2047, 4093)
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(-1),
    "max": lambda rows: rows.amax(-1),
    "welford": lambda rows: rows.mean(-1),
    "online_softmax": lambda rows: rows.amax(-1),
    "argmax": lambda rows: rows.argmax(-1),
    "argmin": lambda rows: rows.argmin(-1),
}


def kernel_of(
    ranges: tuple[Range, ...],
    args: tuple[TensorArg, ...],
    *stores: Store,
    sizes: tuple[Expr, ...] = (),
) -> Kernel:
    return Kernel(name="tested", ranges=ranges, args=args, stores=stores, sizes=sizes)


def emitted(kernel: Kernel, hint: str = "persistent") -> KernelSource:
    return TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint])


def results(
    process: TritonProcess,
    kernel: Kernel,
    *tensors: Tensor,
    sizes: tuple[int, ...] = (),
    hint: str = "persistent",
) -> list[Tensor]:
    """The last tensor after each candidate."""
    source = emitted(kernel, hint)
    return [
        run_source(process, source, [t.clone() for t in tensors], sizes, k)[-1]
        for k in range(len(source.configs))
    ]


def row_sums(length: int, kind: ReduceKind, dtype: DType = F32, rows: int = 5) -> Kernel:
    x, r = along("x0", rows), along("r0", length, "reduction")
    element = cast(load("in0", [x.symbol * length + r.symbol], dtype), F32)
    out = I64 if kind.startswith("arg") else F32
    return kernel_of(
        (x, r),
        (arg("in0", dtype, rows * length), arg("out0", out, rows)),
        Store(buffer="out0", index=x.symbol, value=reduce(kind, [element], [r.symbol])),
    )


def normalised(
    length: int, dtype: DType, rows: int = 5, name: str = "out0", weighted: bool = False
) -> Kernel:
    """A softmax, and weights of its columns."""
    x, r = along("x0", rows), along("r0", length, "reduction")
    at = x.symbol * length + r.symbol
    source = "in0" if name == "out0" else name
    element = cast(load(source, [at], dtype), F32)
    high = reduce("max", [element], [r.symbol])
    part = op("exp", op("sub", element, high))
    weight = load("in1", [r.symbol if weighted else x.symbol], F32)
    value = op("mul", op("div", part, reduce("sum", [part], [r.symbol])), weight)
    args = [arg("in1", F32, length), arg(name, dtype, rows * length)]
    if source != name:
        args.insert(0, arg(source, dtype, rows * length))
    return kernel_of((x, r), tuple(args), Store(buffer=name, index=at, value=cast(value, dtype)))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_at_the_ends_of_rows_reduce_no_neighbours(
    engine: TritonProcess, kind: ReduceKind, length: int, hint: str, dtype: DType
) -> None:
    """Every other row is of NaNs, which a neighbour's vectors hold."""
    data = torch.randn(5, length, generator=torch.Generator().manual_seed(length)).to(TORCH[dtype])
    data[1::2] = math.nan
    for got in results(engine, row_sums(length, kind, dtype), data, torch.zeros(5), hint=hint):
        torch.testing.assert_close(
            got[::2], KINDS[kind](data.float())[::2].to(got.dtype), rtol=1e-4, atol=1e-3
        )


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_rows_of_the_extremum_alone_report_their_first(engine: TritonProcess, kind: ReduceKind) -> None:
    data = torch.full((5, 9001), -math.inf if kind == "argmax" else math.inf)
    memory = torch.full((5,), 7, dtype=torch.int64)
    for got in results(engine, row_sums(9001, kind), data, memory, hint="looped"):
        assert got.tolist() == [0] * 5


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("length", LENGTHS)
def test_vectors_at_the_ends_of_rows_store_no_neighbours(
    engine: TritonProcess, length: int, hint: str, dtype: DType
) -> None:
    generator = torch.Generator().manual_seed(length)
    data = torch.randn(5, length, generator=generator).to(TORCH[dtype])
    weight = torch.randn(length, generator=generator)
    wanted = (data.float().softmax(-1) * weight[:5, None]).to(TORCH[dtype])
    rest = torch.full((32,), 7.0, dtype=TORCH[dtype])
    memory = torch.cat([torch.zeros_like(data).flatten(), rest])
    for got in results(engine, normalised(length, dtype), data, weight, memory, hint=hint):
        torch.testing.assert_close(got[: wanted.numel()].view_as(wanted), wanted)
        assert torch.equal(got[wanted.numel() :], rest)
    for got in results(engine, normalised(length, dtype, name="io0"), weight, data, hint=hint):
        torch.testing.assert_close(got.view_as(wanted), wanted)


@pytest.mark.parametrize("dtype", [F32, BF16, DType.U8])
@pytest.mark.parametrize("count", [257, 4099, 16389])
def test_lines_of_points(engine: TritonProcess, count: int, dtype: DType) -> None:
    x = along("x0", count)
    a_value, b_value = (cast(load(name, [x.symbol], dtype), F32) for name in ("in0", "in1"))
    value = cast(op("add", a_value, b_value), dtype)
    args = (arg("in0", dtype, count), arg("in1", dtype, count), arg("out0", dtype, count))
    kernel = kernel_of((x,), args, Store(buffer="out0", index=x.symbol, value=value))
    a, b = ((torch.rand(count) * 50).to(TORCH[dtype]) for _ in range(2))
    rest = torch.full((32,), 7.0).to(TORCH[dtype])
    memory = torch.cat([torch.zeros_like(a), rest])
    for got in results(engine, kernel, a, b, memory):
        assert torch.equal(got[:count], (a.float() + b.float()).to(a.dtype)) and torch.equal(
            got[count:], rest
        )
    assert "xwhole" in emitted(kernel).text


def test_columns_of_several_types_and_distances(engine: TritonProcess) -> None:
    """A mask of bytes has 16 of them in a vector, and another tensor's rows lie 48 elements behind."""
    length, rows = 1501, 3
    x, r = along("x0", rows), along("r0", length, "reduction")
    at = x.symbol * length + r.symbol
    kept = op("ne", load("in1", [at], DType.U8), const(0, DType.U8))
    element = op("where", kept, load("in0", [at + 48], F32), const(0.0, F32))
    kernel = kernel_of(
        (x, r),
        (
            arg("in0", F32, rows * length + 48),
            arg("in1", DType.U8, rows * length),
            arg("out0", F32, rows),
        ),
        Store(buffer="out0", index=x.symbol, value=reduce("sum", [element], [r.symbol])),
    )
    text = emitted(kernel, "looped").text
    assert "rnear16" in text and "rnear4" in text and "rrow + 48 + rlane" in text
    data = torch.randn(rows * length + 48)
    mask = torch.randint(2, (rows, length), dtype=torch.uint8)
    wanted = (data[48:].view(rows, length) * mask).sum(-1)
    for got in results(engine, kernel, data, mask, torch.zeros(rows), hint="looped"):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["min", "sum"])
def test_scans_keep_their_rows(engine: TritonProcess, kind: ScanKind) -> None:
    """What stands before the first element would be scanned with it."""
    n0, n1 = symbol("n0", lo=1), symbol("n1", lo=1)
    x, r = along("x0", n0), along("r0", n1, "reduction")
    at = x.symbol * n1 + r.symbol
    value = scan(kind, load("in0", [at], F32), r.symbol)
    kernel = kernel_of(
        (x, r),
        (arg("in0", F32, n0 * n1), arg("out0", F32, n0 * n1)),
        Store(buffer="out0", index=at, value=value),
        sizes=(n0, n1),
    )
    for shape in ((5, 33), (3, 5001)):
        data = torch.randn(shape)
        data[::2] -= 9
        wanted = data.cummin(-1).values if kind == "min" else data.cumsum(-1)
        for got in results(engine, kernel, data, torch.zeros_like(data), sizes=shape):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)


def test_rows_of_open_lengths_are_peeled_at_run_time(engine: TritonProcess) -> None:
    n0, n1 = symbol("n0", lo=1), symbol("n1", lo=1)
    x, r = along("x0", n0), along("r0", n1, "reduction")
    kernel = kernel_of(
        (x, r),
        (arg("in0", F32, n0 * n1), arg("out0", F32, n0)),
        Store(
            buffer="out0",
            index=x.symbol,
            value=reduce("sum", [load("in0", [x.symbol * n1 + r.symbol], F32)], [r.symbol]),
        ),
        sizes=(n0, n1),
    )
    assert "rshift" in emitted(kernel).text
    for shape in ((3, 1001), (5, 7), (2, 4096), (1, 1)):
        data = torch.randn(shape)
        for got in results(engine, kernel, data, torch.zeros(shape[0]), sizes=shape):
            torch.testing.assert_close(got, data.sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("length", [3001, 16381, 50257])
def test_accesses_are_16_bytes_wide(compiler: TritonProcess, length: int, hint: str) -> None:
    kernel = normalised(length, BF16, rows=1024)
    text = compile_source(compiler, emitted(kernel, hint), "sm_90", 0)
    assert "ld.global" in text and ".v4.b32" in text


def test_rows_that_fill_their_block_are_accessed_element_by_element_or_in_a_loop() -> None:
    """No lane is left for what is before them: up to 8,192 elements stay on chip, and threads side by side
    have neighbours.
    """
    short, long = (emitted(normalised(length, BF16)) for length in (8191, 16381))
    assert "rshift" not in short.text and not any(a.aligned for a in short.args)
    assert "rshift" in long.text and "for r0_offset" in long.text


def test_ptxas_is_told_that_few_lanes_stand_before_a_row() -> None:
    """Those behind its end are then idle for certain: of 8,192 lanes 5,003 take three accesses of 16 bytes
    per thread, not four.
    """
    text = emitted(normalised(5003, BF16)).text
    assert "rrow = rstart // 8 * 8\n" in text and "rshift = rstart & 7\n" in text


def test_what_is_not_aligned_stays_as_it_is() -> None:
    kernel = row_sums(4093, "sum")
    moved = replace(kernel, args=(arg("in0", F32, 5 * 4093, aligned=False), kernel.args[1]))
    assert "rshift" not in emitted(moved, "looped").text and "rshift" in emitted(kernel, "looped").text


def test_results_do_not_depend_on_the_row_where_that_is_asked_for() -> None:
    source = TritonCodegen().emit(row_sums(4093, "sum"), get_target("sm_90"), {"batch_invariant": True})
    assert "rshift" not in source.text


def test_weights_of_columns_keep_rows_as_they_are() -> None:
    """They would begin elsewhere within a vector in each row."""
    assert "rshift" not in emitted(normalised(4093, BF16, weighted=True), "looped").text
    assert "rshift" in emitted(normalised(4093, BF16), "looped").text


def test_lookups_keep_neighbouring_threads_at_neighbouring_points() -> None:
    x = along("x0", 4099)
    found = load("in0", [placeholder(0)], F32, indirect=[load("in1", [x.symbol], I64)])
    kernel = kernel_of(
        (x,),
        (arg("in0", F32, 50), arg("in1", I64, 4099), arg("out0", F32, 4099)),
        Store(buffer="out0", index=x.symbol, value=found),
    )
    assert "xwhole" not in emitted(kernel).text
