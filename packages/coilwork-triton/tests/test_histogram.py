"""Kernels that add one number at few places: programs count their points, where that is the same and worth
while.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from kernel_bench import (
    TARGETS,
    TritonProcess,
    along,
    arg,
    compile_source,
    corners,
    everything,
    run_source,
)
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, placeholder
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.kernel_passes.histogram import find_bins

I64, I32, F32 = DType.I64, DType.I32, DType.F32
POINTS = 20000
AT = placeholder(0)
TORCH = {
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
}


def within(number: Scalar, bins: int) -> Scalar:
    """`number` is at least 0 and less than `bins`."""
    least, end = (const(value, number.dtype) for value in (0, bins))
    return op("bitwise_and", op("ge", number, least), op("lt", number, end))


def kernel_of(
    *ranges: Range,
    bins: int = 100,
    rows: Expr | int = 0,
    dtype: DType = I64,
    counts: DType = I32,
    by: int = 1,
    span: Expr | int | None = None,
    checked: bool = True,
    mask: Scalar | None = None,
    sizes: tuple[Expr, ...] = (),
) -> Kernel:
    """`by` is added to `io0` at `rows` and the elements of `in0`, one for each point of `ranges`."""
    position, points = as_expr(0), as_expr(1)
    for r in ranges:
        assert r.symbol.extent is not None
        position = position * r.symbol.extent + r.symbol
        points = points * r.symbol.extent
    element = load("in0", [position], dtype)
    # as positions are: 64 bits
    number = element if dtype is I64 else cast(element, I64)
    store = Store(
        buffer="io0",
        index=AT + rows,
        indirect=(number,),
        value=const(by, counts),
        mode="add",
        mask=mask,
    )
    kernel = Kernel(
        name="counting",
        ranges=ranges,
        sizes=sizes,
        args=(arg("in0", dtype, points), arg("io0", counts, bins if span is None else span)),
        stores=(store,),
        checks=(Check(condition=within(number, bins), message="out of range"),) if checked else (),
    )
    verify_kernel(kernel)
    return kernel


def flat(points: int = POINTS) -> Range:
    return along("x0", points)


def emitted(kernel: Kernel, name: str = "sm_90", **options: object) -> KernelSource:
    return TritonCodegen().emit(kernel, get_target(name), options)


def numbers(points: int, bins: int, dtype: DType = I64, *, least: int = 0) -> Tensor:
    drawn = torch.randint(least, bins, (points,), generator=torch.Generator().manual_seed(points))
    # of some bins none, so that there is something to leave out
    return torch.where(drawn % 7 == 3, 0, drawn).to(TORCH[dtype])


def wanted(start: Tensor, places: Tensor, by: int = 1) -> Tensor:
    inside = places[(places >= 0) & (places < start.numel())]
    return start + by * torch.bincount(inside, minlength=start.numel()).to(start.dtype)


def check_all(
    engine: TritonProcess,
    source: KernelSource,
    data: Tensor,
    start: Tensor,
    want: Tensor,
    *,
    sizes: Sequence[int] = (),
    configs: Sequence[int] | None = None,
) -> None:
    assert "tl.histogram" in source.text
    for number in range(len(source.configs)) if configs is None else configs:
        got = run_source(engine, source, [data, start.clone()], sizes, config=number)[-1]
        assert torch.equal(got, want), source.configs[number]


# Results


@pytest.mark.parametrize("dtype", [I64, I32, DType.I16, DType.U8])
@pytest.mark.parametrize(("counts", "by"), [(I32, 1), (I64, 1), (I32, -3), (I64, 1 << 40)])
def test_numbers_of_any_integer_type_are_counted(
    engine: TritonProcess, dtype: DType, counts: DType, by: int
) -> None:
    source = emitted(kernel_of(flat(), dtype=dtype, counts=counts, by=by))
    data, start = numbers(POINTS, 100, dtype), torch.arange(100).to(TORCH[counts])
    check_all(engine, source, data, start, wanted(start, data.long(), by))


def test_counts_wrap_as_sums_do(engine: TritonProcess) -> None:
    by = (1 << 31) - 5
    source = emitted(kernel_of(flat(), bins=2, by=by))
    data, start = numbers(POINTS, 2), torch.zeros(2, dtype=torch.int32)
    want = (by * torch.bincount(data, minlength=2)).to(torch.int32)
    check_all(engine, source, data, start, want)


@pytest.mark.parametrize("bins", [1, 2, 32, 33, 256, 1000, 1024])
@pytest.mark.parametrize("points", [POINTS, 1 << 15])
def test_any_few_bins(engine: TritonProcess, bins: int, points: int) -> None:
    source = emitted(kernel_of(flat(points), bins=bins))
    data, start = numbers(points, bins), torch.zeros(bins, dtype=torch.int32)
    check_all(engine, source, data, start, wanted(start, data))


def test_bytes_need_no_test_of_256_bins(engine: TritonProcess) -> None:
    kernel = kernel_of(flat(1 << 15), bins=256, dtype=DType.U8)
    source = emitted(kernel)
    assert re.search(r"tl\.histogram\(number\d+, 256\)", source.text)
    data, start = numbers(1 << 15, 256, DType.U8), torch.zeros(256, dtype=torch.int32)
    check_all(engine, source, data, start, wanted(start, data.long()))


def test_numbers_that_are_out_of_range_are_left_out(engine: TritonProcess) -> None:
    # nobody checks them, and what lies behind the buffer is not touched
    source = emitted(kernel_of(flat(), bins=70, checked=False))
    data, start = numbers(POINTS, 300, least=-100), torch.zeros(70, dtype=torch.int32)
    data[:3] = torch.tensor([70, -1, 1 << 32])
    check_all(engine, source, data, start, wanted(start, data))


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, I32])
def test_numbers_of_any_width_are_compared_with_any_number_of_bins(
    engine: TritonProcess, dtype: DType
) -> None:
    kernel = kernel_of(flat(), bins=200, checked=False, dtype=dtype)
    number = load("in0", [kernel.ranges[0].symbol], dtype)
    kernel = replace(kernel, stores=(replace(kernel.stores[0], indirect=(number,)),))
    data, start = numbers(POINTS, 127, dtype), torch.zeros(200, dtype=torch.int32)
    data[:3] = torch.tensor([-1, 250, 127]).to(data.dtype)
    check_all(engine, emitted(kernel), data, start, wanted(start, data.long()))


@pytest.mark.parametrize("index_dtype", ["i32", "i64"])
def test_rows_of_bins(engine: TritonProcess, index_dtype: str) -> None:
    x0, x1, x2 = along("x0", 3), along("x1", 2), along("x2", 5003)
    rows = 100 * (2 * x0.symbol + x1.symbol)
    source = emitted(kernel_of(x0, x1, x2, rows=rows, span=600), index_dtype=index_dtype)
    data, start = numbers(6 * 5003, 100), torch.arange(600).to(torch.int32)
    places = (data.reshape(6, -1) + 100 * torch.arange(6)[:, None]).flatten()
    check_all(engine, source, data, start, wanted(start, places))


def test_points_of_outer_ranges_that_share_a_row_of_bins(engine: TritonProcess) -> None:
    x0, x1, x2 = along("x0", 3), along("x1", 2), along("x2", 4096)
    kernel = kernel_of(x0, x1, x2, rows=100 * x1.symbol, span=200)
    data, start = numbers(6 * 4096, 100), torch.zeros(200, dtype=torch.int32)
    places = (data.reshape(3, 2, -1) + 100 * torch.arange(2)[:, None]).flatten()
    check_all(engine, emitted(kernel), data, start, wanted(start, places))


def test_points_of_several_ranges_within_a_row(engine: TritonProcess) -> None:
    x0, x1, x2 = along("x0", 5), along("x1", 67), along("x2", 63)
    kernel = kernel_of(x0, x1, x2, rows=100 * x0.symbol, span=500)
    data, start = numbers(5 * 67 * 63, 100), torch.zeros(500, dtype=torch.int32)
    places = (data.reshape(5, -1) + 100 * torch.arange(5)[:, None]).flatten()
    check_all(engine, emitted(kernel), data, start, wanted(start, places))


def test_a_mask_leaves_points_out(engine: TritonProcess) -> None:
    x = flat()
    early = op("lt", index_value(x.symbol), const(12345, I64))
    source = emitted(kernel_of(x, mask=early))
    data, start = numbers(POINTS, 100), torch.zeros(100, dtype=torch.int32)
    check_all(engine, source, data, start, wanted(start, data[:12345]))


def test_several_histograms_are_counted_in_one_kernel(engine: TritonProcess) -> None:
    x = flat()
    one = kernel_of(x, bins=30)
    number = load("in1", [x.symbol], I32)
    other = Store(buffer="io1", index=AT, indirect=(number,), value=const(2, I64), mode="add")
    kernel = replace(
        one,
        args=(one.args[0], arg("in1", I32, POINTS), one.args[1], arg("io1", I64, 7)),
        stores=(*one.stores, other),
    )
    source = emitted(kernel)
    assert source.text.count("tl.histogram") == 2
    first, second = numbers(POINTS, 30), numbers(POINTS, 7, I32)
    starts = torch.zeros(30, dtype=torch.int32), torch.zeros(7, dtype=torch.int64)
    got = run_source(engine, source, [first, second, *starts])
    assert torch.equal(got[2], wanted(starts[0], first))
    assert torch.equal(got[3], wanted(starts[1], second.long(), 2))


def test_one_kernel_counts_any_number_of_points(engine: TritonProcess) -> None:
    n0 = symbol("n0", lo=0)
    kernel = kernel_of(along("x0", n0), sizes=(n0,))
    source = emitted(kernel, likely=(32768,))
    for points in (32768, 20001, 5, 0):
        data, start = numbers(points, 100), torch.zeros(100, dtype=torch.int32)
        # the likely version is for multiples of 16
        right = [
            number
            for number, config in enumerate(source.configs)
            if points % 16 == 0 or dict(config.meta)["VERSION"] < dict(source.configs[0].meta)["VERSION"]
        ]
        check_all(engine, source, data, start, wanted(start, data), sizes=[points], configs=right)


def test_one_kernel_counts_any_number_of_rows(engine: TritonProcess) -> None:
    n0 = symbol("n0", lo=0)
    x0, x1 = along("x0", n0), along("x1", 5000)
    kernel = kernel_of(x0, x1, rows=100 * x0.symbol, span=100 * n0, sizes=(n0,))
    data, start = numbers(5000 * 4, 100), torch.zeros(400, dtype=torch.int32)
    places = (data.reshape(4, -1) + 100 * torch.arange(4)[:, None]).flatten()
    check_all(engine, emitted(kernel), data, start, wanted(start, places), sizes=[4])


# What is counted


def test_where_a_number_is_known_to_lie() -> None:
    kernel = kernel_of(flat(), bins=100, span=5000)
    (store,) = kernel.stores
    found = find_bins(kernel, store)
    assert found is not None and found.count == 100 and not found.certain
    # a check of something else says nothing, and the buffer is too long
    other = Check(condition=within(load("in0", [as_expr(0)], I64), 100), message="out of range")
    assert find_bins(replace(kernel, checks=(other,)), store) is None
    masked = replace(store, mask=within(store.indirect[0], 50))
    found = find_bins(kernel, masked)
    assert found is not None and found.count == 50
    byte = kernel_of(flat(), bins=256, dtype=DType.U8, checked=False)
    found = find_bins(byte, byte.stores[0])
    assert found is not None and found.count == 256 and found.certain


def test_narrowed_and_signed_numbers_are_not_certain() -> None:
    x = flat()
    for dtype, narrow in ((I64, DType.U8), (DType.I8, DType.U8), (DType.I8, I64)):
        number = cast(load("in0", [x.symbol], dtype), narrow)
        store = Store(buffer="io0", index=AT, indirect=(number,), value=const(1, I32), mode="add")
        kernel = Kernel(
            name="counting",
            ranges=(x,),
            args=(arg("in0", dtype, POINTS), arg("io0", I32, 200)),
            stores=(store,),
        )
        found = find_bins(kernel, store)
        # a byte by its own type is one
        assert found is not None and found.count == 200 and not found.certain


# Launches


def test_a_histogram_keeps_its_checks() -> None:
    assert "tl.device_assert" in emitted(kernel_of(flat())).text


def test_blocks_are_large_where_programs_are_many() -> None:
    sizes = [dict(c.meta)["XBLOCK"] for c in emitted(kernel_of(flat(1 << 26), bins=64)).configs]
    assert sizes == [8192, 16384]
    assert [dict(c.meta)["XBLOCK"] for c in emitted(kernel_of(flat(1 << 18))).configs] == [1024]
    x0, x1 = along("x0", 4096), along("x1", 9000)
    (config,) = emitted(kernel_of(x0, x1, rows=100 * x0.symbol, span=409600)).configs
    # little of a row's last block is behind its end
    assert dict(config.meta) == {"YBLOCK": 1, "XBLOCK": 2048}


def test_no_launch_has_more_threads_than_points() -> None:
    found = everything(emitted(kernel_of(flat(1 << 20))))
    assert len(found) > 10
    assert all(dict(c.meta)["XBLOCK"] >= max(1024, 32 * c.num_warps) for c in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("bins", [8, 256, 1000])
def test_counting_compiles(compiler: TritonProcess, name: str, bins: int) -> None:
    assert compile_source(compiler, emitted(kernel_of(flat(1 << 20), bins=bins), name), name)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.U8, I64])
def test_each_point_is_counted_by_one_thread(compiler: TritonProcess, dtype: DType) -> None:
    source = emitted(kernel_of(flat(1 << 20), bins=64, dtype=dtype))
    for config in (*source.configs, *corners(source)):
        text = compile_source(compiler, replace(source, configs=(config,)), "sm_90")
        each = dict(config.meta)["XBLOCK"] // (32 * config.num_warps)
        # one vote for each bit of a number, and one for the mask
        assert len(re.findall(r"vote\.sync\.ballot", text)) == 7 * each, config
        # bins, not points, are updated in memory
        updates = re.findall(r"(?:atom|red)[.\w]*\.global", text)
        assert 1 <= len(updates) <= 2
