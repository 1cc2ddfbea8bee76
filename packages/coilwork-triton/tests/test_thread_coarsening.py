"""Kernels in steps: which ones, what they load, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kernel_bench import TARGETS, TritonProcess, along, arg, compile_source, run_source
from step_kernels import bilinear, kernel_over, nearest, pooled, windows

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Load, cast, const, index_value, list_loads, load, op, where
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.facts.vectorization import find_load_runs
from coilwork_triton.kernel_passes.thread_coarsening import coarsen

GRIDS = get_target("sm_90").machine.grids

BF16, F32, I64 = DType.BF16, DType.F32, DType.I64
F = torch.nn.functional
TYPES = {BF16: torch.bfloat16, F32: torch.float32, DType.U8: torch.uint8, I64: torch.int64}


def emitted(kernel: Kernel, name: str = "sm_90") -> KernelSource:
    return TritonCodegen().emit(kernel, get_target(name), {})


def points(kernel: Kernel) -> int:
    steps = coarsen(kernel, GRIDS)
    return 1 if steps is None else steps.points


def found_loads(kernel: Kernel) -> tuple[Load, ...]:
    return list_loads([store.value for store in kernel.stores])


def run(engine: TritonProcess, kernel: Kernel, *tensors: torch.Tensor) -> list[list[torch.Tensor]]:
    """The results of every candidate."""
    source = emitted(kernel)
    assert "joined_" in source.text
    outputs = [a for a in kernel.args if a.role == "out"]
    return [
        run_source(
            engine,
            source,
            [
                *(t.flatten().clone() for t in tensors),
                *(torch.zeros(as_int(a.span) or 0, dtype=TYPES[a.dtype]) for a in outputs),
            ],
            config=number,
        )[len(tensors) :]
        for number in range(len(source.configs))
    ]


@pytest.mark.parametrize("dtype", [DType.U8, BF16, F32, I64])
def test_each_element_is_repeated_as_nearest_upsampling_does(engine: TritonProcess, dtype: DType) -> None:
    x = torch.randint(0, 100, (40, 48)).to(TYPES[dtype])
    for (got,) in run(engine, nearest(dtype, 40, 48), x):
        assert torch.equal(got.reshape(40, 96), x.repeat_interleave(2, 1))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("shape", [(32, 32), (20, 60), (1, 512)])
def test_bilinear_upsampling_is_torchs(engine: TritonProcess, dtype: DType, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, dtype=TYPES[dtype])
    kernel = bilinear(dtype, *shape)
    wanted = F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear", align_corners=False)[0, 0]
    for (got,) in run(engine, kernel, x):
        # exact but for the order of sums
        torch.testing.assert_close(got.reshape(wanted.shape), wanted, atol=1e-6, rtol=8e-3)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(("columns", "length"), [(64, 3), (60, 2), (100, 5)])
def test_overlapping_windows_are_those_of_the_padded_rows(
    engine: TritonProcess, dtype: DType, columns: int, length: int
) -> None:
    x = torch.randn(20, columns, dtype=TYPES[dtype])
    padded = F.pad(x, (1, length))
    wanted = torch.stack([padded[:, k : k + columns] for k in range(length)], 1)
    for (got,) in run(engine, windows(dtype, 20, columns, length=length), x):
        assert torch.equal(got.reshape(wanted.shape), wanted)


def test_infinities_stay_where_they_are(engine: TritonProcess) -> None:
    x = torch.ones(32, 32)
    x[3, 1], x[7, 30], x[20, 16] = float("inf"), float("-inf"), float("nan")
    wanted = F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear", align_corners=False)[0, 0]
    for (got,) in run(engine, bilinear(F32, 32, 32), x):
        assert torch.equal(got.reshape(64, 64).isfinite(), wanted.isfinite())


@pytest.mark.parametrize("shape", [(32, 32), (33, 36), (1500, 2)])
def test_maxima_of_windows_are_torchs(engine: TritonProcess, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x = torch.randn(rows, 2 * columns)
    wanted = F.max_pool1d(x[None], 3, 2, padding=1)[0]
    for (got,) in run(engine, pooled(F32, rows, columns), x):
        assert torch.equal(got.reshape(shape), wanted)


def test_results_of_two_types_and_points_without_a_value(engine: TritonProcess) -> None:
    """Steps are of the wider type; every fourth point is a constant, the second store is of what neighbours
    share.
    """
    x0, x1 = along("x0", 32), along("x1", 64)
    value = load("in0", [x0.symbol * 32 + floordiv(x1.symbol, 2)], F32)
    fourth = op("lt", index_value(mod(x1.symbol, 4)), const(1, I64))
    kernel = kernel_over(
        (x0, x1),
        [cast(where(fourth, const(7.0, F32), value), BF16), value],
        [arg("in0", F32, 32 * 32)],
        columns=64,
    )
    assert points(kernel) == 4
    x = torch.randn(32, 32)
    wanted = x.repeat_interleave(2, 1)
    with_constants = wanted.clone()
    with_constants[:, ::4] = 7.0
    for first, second in run(engine, kernel, x):
        assert torch.equal(first.reshape(32, 64), with_constants.bfloat16())
        assert torch.equal(second.reshape(32, 64), wanted)


def skipped(*, own: bool) -> Kernel:
    """An image added to an enlarged one, over its memory; without `own` what is stored does not
    depend on it.
    """
    kernel = nearest(F32, 32, 32)
    (store,) = kernel.stores
    there = load("in1", [store.index], F32)
    value = op("add", store.value, there)
    first, out = kernel.args
    stores = [replace(store, value=value if own else store.value)]
    args = [first, replace(arg("in1", F32, 32 * 64)), out]
    if not own:
        stores.append(replace(store, buffer="out1", value=value))
        args.append(arg("out1", F32, 32 * 64))
    return replace(kernel, args=tuple(args), stores=tuple(stores), aliasing=(("out0", "in1"),))


@pytest.mark.parametrize("own", [True, False])
def test_a_result_over_an_input(engine: TritonProcess, own: bool) -> None:
    kernel = skipped(own=own)
    assert ("tl.debug_barrier()" in emitted(kernel).text) is not own
    x, y = torch.randn(32, 32), torch.randn(32, 64)
    source = emitted(kernel)
    wanted = x.repeat_interleave(2, 1)
    shared = y.flatten().clone()
    outputs = [] if own else [torch.zeros(32 * 64)]
    got = run_source(engine, source, [x.flatten(), shared, shared, *outputs])
    assert torch.equal(got[2].reshape(32, 64), wanted + y if own else wanted)
    if not own:
        assert torch.equal(got[3].reshape(32, 64), wanted + y)


def rows_of(kernel: Kernel) -> tuple[int, list[int]]:
    """Pairs of rows, and the numbers of stores that have a mask, of those of all."""
    steps = coarsen(kernel, GRIDS)
    assert steps is not None
    extent = steps.kernel.ranges[0].symbol.extent
    count = None if extent is None else as_int(extent)
    assert count is not None
    return count, [k for k, store in enumerate(steps.kernel.stores) if store.mask is not None]


def of_rows(place: Callable[[Expr], Expr], rows: int) -> Kernel:
    """Rows that read one row each, of which they read every element twice."""
    x0, x1 = along("x0", rows), along("x1", 128)
    value = load("in0", [place(x0.symbol) * 64 + floordiv(x1.symbol, 2)], F32)
    return kernel_over((x0, x1), [value], [arg("in0", F32, 64 * rows)], columns=128)


@pytest.mark.parametrize(
    ("place", "rows", "wanted"),
    [
        (lambda x: floordiv(x, 2), 32, (16, [])),
        # of the first pair the first row is none, and where rows are even, of the last pair the second
        (lambda x: floordiv(x + 1, 2), 32, (17, list(range(8)))),
        (lambda x: floordiv(x + 1, 2), 33, (17, list(range(4)))),
        # an odd number of rows, of which the first is one of a pair; rows that share nothing
        (lambda x: floordiv(x, 2), 33, (33, [])),
        (lambda x: x, 32, (32, [])),
    ],
)
def test_rows_in_pairs(
    engine: TritonProcess, place: Callable[[Expr], Expr], rows: int, wanted: tuple[int, list[int]]
) -> None:
    kernel = of_rows(place, rows)
    assert rows_of(kernel) == wanted
    x = torch.randn(rows, 64)
    numbers = [as_int(place(as_expr(row))) or 0 for row in range(rows)]
    for (got,) in run(engine, kernel, x):
        assert torch.equal(got.reshape(rows, 128), x[numbers].repeat_interleave(2, 1))


def test_rows_that_are_none_are_not_read(engine: TritonProcess) -> None:
    """An image added to an enlarged one: of the former there is nothing above the first row."""
    kernel = bilinear(F32, 32, 32)
    (store,) = kernel.stores
    own = load("in1", [store.index], F32)
    kernel = replace(
        kernel,
        args=(*kernel.args, arg("in1", F32, 64 * 64)),
        stores=(replace(store, value=op("add", store.value, own)),),
    )
    steps = coarsen(kernel, GRIDS)
    assert steps is not None and rows_of(kernel)[0] == 33
    for one in found_loads(steps.kernel):
        assert (one.mask is not None) is (one.buffer == "in1")
    x, y = torch.randn(32, 32), torch.randn(64, 64)
    wanted = y + F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear", align_corners=False)[0, 0]
    got = run_source(engine, emitted(kernel), [x.flatten(), torch.zeros(64 * 64), y.flatten()])
    torch.testing.assert_close(got[1].reshape(64, 64), wanted)


@pytest.mark.parametrize("name", TARGETS)
def test_machine_code_has_wide_accesses_and_no_shared_memory(compiler: TritonProcess, name: str) -> None:
    text = compile_source(compiler, emitted(bilinear(BF16, 256, 256), name), name)
    if name == "sm_90":
        # four elements at a time, and three alone, of two rows, for two rows
        assert text.count("ld.global.v2.b32") == 2 and text.count("ld.global") == 8
        assert text.count("st.global.v4.b32") == text.count("st.global") == 2
        assert "shared" not in text.split(".entry")[1]
    else:
        assert text.count("global_load") == 8 and text.count("global_store") == 2


def test_rows_have_one_address() -> None:
    text = emitted(bilinear(BF16, 64, 64)).text
    row = "in0 + tl.maximum(x0 - 1, 0) * 64 + "
    assert text.count(row) == 4, "those at clamped places, and the run"


def places(row: list[Expr]) -> list[tuple[Load, ...]]:
    found = find_load_runs([load("in0", [place], BF16) for place in row], symbol("x0", extent=64))
    return list(dict.fromkeys(found.values()))


def test_runs_begin_at_multiples_of_their_length() -> None:
    x = symbol("x0", extent=64)
    assert [len(run) for run in places([x * 8 + k for k in range(-1, 9)])] == [8]
    assert [len(run) for run in places([x * 8 + k for k in range(1, 8)])] == [2, 4]
    assert [len(run) for run in places([x * 6 + k for k in range(6)])] == [2, 2, 2]
    assert places([x * 3 + k for k in range(3)]) == []
