"""Kernels run in Triton's interpreter and agree with torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from kernel_bench import WALKS, TritonProcess, along, arg, grid_of, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, floordiv, minimum, mod, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.loops import Check
from coilwork_ir.ops import REDUCE_OPS, SCAN_KINDS, ReduceKind, ScanKind, StoreMode
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, placeholder, reduce, scan, where
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.statements.reductions import REDUCTIONS
from coilwork_triton.statements.scans import scan_kinds
from coilwork_triton.text.index_printer import is_within_32_bits, may_leave_32_bits

F32, I64 = DType.F32, DType.I64


def kernel_of(
    ranges: tuple[Range, ...],
    args: tuple[TensorArg, ...],
    *stores: Store,
    sizes: tuple[Expr, ...] = (),
    checks: tuple[Check, ...] = (),
) -> Kernel:
    return Kernel(
        name="tested",
        ranges=ranges,
        args=args,
        stores=stores,
        sizes=sizes,
        checks=checks,
    )


def run(
    process: TritonProcess,
    kernel: Kernel,
    *tensors: torch.Tensor,
    sizes: tuple[int, ...] = (),
    **options: Any,
) -> torch.Tensor:
    """The last tensor after each candidate configuration; they must agree."""
    source = TritonCodegen().emit(kernel, get_target("sm_90"), options)
    found = [
        run_source(process, source, [t.clone() for t in tensors], sizes, k)[-1]
        for k in range(len(source.configs))
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], equal_nan=True, rtol=1e-4, atol=1e-4)
    return found[0]


def test_broadcast_operands_are_read_at_their_own_ranges(engine: TritonProcess) -> None:
    x0, x1 = along("x0", 7), along("x1", 33)
    i, j = x0.symbol, x1.symbol
    value = op("mul", op("add", load("in0", [i * 33 + j], F32), load("in1", [j], F32)), load("in2", [i], F32))
    args = (arg("in0", F32, 231), arg("in1", F32, 33), arg("in2", F32, 7), arg("out0", F32, 231))
    kernel = kernel_of((x0, x1), args, Store(buffer="out0", index=i * 33 + j, value=value))
    a, b, c = torch.randn(7, 33), torch.randn(33), torch.randn(7)
    torch.testing.assert_close(run(engine, kernel, a, b, c, torch.zeros(7, 33)), (a + b) * c[:, None])


def test_three_ranges_in_one_tile(engine: TritonProcess) -> None:
    x0, x1, x2 = along("x0", 3), along("x1", 5), along("x2", 7)
    i, j, k = x0.symbol, x1.symbol, x2.symbol
    value = op("add", load("in0", [i * 35 + j * 7 + k], F32), load("in1", [k * 15 + j * 3 + i], F32))
    args = (arg("in0", F32, 105), arg("in1", F32, 105), arg("out0", F32, 105))
    kernel = kernel_of((x0, x1, x2), args, Store(buffer="out0", index=i * 35 + j * 7 + k, value=value))
    a, b = torch.randn(3, 5, 7), torch.randn(7, 5, 3)
    torch.testing.assert_close(run(engine, kernel, a, b, torch.zeros(3, 5, 7)), a + b.permute(2, 1, 0))


@pytest.mark.parametrize(("rows", "width", "pitch"), [(5, 300, 304), (3, 1001, 1008), (2, 2047, 2047)])
def test_rows_are_padded_with_what_masked_loads_give(
    engine: TritonProcess, rows: int, width: int, pitch: int
) -> None:
    x0, x1 = along("x0", rows), along("x1", pitch)
    i, j = x0.symbol, x1.symbol
    inside = op("lt", index_value(j), const(width, I64))
    value = op("mul", load("in0", [i * width + j], F32, mask=inside), const(2.0, F32))
    args = (arg("in0", F32, rows * width), arg("out0", F32, rows * pitch))
    kernel = kernel_of((x0, x1), args, Store(buffer="out0", index=i * pitch + j, value=value))
    data = torch.randn(rows, width)
    want = torch.nn.functional.pad(data * 2, (0, pitch - width))
    assert torch.equal(run(engine, kernel, data, torch.ones(rows, pitch)), want)


@pytest.mark.parametrize("shape", [(40, 70), (1, 70), (64, 64)])
def test_a_transposed_operand_is_read_in_tiles(engine: TritonProcess, shape: tuple[int, int]) -> None:
    rows, columns = shape
    y, x = along("y0", rows), along("x0", columns)
    value = op(
        "add",
        load("in0", [y.symbol * columns + x.symbol], F32),
        load("in1", [x.symbol * rows + y.symbol], F32),
    )
    args = tuple(arg(n, F32, rows * columns) for n in ("in0", "in1", "out0"))
    kernel = kernel_of((y, x), args, Store(buffer="out0", index=y.symbol * columns + x.symbol, value=value))
    a, b = torch.randn(rows, columns), torch.randn(columns, rows)
    torch.testing.assert_close(run(engine, kernel, a, b, torch.zeros(shape)), a + b.t())


def test_three_ranges_are_three_tiles(engine: TritonProcess) -> None:
    z, y, x = along("z0", 3), along("y0", 20), along("x0", 17)
    i, j, k = z.symbol, y.symbol, x.symbol
    value = op("neg", load("in0", [i * 340 + k * 20 + j], F32))
    kernel = kernel_of(
        (z, y, x),
        (arg("in0", F32, 1020), arg("out0", F32, 1020)),
        Store(buffer="out0", index=i * 340 + j * 17 + k, value=value),
    )
    a = torch.randn(3, 17, 20)
    torch.testing.assert_close(run(engine, kernel, a, torch.zeros(3, 20, 17)), -a.transpose(1, 2))


def test_many_rows_of_a_tile_share_the_first_grid_axis(engine: TritonProcess) -> None:
    rows = symbol("n0", lo=1)
    y, x = along("y0", rows), along("x0", 33)
    value = op("neg", load("in0", [x.symbol * rows + y.symbol], F32))
    kernel = kernel_of(
        (y, x),
        (arg("in0", F32, rows * 33), arg("out0", F32, rows * 33)),
        Store(buffer="out0", index=y.symbol * 33 + x.symbol, value=value),
        sizes=(rows,),
    )
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    assert len(source.grid) == 1
    assert grid_of(source, source.configs[0], [70])[0] > 1
    a = torch.randn(33, 70)
    torch.testing.assert_close(run(engine, kernel, a, torch.zeros(70, 33), sizes=(70,)), -a.t())


@pytest.mark.parametrize("choice", ["auto", "i32", "i64"])
@pytest.mark.parametrize("size", [0, 1, 5, 300])
def test_one_kernel_serves_every_size(engine: TritonProcess, size: int, choice: str) -> None:
    n = symbol("n0", lo=0)
    x = along("x0", n)
    value = op("add", load("in0", [x.symbol], F32), cast(index_value(x.symbol * n), F32))
    kernel = kernel_of(
        (x,),
        (arg("in0", F32, n), arg("out0", F32, n)),
        Store(buffer="out0", index=x.symbol, value=value),
        sizes=(n,),
    )
    a = torch.randn(size)
    got = run(engine, kernel, a, torch.zeros(size), sizes=(size,), index_dtype=choice)
    torch.testing.assert_close(got, a + torch.arange(size) * size)


def test_offsets_whose_terms_leave_32_bits(engine: TritonProcess) -> None:
    """Windows that share 100,000 elements: `39999 * 60000` is no 32-bit number, although what it is divided
    by leaves small ones.
    """
    size, count = 100_000, 60_001
    x = along("x0", count)
    start = floordiv(x.symbol * size, as_expr(count))
    value = load("in0", [start], F32)
    offsets = kernel_of(
        (x,),
        (arg("in0", F32, size), arg("out0", F32, count)),
        Store(buffer="out0", index=x.symbol, value=value),
    )
    a = torch.arange(size, dtype=torch.float32)
    want = torch.arange(count) * size // count
    assert torch.equal(run(engine, offsets, a, torch.zeros(count)), want.float())
    numbers = kernel_of(
        (x,), (arg("out0", I64, count),), Store(buffer="out0", index=x.symbol, value=index_value(start))
    )
    assert torch.equal(run(engine, numbers, torch.zeros(count, dtype=torch.int64)), want)


def test_sums_that_leave_32_bits_on_the_way() -> None:
    far, near = symbol("i0", extent=2**30), symbol("i1", extent=5)
    assert may_leave_32_bits(far * 3)
    three = far + symbol("i2", extent=2**30) + symbol("i3", extent=2**30)
    assert may_leave_32_bits(three - 2**30 - 5) and not may_leave_32_bits(three - far)
    assert may_leave_32_bits(mod(far * 4 + near, as_expr(7)))
    assert may_leave_32_bits(minimum(far * 4, as_expr(7)))
    assert not may_leave_32_bits(far + near) and is_within_32_bits(far + near)
    # of what data says nothing is known
    assert not may_leave_32_bits(placeholder(0) * 5 + near) and not is_within_32_bits(
        placeholder(0) * 5 + near
    )


def test_masked_load_is_padding(engine: TritonProcess) -> None:
    x = along("x0", 12)
    inside = op(
        "bitwise_and",
        op("ge", index_value(x.symbol), const(2, I64)),
        op("lt", index_value(x.symbol), const(10, I64)),
    )
    value = load("in0", [x.symbol - 2], F32, mask=inside, other=-1.5)
    kernel = kernel_of(
        (x,), (arg("in0", F32, 8), arg("out0", F32, 12)), Store(buffer="out0", index=x.symbol, value=value)
    )
    a = torch.randn(8)
    want = torch.nn.functional.pad(a, (2, 2), value=-1.5)
    torch.testing.assert_close(run(engine, kernel, a, torch.zeros(12)), want)


def test_load_masked_along_a_tile_it_does_not_move_along(engine: TritonProcess) -> None:
    y, x = along("y0", 6), along("x0", 9)
    keep = op("lt", index_value(y.symbol), const(3, I64))
    value = load("in0", [x.symbol], F32, mask=keep)
    kernel = kernel_of(
        (y, x),
        (arg("in0", F32, 9), arg("out0", F32, 54)),
        Store(buffer="out0", index=y.symbol * 9 + x.symbol, value=value),
    )
    a = torch.randn(9)
    want = torch.where(torch.arange(6)[:, None] < 3, a, torch.zeros(()))
    torch.testing.assert_close(run(engine, kernel, a, torch.zeros(6, 9)), want)


@pytest.mark.parametrize("choice", ["i32", "i64"])
def test_gather_through_an_index_tensor(engine: TritonProcess, choice: str) -> None:
    x0, x1 = along("x0", 5), along("x1", 16)
    row = load("in1", [x0.symbol], I64)
    wrapped = where(op("lt", row, const(0, I64)), op("add", row, const(10, I64)), row)
    value = load("in0", [placeholder(0) * 16 + x1.symbol], F32, indirect=[wrapped])
    check = Check(condition=op("lt", wrapped, const(10, I64)), message="index out of range")
    kernel = kernel_of(
        (x0, x1),
        (arg("in0", F32, 160), arg("in1", I64, 5), arg("out0", F32, 80)),
        Store(buffer="out0", index=x0.symbol * 16 + x1.symbol, value=value),
        checks=(check,),
    )
    table, rows = torch.randn(10, 16), torch.tensor([3, -1, 0, 9, 3])
    got = run(engine, kernel, table, rows, torch.zeros(5, 16), index_dtype=choice)
    torch.testing.assert_close(got, table[rows])


def test_floordiv_and_mod_of_negative_indices(engine: TritonProcess) -> None:
    x = along("x0", 11)
    value = index_value(floordiv(x.symbol - 5, 3) * 100 + mod(x.symbol - 5, as_expr(3)))
    kernel = kernel_of((x,), (arg("out0", I64, 11),), Store(buffer="out0", index=x.symbol, value=value))
    shifted = torch.arange(11) - 5
    want = torch.div(shifted, 3, rounding_mode="floor") * 100 + torch.remainder(shifted, 3)
    assert torch.equal(run(engine, kernel, torch.zeros(11, dtype=torch.int64)), want)


# of an element and its place in the row
RowValue = Callable[[Scalar, Expr], Scalar]


def rows_kernel(
    rows: int, width: Expr | int, value: RowValue, out: DType, per_row: bool, dtype: DType = F32
) -> Kernel:
    """`value(element, r)` stored per row or per element of a `rows` x `width` matrix."""
    x, r = along("x0", rows), along("r0", width, "reduction")
    flat = x.symbol * width + r.symbol
    sizes = () if isinstance(width, int) else (width,)
    kernel = kernel_of(
        (x, r),
        (arg("in0", dtype, rows * width), arg("out0", out, rows if per_row else rows * width)),
        Store(
            buffer="out0",
            index=x.symbol if per_row else flat,
            value=value(load("in0", [flat], dtype), r.symbol),
        ),
        sizes=sizes,
    )
    return kernel


def softmax(element: Scalar, r: Expr) -> Scalar:
    shifted = op("exp", op("sub", element, reduce("max", [element], [r])))
    return op("div", shifted, reduce("sum", [shifted], [r]))


def one_pass_softmax(element: Scalar, r: Expr) -> Scalar:
    high, total = (reduce("online_softmax", [element], [r], output=k) for k in (0, 1))
    return op("div", op("exp", op("sub", element, high)), total)


def layer_norm(element: Scalar, r: Expr) -> Scalar:
    mean, m2 = (reduce("welford", [element], [r], output=k) for k in (0, 1))
    variance = op("div", m2, const(int(str(r.extent)), F32))
    return op("mul", op("sub", element, mean), op("rsqrt", op("add", variance, const(1e-5, F32))))


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("width", [1, 48, 64])
@pytest.mark.parametrize("function", [softmax, one_pass_softmax])
def test_a_softmax_of_rows_is_torchs(
    engine: TritonProcess, function: RowValue, width: int, hint: str
) -> None:
    a = torch.randn(3, width)
    a[0, : width // 2] = -math.inf
    kernel = rows_kernel(3, width, function, F32, per_row=False)
    found = run(engine, kernel, a, torch.zeros(3, width), max_configs=1, **WALKS[hint])
    torch.testing.assert_close(found, a.softmax(-1))


@pytest.mark.parametrize("width", [5000, 8192])
def test_softmax_of_long_rows_is_rescaled_once_per_chunk(engine: TritonProcess, width: int) -> None:
    a = torch.randn(6, width) * 30
    a[1, :4099] = -math.inf
    a[2] = -math.inf
    a[3, width - 2] = math.inf
    a[4, 4097] = math.nan
    a[5] = torch.arange(width, 0, -1) * 0.01
    kernel = rows_kernel(6, width, one_pass_softmax, F32, per_row=False)
    assert "online_softmax_chunks" in TritonCodegen().emit(kernel, get_target("sm_90"), WALKS["looped"]).text
    found = run(engine, kernel, a, torch.zeros(6, width), max_configs=1, **WALKS["looped"])
    torch.testing.assert_close(found, a.softmax(-1), equal_nan=True)


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("width", [100, 3000])
def test_a_layer_norm_is_near_the_exact_one(engine: TritonProcess, width: int, hint: str) -> None:
    a = torch.randn(3, width) * 3 + 1e2
    kernel = rows_kernel(3, width, layer_norm, F32, per_row=False)
    got = run(engine, kernel, a, torch.zeros(3, width), **WALKS[hint])
    torch.testing.assert_close(
        got.double(), torch.nn.functional.layer_norm(a.double(), [width]), rtol=1e-4, atol=3e-5
    )


def test_welford_counts_only_what_its_mask_keeps(engine: TritonProcess) -> None:
    for hint in ("persistent", "looped"):

        def variance(element: Scalar, r: Expr) -> Scalar:
            return reduce("welford", [element, op("gt", element, const(0.0, F32))], [r], output=1)

        a = torch.randn(4, 300)
        kernel = rows_kernel(4, 300, variance, F32, per_row=True)
        got = run(engine, kernel, a, torch.zeros(4), **WALKS[hint])
        want = torch.stack([row[row > 0].var(correction=0) * (row > 0).sum() for row in a])
        torch.testing.assert_close(got, want)


REFERENCES = {
    "sum": lambda a: a.sum(-1),
    "prod": lambda a: a.prod(-1),
    "min": lambda a: a.amin(-1),
    "max": lambda a: a.amax(-1),
    "argmin": lambda a: a.argmin(-1),
    "argmax": lambda a: a.argmax(-1),
    "any": lambda a: a.any(-1),
    "all": lambda a: a.all(-1),
    "xor_sum": lambda a: torch.tensor(
        [__import__("functools").reduce(lambda p, q: p ^ q, row) for row in a.tolist()]
    ),
    "welford": lambda a: a.mean(-1),
    "online_softmax": lambda a: a.amax(-1),
}


def test_no_reduction_or_scan_is_missing() -> None:
    assert set(REDUCTIONS) == set(REDUCE_OPS) == set(REFERENCES)
    assert scan_kinds() == set(SCAN_KINDS)


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("width", [1, 20, 70])
@pytest.mark.parametrize("kind", sorted(REDUCE_OPS))
def test_every_reduction_of_rows_is_torchs(
    engine: TritonProcess, kind: ReduceKind, width: int, hint: str
) -> None:
    torch.manual_seed(0)
    dtype, data = F32, torch.randn(5, width)
    if kind in ("any", "all"):
        dtype, data = DType.BOOL, torch.rand(5, width) > (0.9 if kind == "any" else 0.1)
        data[0], data[1] = True, False
    if kind == "xor_sum":
        dtype, data = I64, torch.randint(-(2**40), 2**40, (5, width))
    out = I64 if kind.startswith("arg") else dtype
    kernel = rows_kernel(5, width, lambda e, r: reduce(kind, [e], [r]), out, per_row=True, dtype=dtype)
    want = REFERENCES[kind](data)
    got = run(engine, kernel, data, torch.zeros(5, dtype=want.dtype), max_configs=1, **WALKS[hint])
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("hint", ["persistent", "looped"])
def test_reduction_of_nothing_reads_nothing(engine: TritonProcess, hint: str) -> None:
    kernel = rows_kernel(3, 0, lambda e, r: reduce("sum", [e], [r]), F32, per_row=True)
    got = run(engine, kernel, torch.full((3,), 7.0), torch.ones(3), max_configs=1, **WALKS[hint])
    assert torch.equal(got, torch.zeros(3))


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("kind", ["min", "max", "argmin", "argmax"])
def test_extremes_follow_torch_on_ties_and_nan(engine: TritonProcess, kind: ReduceKind, hint: str) -> None:
    data = torch.randint(-2, 3, (6, 40)).float()
    data[1, 7] = data[1, 20] = math.nan
    data[2] = -math.inf
    data[3] = math.inf
    data[4] = math.nan
    out = I64 if kind.startswith("arg") else F32
    kernel = rows_kernel(6, 40, lambda e, r: reduce(kind, [e], [r]), out, per_row=True)
    want = REFERENCES[kind](data)
    got = run(engine, kernel, data, torch.zeros(6, dtype=want.dtype), max_configs=1, **WALKS[hint])
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("kind", ["sum", "max", "argmax", "any", "welford"])
def test_reduction_across_contiguous_columns(engine: TritonProcess, kind: ReduceKind) -> None:
    x, r = along("x0", 37), along("r0", 50, "reduction")
    dtype = DType.BOOL if kind == "any" else F32
    out = I64 if kind == "argmax" else dtype
    value = reduce(kind, [load("in0", [r.symbol * 37 + x.symbol], dtype)], [r.symbol])
    data = torch.rand(50, 37) > 0.97 if kind == "any" else torch.randn(50, 37)
    want = REFERENCES[kind](data.t())
    for hint in ("persistent", "looped"):
        kernel = kernel_of(
            (x, r),
            (arg("in0", dtype, 1850), arg("out0", out, 37)),
            Store(buffer="out0", index=x.symbol, value=value),
        )
        got = run(engine, kernel, data, torch.zeros(37, dtype=want.dtype), max_configs=1, **WALKS[hint])
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("hint", ["persistent", "looped"])
def test_argmax_over_two_ranges_is_row_major(engine: TritonProcess, hint: str) -> None:
    r0, r1 = along("r0", 6, "reduction"), along("r1", 7, "reduction")
    value = reduce("argmax", [load("in0", [r0.symbol + r1.symbol * 6], F32)], [r0.symbol, r1.symbol])
    kernel = kernel_of(
        (r0, r1),
        (arg("in0", F32, 42), arg("out0", I64, 1)),
        Store(buffer="out0", index=as_expr(0), value=value),
    )
    data = torch.randn(7, 6)
    got = run(engine, kernel, data, torch.zeros(1, dtype=torch.int64), **WALKS[hint])
    assert got.item() == data.t().reshape(-1).argmax().item()


@pytest.mark.parametrize("length", [0, 1, 130])
def test_symbolic_reduction_length(engine: TritonProcess, length: int) -> None:
    n = symbol("n0", lo=0)
    kernel = rows_kernel(3, n, lambda e, r: reduce("sum", [e], [r]), F32, per_row=True)
    data = torch.randn(3, length)
    got = run(engine, kernel, data, torch.ones(3), sizes=(length,))
    torch.testing.assert_close(got, data.sum(-1))


def test_sum_of_what_does_not_move_along_the_reduction(engine: TritonProcess) -> None:
    for hint in ("persistent", "looped"):
        x, r = along("x0", 5), along("r0", 12, "reduction")
        value = reduce("sum", [load("in0", [x.symbol], F32)], [r.symbol])
        kernel = kernel_of(
            (x, r),
            (arg("in0", F32, 5), arg("out0", F32, 5)),
            Store(buffer="out0", index=x.symbol, value=value),
        )
        data = torch.randn(5)
        torch.testing.assert_close(run(engine, kernel, data, torch.zeros(5), **WALKS[hint]), data * 12)


SCANS = {
    "sum": lambda a: a.cumsum(-1),
    "prod": lambda a: a.cumprod(-1),
    "min": lambda a: a.cummin(-1).values,
    "max": lambda a: a.cummax(-1).values,
    "argmin": lambda a: a.cummin(-1).indices,
    "argmax": lambda a: a.cummax(-1).indices,
    "logcumsumexp": lambda a: a.logcumsumexp(-1),
}


# torch has no reference for positions from the end
@pytest.mark.parametrize(
    ("kind", "reverse"),
    [(kind, back) for kind in SCAN_KINDS for back in (False, True) if not (back and kind.startswith("arg"))],
)
@pytest.mark.parametrize("hint", ["persistent", "looped"])
def test_every_scan_of_rows_is_torchs_in_both_directions(
    engine: TritonProcess, kind: ScanKind, hint: str, reverse: bool
) -> None:
    width = 2100 if (hint, kind) == ("looped", "sum") else 45
    data = torch.randn(2, width)
    data[0, 3] = -math.inf
    data[1, 9:20] = data[1, 8]
    out = I64 if kind.startswith("arg") else F32
    kernel = rows_kernel(2, width, lambda e, r: scan(kind, e, r, reverse=reverse), out, per_row=False)
    want = SCANS[kind](data.flip(-1)).flip(-1) if reverse else SCANS[kind](data)
    got = run(engine, kernel, data, torch.zeros(2, width, dtype=want.dtype), **WALKS[hint])
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


def extreme_so_far(output: int, element: Scalar, r: Expr) -> Scalar:
    return scan("max", element, r, output=output)


def test_running_maximum_gives_value_and_position(engine: TritonProcess) -> None:
    data = torch.randint(0, 5, (2, 30)).float()
    data[1, 11] = math.nan
    for output, want in enumerate(data.cummax(-1)):
        kernel = rows_kernel(
            2,
            30,
            partial(extreme_so_far, output),
            I64 if output else F32,
            per_row=False,
        )
        got = run(engine, kernel, data, torch.zeros(2, 30, dtype=want.dtype))
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("mode", ["add", "min", "max"])
def test_updates_that_collide_are_all_counted(engine: TritonProcess, mode: StoreMode) -> None:
    x = along("x0", 50)
    store = Store(
        buffer="io0",
        index=placeholder(0),
        indirect=(load("in1", [x.symbol], I64),),
        value=load("in0", [x.symbol], F32),
        mode=mode,
    )
    kernel = kernel_of((x,), (arg("in0", F32, 50), arg("in1", I64, 50), arg("io0", F32, 8)), store)
    values, where_to, start = torch.randn(50), torch.randint(0, 8, (50,)), torch.zeros(8)
    name = {"add": "sum", "min": "amin", "max": "amax"}[mode]
    want = start.scatter_reduce(0, where_to, values, name)
    torch.testing.assert_close(run(engine, kernel, values, where_to, start), want)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("dtype", [F32, DType.F64])
@pytest.mark.parametrize("count", [64, 50])
def test_atomic_extremes_keep_nan_of_either_sign(
    engine: TritonProcess, mode: StoreMode, dtype: DType, count: int
) -> None:
    # eager's do; processors make NaN of one sign, programs that of the other
    x = along("x0", count)
    store = Store(
        buffer="io0",
        index=placeholder(0),
        indirect=(load("in1", [x.symbol], I64),),
        value=load("in0", [x.symbol], dtype),
        mode=mode,
    )
    kernel = kernel_of((x,), (arg("in0", dtype, count), arg("in1", I64, count), arg("io0", dtype, 8)), store)
    torch_dtype = torch.float32 if dtype is F32 else torch.float64
    nan = torch.tensor(float("nan"), dtype=torch_dtype)
    of_either_sign = [nan.copysign(torch.tensor(sign)) for sign in (1.0, -1.0)]
    values, where_to = torch.randn(count, dtype=torch_dtype), torch.arange(count) % 8
    start = torch.zeros(8, dtype=torch_dtype)
    values[[12, 37]] = torch.stack(of_either_sign)
    start[:2] = torch.stack(of_either_sign)
    got = run(engine, kernel, values, where_to, start)
    want = start.scatter_reduce(0, where_to, values, f"a{mode}")
    assert want.isnan().tolist() == [True, True, False, False, True, True, False, False]
    torch.testing.assert_close(got, want, equal_nan=True)


def test_atomic_update_happens_at_every_point_of_the_parallel_ranges(engine: TritonProcess) -> None:
    y, x = along("y0", 6), along("x0", 9)
    store = Store(buffer="io0", index=x.symbol, value=load("in0", [x.symbol], F32), mode="add")
    other = Store(buffer="out0", index=y.symbol * 9 + x.symbol, value=load("in0", [x.symbol], F32))
    kernel = kernel_of((y, x), (arg("in0", F32, 9), arg("out0", F32, 54), arg("io0", F32, 9)), store, other)
    data = torch.randn(9)
    torch.testing.assert_close(run(engine, kernel, data, torch.zeros(54), torch.zeros(9)), 6 * data)


def test_in_place_store_waits_for_the_last_read(engine: TritonProcess) -> None:
    x, r = along("x0", 3), along("r0", 100, "reduction")
    element = load("io0", [x.symbol * 100 + r.symbol], F32)
    doubled = Store(buffer="io0", index=x.symbol * 100 + r.symbol, value=op("mul", element, const(2.0, F32)))
    mean = reduce("welford", [element], [r.symbol])
    spread = reduce("sum", [op("abs", op("sub", element, mean))], [r.symbol])
    per_row = Store(buffer="out0", index=x.symbol, value=spread)
    for hint in ("persistent", "looped"):
        kernel = kernel_of((x, r), (arg("io0", F32, 300), arg("out0", F32, 3)), doubled, per_row)
        data = torch.randn(3, 100)
        got = run(engine, kernel, data, torch.zeros(3), max_configs=1, **WALKS[hint])
        torch.testing.assert_close(got, (data - data.mean(-1, keepdim=True)).abs().sum(-1))


def row_statistics(threads_share: bool, rows: int, width: int) -> Kernel:
    """Row sums over the memory of an input per row, which also goes into every element: x * sum + before."""
    x, r = along("x0", rows), along("r0", width, "reduction")
    flat = x.symbol * width + r.symbol
    element, before = load("in0", [flat], F32), load("in1", [x.symbol], F32)
    total = reduce("sum", [element], [r.symbol])
    # the sum comes first, so that `before` is loaded after all barriers of the reduction
    moved = Store(buffer="out0", index=flat, value=op("add", op("mul", element, total), before))
    after = Store(buffer="out1", index=x.symbol, value=total)
    size = rows * width
    arguments = (arg("in0", F32, size), arg("in1", F32, rows), arg("out0", F32, size), arg("out1", F32, rows))
    kernel = kernel_of((x, r), arguments, moved, after)
    pair = (("out1", "in1"),) if threads_share else (("out0", "in0"),)
    return replace(kernel, aliasing=pair)


@pytest.mark.parametrize("hint", ["persistent", "looped"])
def test_a_store_over_what_other_threads_load_waits_for_them(hint: str) -> None:
    shared = TritonCodegen().emit(row_statistics(True, 300, 768), get_target("sm_90"), WALKS[hint]).text
    assert shared.index("debug_barrier") < shared.index("tl.store(out1")
    assert shared.index("tl.load(in1") < shared.index("debug_barrier")
    own = TritonCodegen().emit(row_statistics(False, 300, 768), get_target("sm_90"), WALKS[hint]).text
    assert "debug_barrier" not in own


def test_row_statistics_over_those_of_before(engine: TritonProcess) -> None:
    # on a GPU many rows of several warps each: a warp that is late must still find what was there
    rows, width = (8, 700) if engine.interprets else (50_000, 768)
    source = TritonCodegen().emit(row_statistics(True, rows, width), get_target("sm_90"), {})
    for config in range(1 if engine.interprets else len(source.configs)):
        data, statistic = torch.randn(rows, width), torch.randn(rows)
        _, _, moved, sums = run_source(
            engine, source, [data, statistic, torch.zeros(rows, width), statistic], config=config
        )
        total = data.sum(-1)
        torch.testing.assert_close(moved, data * total[:, None] + statistic[:, None], rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(sums, total, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F8E5M2, DType.F8E4M3])
def test_low_precision_memory(engine: TritonProcess, dtype: DType) -> None:
    values = [0.0, 1.0, -1.5, 3.14159, 300.0, -447.0, 1e-3, math.inf, math.nan, 57344.0, 470.0, -1e6]
    data = torch.tensor(values)
    x = along("x0", len(values))
    kind = getattr(torch, dtype.torch_name)
    down = kernel_of(
        (x,),
        (arg("in0", F32, len(values)), arg("out0", dtype, len(values))),
        Store(buffer="out0", index=x.symbol, value=cast(load("in0", [x.symbol], F32), dtype)),
    )
    stored = (
        run(engine, down, data, torch.zeros(len(values)).to(kind)) if dtype.itemsize == 2 else data.to(kind)
    )
    # the interpreter truncates where GPUs round to nearest
    rounding = 2.0**-7 if dtype is DType.BF16 else 1e-7
    torch.testing.assert_close(stored.float(), data.to(kind).float(), equal_nan=True, rtol=rounding, atol=0)
    up = kernel_of(
        (x,),
        (arg("in0", dtype, len(values)), arg("out0", F32, len(values))),
        Store(buffer="out0", index=x.symbol, value=cast(load("in0", [x.symbol], dtype), F32)),
    )
    if dtype.itemsize == 2:
        got = run(engine, up, stored, torch.zeros(len(values)))
        torch.testing.assert_close(got, stored.float(), equal_nan=True)


@pytest.mark.parametrize("dtype", [DType.F64, F32, DType.F16, DType.BF16])
def test_constants_of_every_float_type(engine: TritonProcess, dtype: DType) -> None:
    x = along("x0", 5)
    chosen = where(load("in0", [x.symbol], DType.BOOL), const(1.5, dtype), const(-math.inf, dtype))
    kernel = kernel_of(
        (x,),
        (arg("in0", DType.BOOL, 5), arg("out0", dtype, 5)),
        Store(buffer="out0", index=x.symbol, value=chosen),
    )
    kind = getattr(torch, dtype.torch_name)
    data = torch.tensor([True, False, False, True, True])
    want = torch.where(data, 1.5, -math.inf).to(kind)
    assert torch.equal(run(engine, kernel, data, torch.zeros(5, dtype=kind)), want)


@pytest.mark.parametrize(
    "mode,dtype", [("mul", F32), ("add", DType.BF16), ("add", DType.I8), ("max", DType.F16)]
)
def test_updates_without_an_instruction_are_refused(mode: StoreMode, dtype: DType) -> None:
    x = along("x0", 4)
    store = Store(buffer="io0", index=x.symbol, value=load("in0", [x.symbol], dtype), mode=mode)
    kernel = kernel_of((x,), (arg("in0", dtype, 4), arg("io0", dtype, 4)), store)
    with pytest.raises(EmitError, match=rf"atomic\]: no atomic {mode} on {dtype.text}"):
        TritonCodegen().emit(kernel, get_target("sm_90"), {})


def test_refusals_name_the_cause() -> None:
    x = along("x0", 4)
    store = Store(buffer="out0", index=x.symbol, value=load("in0", [x.symbol + symbol("n0", lo=1)], F32))
    kernel = kernel_of((x,), (arg("in0", F32, 9), arg("out0", F32, 4)), store)
    with pytest.raises(EmitError, match="n0, which is neither a range nor a size"):
        TritonCodegen().emit(kernel, get_target("sm_90"), {})
    with pytest.raises(EmitError, match="not a GPU"):
        TritonCodegen().emit(kernel, get_target("x86-64-avx2"), {})
    with pytest.raises(EmitError, match="did you mean 'index_dtype'"):
        TritonCodegen().emit(kernel, get_target("sm_90"), {"index_dtyp": "i32"})


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("kind", ["sum", "max", "welford", "online_softmax", "argmax"])
def test_rows_before_padding(engine: TritonProcess, kind: ReduceKind, hint: str) -> None:
    """Loads go on into the padding, which must not count."""
    x, r = along("x0", 3), along("r0", 1001, "reduction")
    element = load("in0", [x.symbol * 1004 + r.symbol], F32)
    out = I64 if kind == "argmax" else F32
    kernel = kernel_of(
        (x, r),
        (arg("in0", F32, 3 * 1004 - 3), arg("out0", out, 3)),
        Store(buffer="out0", index=x.symbol, value=reduce(kind, [element], [r.symbol])),
    )
    assert "rnear4 = r0 // 4 < 251" in TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint]).text
    data = torch.full((3, 1004), math.nan)
    data[:, :1001] = torch.randn(3, 1001)
    want = {
        "sum": lambda rows: rows.sum(-1),
        "welford": lambda rows: rows.mean(-1),
        "argmax": lambda rows: rows.argmax(-1),
    }.get(kind, lambda rows: rows.amax(-1))(data[:, :1001])
    got = run(engine, kernel, data, torch.zeros_like(want), **WALKS[hint])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("others", [1, 3])
@pytest.mark.parametrize("kind", sorted(SCANS))
def test_scan_along_one_point(engine: TritonProcess, kind: ScanKind, others: int) -> None:
    x, one, r = along("x0", 5), along("r0", 1, "reduction"), along("r1", others, "reduction")
    at = x.symbol * others + r.symbol
    value: Scalar = scan(kind, load("in0", [at], F32), one.symbol)
    if kind.startswith("arg"):
        # the position, whatever the value
        value = cast(value, F32)
    kernel = kernel_of(
        (x, one, r),
        (arg("in0", F32, 5 * others), arg("out0", F32, 5 * others)),
        Store(buffer="out0", index=at, value=value),
    )
    data = torch.randn(5, others)
    want = torch.zeros_like(data) if kind.startswith("arg") else data
    assert torch.equal(run(engine, kernel, data, torch.ones(5, others)), want)


def test_argmax_beside_a_scan_from_the_end(engine: TritonProcess) -> None:
    x, r = along("x0", 3), along("r0", 5000, "reduction")
    element = load("in0", [x.symbol * 5000 + r.symbol], F32)
    kernel = kernel_of(
        (x, r),
        (arg("in0", F32, 15000), arg("out0", F32, 15000), arg("out1", I64, 3)),
        Store(
            buffer="out0",
            index=x.symbol * 5000 + r.symbol,
            value=scan("sum", element, r.symbol, reverse=True),
        ),
        Store(buffer="out1", index=x.symbol, value=reduce("argmax", [element], [r.symbol])),
    )
    data = torch.randint(0, 9, (3, 5000)).float()
    got = run(engine, kernel, data, torch.zeros(15000), torch.zeros(3, dtype=torch.int64), **WALKS["looped"])
    assert torch.equal(data.gather(1, got[:, None])[:, 0], data.amax(-1))
    assert torch.equal(got, torch.stack([(row == row.amax()).nonzero()[0, 0] for row in data]))


@pytest.mark.parametrize("across", [False, True])
def test_running_means_divide_once_for_all_lanes(engine: TritonProcess, across: bool) -> None:
    rows, length = 64, 8192
    x, r = along("x0", rows), along("r0", length, "reduction")
    index = r.symbol * rows + x.symbol if across else x.symbol * length + r.symbol
    value = load("in0", [index], F32)
    axes = [r.symbol]
    kernel = kernel_of(
        (x, r),
        (arg("in0", F32, rows * length), arg("out0", F32, rows), arg("out1", F32, rows)),
        Store(buffer="out0", index=x.symbol, value=reduce("welford", [value], axes)),
        Store(buffer="out1", index=x.symbol, value=reduce("welford", [value], axes, output=1)),
    )
    source = TritonCodegen().emit(kernel, get_target("sm_90"), WALKS["looped"])
    assert "weight_lanes" in source.text and "tl.full([], 0.0, tl.float32)" in source.text
    assert "1.0 / weight_lanes" in source.text
    data = torch.randn(rows, length, generator=torch.Generator().manual_seed(4)) + 100
    laid_out = (data.T if across else data).contiguous().reshape(-1)
    for number in range(len(source.configs)):
        found = run_source(engine, source, [laid_out, torch.zeros(rows), torch.zeros(rows)], (), number)
        torch.testing.assert_close(found[1].cpu(), data.double().mean(1).float(), rtol=1e-6, atol=0)
        spread = (data.double() - data.double().mean(1, keepdim=True)).square().sum(1).float()
        torch.testing.assert_close(found[2].cpu(), spread, rtol=1e-4, atol=0)


def test_targets_of_other_back_ends_are_taken_if_they_are_gpus() -> None:
    gpu, cpu = get_target("sm_90"), get_target("x86-64-avx2")
    for kind in (gpu.kind, "somebody's"):
        assert TritonCodegen().supports(replace(gpu, kind=kind))
        assert not TritonCodegen().supports(replace(cpu, kind=kind))
