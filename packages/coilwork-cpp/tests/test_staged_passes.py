"""Reductions of which some reads are contiguous along one range, and some along another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cpp_fixtures import LoadKernel, Threads, TorchDType

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, reduce
from coilwork_ir.target import get_target

F32, BF16, I64, BOOL = DType.F32, DType.BF16, DType.I64, DType.BOOL
PIXELS = symbol("n0", lo=0)
Combine = Callable[[Scalar, Scalar, list[Expr]], tuple[Store, ...]]


def mixed(
    combine: Combine,
    *,
    images: int,
    pixels: Expr | int,
    channels: int,
    second: DType = F32,
    results: dict[str, tuple[DType, Expr | int]],
) -> Kernel:
    """Reductions over the points of images: `in0` has channels innermost, `in1` pixels."""
    x = symbol("x0", extent=images)
    p, c = symbol("r0", extent=pixels), symbol("r1", extent=channels)
    last = load("in0", [x * pixels * channels + p * channels + c], F32)
    first = load("in1", [x * pixels * channels + c * pixels + p], second)
    span = as_expr(images) * pixels * channels
    return Kernel(
        name="mixed",
        ranges=(
            Range(symbol=x, kind="parallel"),
            Range(symbol=p, kind="reduction"),
            Range(symbol=c, kind="reduction"),
        ),
        args=(
            TensorArg(name="in0", dtype=F32, role="in", span=span),
            TensorArg(name="in1", dtype=second, role="in", span=span),
            *(
                TensorArg(name=name, dtype=dtype, role="out", span=as_expr(extent))
                for name, (dtype, extent) in results.items()
            ),
        ),
        sizes=(pixels,) if isinstance(pixels, Expr) else (),
        stores=combine(last, first, [x, p, c]),
    )


def moments(last: Scalar, first: Scalar, at: list[Expr]) -> tuple[Store, ...]:
    total = op("add", last, first)
    axes = at[1:]
    return (
        Store(buffer="out0", index=at[0], value=reduce("welford", [total], axes)),
        Store(buffer="out1", index=at[0], value=reduce("welford", [total], axes, output=1)),
    )


def images_of(n: int, pixels: int, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, pixels, channels), torch.randn(n, channels, pixels) + 0.5


@pytest.mark.parametrize(
    ("pixels", "channels"), [(1024, 8), (100, 16), (49, 24), (16, 64), (300, 70), (65, 130)]
)
def test_moments_over_two_layouts_are_torchs(
    load_kernel: LoadKernel, threads: Threads, pixels: int, channels: int
) -> None:
    results: dict[str, tuple[DType, Expr | int]] = {"out0": (F32, 11), "out1": (F32, 11)}
    run = load_kernel(mixed(moments, images=11, pixels=pixels, channels=channels, results=results))
    last, first = images_of(11, pixels, channels)
    mean, squares = torch.empty(11), torch.empty(11)

    def compute() -> list[torch.Tensor]:
        run(last, first, mean, squares)
        return [mean, squares]

    threads(compute)
    total = (last + first.transpose(1, 2)).double().flatten(1)
    assert torch.allclose(mean.double(), total.mean(1), rtol=1e-5, atol=1e-6)
    assert torch.allclose(
        squares.double(), total.var(1, unbiased=False) * pixels * channels, rtol=1e-5, atol=1e-6
    )


def test_any_number_of_pixels(load_kernel: LoadKernel) -> None:
    results: dict[str, tuple[DType, Expr | int]] = {"out0": (F32, 9), "out1": (F32, 9)}
    run = load_kernel(mixed(moments, images=9, pixels=PIXELS, channels=32, results=results))
    for pixels in (1, 15, 16, 129, 300):
        last, first = images_of(9, pixels, 32)
        mean, squares = torch.empty(9), torch.empty(9)
        run(last, first, mean, squares, pixels)
        total = (last + first.transpose(1, 2)).double().flatten(1)
        assert torch.allclose(mean.double(), total.mean(1), rtol=1e-5, atol=1e-6)


def test_few_results_are_split_among_threads(load_kernel: LoadKernel, threads: Threads) -> None:
    results: dict[str, tuple[DType, Expr | int]] = {"out0": (F32, 2), "out1": (F32, 2)}
    run = load_kernel(mixed(moments, images=2, pixels=5000, channels=48, results=results))
    last, first = images_of(2, 5000, 48)
    mean, squares = torch.empty(2), torch.empty(2)

    def compute() -> list[torch.Tensor]:
        run(last, first, mean, squares)
        return [mean, squares]

    threads(compute)
    total = (last + first.transpose(1, 2)).double().flatten(1)
    assert torch.allclose(mean.double(), total.mean(1), rtol=1e-5, atol=1e-6)


def test_points_are_stored_while_they_are_reduced(load_kernel: LoadKernel) -> None:
    def combine(last: Scalar, first: Scalar, at: list[Expr]) -> tuple[Store, ...]:
        x, p, c = at
        total = op("add", last, cast(first, F32))
        peak = reduce("max", [total], [p, c])
        return (
            Store(buffer="out0", index=x, value=peak),
            Store(buffer="out1", index=x * 3600 + p * 36 + c, value=op("sub", total, peak)),
            Store(buffer="out2", index=x * 3600 + c * 100 + p, value=total),
        )

    results: dict[str, tuple[DType, Expr | int]] = {
        "out0": (F32, 10),
        "out1": (F32, 36000),
        "out2": (F32, 36000),
    }
    kernel = mixed(combine, images=10, pixels=100, channels=36, second=BF16, results=results)
    last, first = images_of(10, 100, 36)
    first = first.bfloat16()
    peak, below, copied = torch.empty(10), torch.empty(10, 100, 36), torch.empty(10, 36, 100)
    load_kernel(kernel)(last, first, peak, below, copied)
    total = last + first.float().transpose(1, 2)
    assert torch.equal(peak, total.amax((1, 2)))
    assert torch.equal(below, total - peak[:, None, None])
    assert torch.equal(copied.transpose(1, 2), total)


def test_parts_of_a_concatenation(load_kernel: LoadKernel) -> None:
    """The first 40 channels lie channels-last, the others channels-first, each in memory of its own."""

    def combine(_: Scalar, __: Scalar, at: list[Expr]) -> tuple[Store, ...]:
        x, p, c = at
        is_first = op("lt", index_value(c), const(40, I64))
        is_second = op("ge", index_value(c), const(40, I64))
        a = load("in0", [x * 2400 + p * 40 + c], F32, mask=is_first, other=0.0)
        b = load("in1", [x * 1920 + (c - 40) * 60 + p], F32, mask=is_second, other=0.0)
        return (Store(buffer="out0", index=x, value=reduce("sum", [op("where", is_first, a, b)], [p, c])),)

    kernel = mixed(combine, images=9, pixels=60, channels=72, results={"out0": (F32, 9)})
    a, b, sums = torch.randn(9, 60, 40), torch.randn(9, 32, 60), torch.empty(9)
    load_kernel(kernel)(a, b, sums)
    assert "tile_0" in CppCodegen().emit(kernel, get_target("x86-64-avx512"), {}).text
    exact = a.double().sum((1, 2)) + b.double().sum((1, 2))
    assert torch.allclose(sums.double(), exact, rtol=1e-4, atol=1e-4)


def test_truth_values_are_read_in_another_layout(load_kernel: LoadKernel) -> None:
    def combine(last: Scalar, first: Scalar, at: list[Expr]) -> tuple[Store, ...]:
        kept = op("where", first, last, const(0.0, F32))
        return (Store(buffer="out0", index=at[0], value=reduce("sum", [kept], at[1:])),)

    kernel = mixed(combine, images=9, pixels=64, channels=16, second=BOOL, results={"out0": (F32, 9)})
    last, first, sums = torch.randn(9, 64, 16), torch.rand(9, 16, 64) > 0.5, torch.empty(9)
    load_kernel(kernel)(last, first, sums)
    exact = (last.double() * first.transpose(1, 2)).sum((1, 2))
    assert torch.allclose(sums.double(), exact, rtol=1e-4, atol=1e-4)


def test_what_lies_across_is_read_line_by_line() -> None:
    results: dict[str, tuple[DType, Expr | int]] = {"out0": (F32, 16), "out1": (F32, 16)}
    kernel = mixed(moments, images=16, pixels=4096, channels=16, results=results)
    text = CppCodegen().emit(kernel, get_target("x86-64-avx512"), {}).text
    assert "tile_0[r1 * 257 + (r0 - r0_begin)] = in1_value_0;" in text
    assert text.count("= in1[") == text.count("] = in1_value_") == 2


def test_positions_keep_their_order(load_kernel: LoadKernel) -> None:
    def combine(last: Scalar, first: Scalar, at: list[Expr]) -> tuple[Store, ...]:
        return (Store(buffer="out0", index=at[0], value=reduce("argmax", [op("add", last, first)], at[1:])),)

    kernel = mixed(combine, images=9, pixels=32, channels=16, results={"out0": (I64, 9)})
    last, first = torch.zeros(9, 32, 16), torch.zeros(9, 16, 32)
    last[:, 3, 9] = last[:, 20, 1] = 1.0
    found = torch.empty(9, dtype=torch.int64)
    load_kernel(kernel)(last, first, found)
    assert found.tolist() == [3 * 16 + 9] * 9


def transposed_sums(rows: Expr | int, columns: Expr | int, second: DType = F32) -> Kernel:
    """Sums and maxima, for each column `x`, of `in0[x, r] + in1[r, x]`."""
    x, r = symbol("x0", extent=columns), symbol("r0", extent=rows)
    across = cast(load("in0", [x * rows + r], second), F32)
    total = op("add", across, load("in1", [r * columns + x], F32))
    results = (reduce("sum", [total], [r]), reduce("max", [total], [r]))
    span = as_expr(rows) * columns
    return Kernel(
        name="transposed_sums",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(
            TensorArg(name="in0", dtype=second, role="in", span=span),
            TensorArg(name="in1", dtype=F32, role="in", span=span),
            *(TensorArg(name=f"out{k}", dtype=F32, role="out", span=as_expr(columns)) for k in range(2)),
        ),
        sizes=tuple(e for e in (rows, columns) if isinstance(e, Expr)),
        stores=tuple(Store(buffer=f"out{k}", index=x, value=v) for k, v in enumerate(results)),
    )


@pytest.mark.parametrize("second", [F32, BF16, BOOL])
@pytest.mark.parametrize("rows, columns", [(2048, 256), (100, 70), (16, 16), (65, 1000)])
def test_columns_copy_what_lies_along_their_rows(
    load_kernel: LoadKernel, threads: Threads, torch_dtype: TorchDType, rows: int, columns: int, second: DType
) -> None:
    kernel = transposed_sums(rows, columns, second)
    assert "tile_0[" in CppCodegen().emit(kernel, get_target("x86-64-avx512"), {}).text
    run = load_kernel(kernel)
    a, b = (torch.randn(columns, rows) * 2).to(torch_dtype(second)), torch.randn(rows, columns)
    sums, tops = torch.empty(columns), torch.empty(columns)

    def compute() -> list[torch.Tensor]:
        run(a, b, sums, tops)
        return [sums, tops]

    threads(compute)
    total = a.t().float() + b
    torch.testing.assert_close(sums.double(), total.double().sum(0), rtol=1e-5, atol=1e-4)
    assert torch.equal(tops, total.amax(0))


def test_columns_of_any_length_copy_too(load_kernel: LoadKernel) -> None:
    rows, columns = symbol("n0", lo=0), symbol("n1", lo=0)
    run = load_kernel(transposed_sums(rows, columns))
    for n, m in ((1, 1), (5, 300), (300, 5), (64, 128), (129, 257)):
        a, b = torch.randn(m, n), torch.randn(n, m)
        sums, tops = torch.empty(m), torch.empty(m)
        run(a, b, sums, tops, n, m)
        torch.testing.assert_close(sums.double(), (a.t() + b).double().sum(0), rtol=1e-5, atol=1e-4)
        assert torch.equal(tops, (a.t() + b).amax(0))


def test_tiles_of_wide_rows_stay_small() -> None:
    images, rows, columns = symbol("x0", extent=64), 100, 1000
    x, r = symbol("x1", extent=columns), symbol("r0", extent=rows)
    at = images * (rows * columns)
    total = op("add", load("in0", [at + x * rows + r], F32), load("in1", [at + r * columns + x], F32))
    span = as_expr(64 * rows * columns)
    kernel = Kernel(
        name="wide",
        ranges=(
            Range(symbol=images, kind="parallel"),
            Range(symbol=x, kind="parallel"),
            Range(symbol=r, kind="reduction"),
        ),
        args=(
            TensorArg(name="in0", dtype=F32, role="in", span=span),
            TensorArg(name="in1", dtype=F32, role="in", span=span),
            TensorArg(name="out0", dtype=F32, role="out", span=as_expr(64 * columns)),
        ),
        stores=(Store(buffer="out0", index=images * columns + x, value=reduce("sum", [total], [r])),),
    )
    assert "tile_0[4160]" in CppCodegen().emit(kernel, get_target("x86-64-avx512"), {}).text
