"""Rows that leave lanes of a power of two idle: how they are launched, and that what they give is what eager
gives.
"""

from __future__ import annotations

import math

import pytest
import torch
from kernel_bench import WALKS, TritonProcess, along, arg, compile_source, run_source
from launch_facts import change_facts, launch_facts
from triton_sample_kernels import layer_norm, layer_norm_backward, softmax

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.scalar import cast, index_value, load, op, placeholder, reduce, scan
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.launch.configs import propose_launches
from coilwork_triton.launch.parameters import Facts
from coilwork_triton.launch.reductions import count_active_lanes

H200 = get_target("sm_90")
BF16, F32, I64 = DType.BF16, DType.F32, DType.I64
MANY = 65536


def emitted(kernel: Kernel) -> KernelSource:
    return TritonCodegen().emit(kernel, H200, {})


def launches(rows: int, length: int, streams: tuple[int, ...] = (2, 2)) -> list[tuple[int, int]]:
    """(rows, warps) of programs for rows of a known length in registers."""
    return [
        (dict(c.meta)["XBLOCK"], c.num_warps) for c in propose_launches(facts(rows, length, streams), H200, 3)
    ]


def facts(rows: int, length: int, streams: tuple[int, ...] = (2, 2)) -> Facts:
    return launch_facts(
        walk="persistent",
        extents={"x": rows, "r": length},
        coalescing={"r": 1.0},
        element_bytes=max(streams),
        tensors=len(streams),
        stream_bytes=streams,
        row=length,
    )


@pytest.mark.parametrize(
    ("row", "threads", "width", "lanes"),
    [
        (1152, 128, 8, 2048),
        (1152, 64, 8, 1536),
        (1152, 32, 8, 1280),
        (1152, 32, 4, 1152),
        (1536, 64, 8, 1536),
        (384, 256, 8, 512),
        (1024, 32, 8, 1024),
    ],
)
def test_a_vector_takes_instructions_if_a_thread_has_something_in_it(
    row: int, threads: int, width: int, lanes: int
) -> None:
    assert count_active_lanes(row, threads, width) == lanes


@pytest.mark.parametrize(
    ("length", "warps"), [(1152, [1, 2]), (1280, [1, 2]), (2560, [2, 4]), (5120, [4, 8]), (10240, [8, 16])]
)
def test_many_rows_have_half_the_threads_where_that_leaves_fewer_lanes_idle(
    length: int, warps: list[int]
) -> None:
    assert launches(MANY, length) == [(1, count) for count in warps]


@pytest.mark.parametrize(
    ("length", "warps"), [(1536, [2, 8]), (2048, [2, 8]), (3072, [4, 16]), (8192, [8, 4])]
)
def test_rows_that_half_the_threads_would_work_on_as_long_keep_theirs(length: int, warps: list[int]) -> None:
    assert launches(MANY, length) == [(1, count) for count in warps]


def test_few_rows_wide_elements_and_many_tensors_keep_their_threads() -> None:
    kept = launches(MANY, 1536)
    assert launches(MANY, 1152, (4, 4)) == kept
    assert launches(MANY, 1152, (2,) * 7) == kept
    # registers take no more, or multiprocessors have fewer programs than room for them
    assert all(warps > 1 for _, warps in launches(2048, 1152))
    unknown = change_facts(facts(MANY, 1152), row=0)
    assert [c.num_warps for c in propose_launches(unknown, H200, 3)] == [2, 8]
    assert [
        c.num_warps for c in propose_launches(change_facts(facts(MANY, 1152), scan_words=1), H200, 3)
    ] == [2, 8]


@pytest.mark.parametrize("streams", [(2, 2), (2,), (4, 4)])
def test_short_rows_that_leave_lanes_idle_are_for_single_warps(streams: tuple[int, ...]) -> None:
    assert launches(MANY, 384, streams) == [(2, 1), (4, 1)]
    assert launches(MANY, 320, streams) == [(2, 1), (4, 1)]
    assert launches(MANY, 512, streams) == [(8, 8), (2, 2)]
    assert launches(40, 384, streams) == [(1, 1)]


def test_single_warps_have_registers_for_what_they_take() -> None:
    assert launches(MANY, 384, (4, 4, 4)) == [(2, 1), (8, 8)]
    assert launches(MANY, 384, (8, 8, 8)) == launches(MANY, 512, (8, 8, 8))


def test_short_rows_of_one_warp_are_as_they_were() -> None:
    assert launches(MANY, 192) == launches(MANY, 256) == [(16, 8), (4, 2)]


@pytest.mark.parametrize(
    ("kernel", "width"),
    [
        (softmax(384), 4),
        (softmax(320), 4),
        (layer_norm(640), 4),
        (softmax(512), 0),
        # two warps of a row that a cache holds would work on 1,024 lanes
        (softmax(768), 4),
        (softmax(1024), 0),
        # few rows have two warps each, which would work on 1,536 lanes
        (softmax(1152), 4),
        (softmax(1920), 0),
        (softmax(385), 0),
        (layer_norm_backward(16384, 1152, 256), 4),
        (layer_norm_backward(16384, 1536, 256), 4),
        (layer_norm_backward(16384, 2048, 256), 0),
        (layer_norm_backward(16384, 1152, 256, F32), 0),
    ],
)
def test_vectors_are_narrow_where_that_leaves_fewer_lanes_idle(kernel: Kernel, width: int) -> None:
    lanes = f"tl.max_contiguous(tl.arange(0, R0_BLOCK), {width})"
    text = emitted(kernel).text
    assert ("max_contiguous" in text) == (lanes in text) == (width > 0)


def test_rows_of_unknown_length_have_wide_vectors() -> None:
    n = symbol("n0", lo=1, hi=384)
    x0, r0 = along("x0", 4096), along("r0", n, "reduction")
    flat = x0.symbol * 384 + r0.symbol
    total = reduce("sum", [cast(load("in0", [flat], BF16), F32)], [r0.symbol])
    kernel = Kernel(
        name="sums",
        ranges=(x0, r0),
        args=(arg("in0", BF16, 4096 * 384), arg("out0", F32, 4096)),
        sizes=(n,),
        stores=(Store(buffer="out0", index=x0.symbol, value=total),),
    )
    assert "max_contiguous" not in emitted(kernel).text


def test_scans_and_fixed_launches_have_wide_vectors() -> None:
    x0, r0 = along("x0", 4096), along("r0", 384, "reduction")
    flat = x0.symbol * 384 + r0.symbol
    running = cast(scan("sum", cast(load("in0", [flat], BF16), F32), r0.symbol), BF16)
    kernel = Kernel(
        name="running",
        ranges=(x0, r0),
        args=(arg("in0", BF16, 4096 * 384), arg("out0", BF16, 4096 * 384)),
        stores=(Store(buffer="out0", index=flat, value=running),),
    )
    assert "max_contiguous" not in emitted(kernel).text
    for options in ({"batch_invariant": True}, WALKS["looped"]):
        assert "max_contiguous" not in TritonCodegen().emit(softmax(384), H200, options).text


@pytest.mark.slow
def test_single_warps_move_8_bytes_per_thread_and_wait_for_no_other(compiler: TritonProcess) -> None:
    text = compile_source(compiler, emitted(softmax(384)), "sm_90")
    # two rows of 512 lanes of two bytes: four accesses of 8 bytes each, of which the last one of a row is
    # never made
    assert text.count("ld.global.v2.b32") == text.count("st.global.v2.b32") == 8
    assert "bar.sync" not in text


def statistics(length: int, rows: int) -> Kernel:
    """Of rows of bf16: extremes and where they are, moments, the sum of what is looked up, and
    the softmax.
    """
    x0, r0 = along("x0", rows), along("r0", length, "reduction")
    flat = x0.symbol * length + r0.symbol
    x = cast(load("in0", [flat], BF16), F32)
    high, total = (reduce("online_softmax", [x], [r0.symbol], output=k) for k in (0, 1))
    mean, spread = (reduce("welford", [x], [r0.symbol], output=k) for k in (0, 1))
    looked_up = load("in2", [placeholder(0)], F32, indirect=[load("in1", [r0.symbol], I64)])
    position = op("mul", cast(index_value(r0.symbol), F32), x)
    found = [
        reduce("max", [x], [r0.symbol]),
        cast(reduce("argmax", [x], [r0.symbol]), F32),
        cast(reduce("argmin", [x], [r0.symbol]), F32),
        mean,
        spread,
        reduce("sum", [op("mul", x, looked_up)], [r0.symbol]),
        reduce("sum", [position], [r0.symbol]),
    ]
    exact = cast(op("div", op("exp", op("sub", x, high)), total), BF16)
    outputs = [arg(f"out{k}", F32, rows) for k in range(len(found))]
    return Kernel(
        name="statistics",
        ranges=(x0, r0),
        args=(
            arg("in0", BF16, rows * length), arg("in1", I64, length), arg("in2", F32, 50),
            *outputs, arg("last", BF16, rows * length),
        ),
        stores=(
            *(Store(buffer=o.name, index=x0.symbol, value=v) for o, v in zip(outputs, found, strict=True)),
            Store(buffer="last", index=flat, value=exact),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1, 9, 264])
@pytest.mark.parametrize("length", [320, 384, 640, 1152])
def test_rows_give_what_the_reference_does(engine: TritonProcess, length: int, rows: int) -> None:
    kernel = statistics(length, rows)
    data = torch.randn(rows, length).bfloat16()
    # ties, in one vector and in several; NaN, infinities, and rows of one number
    for row, what in enumerate(("ties", "nan", "inf", "one", "low")[:rows]):
        match what:
            case "ties":
                data[row, [5, 6, length - 1]] = 9.0
                data[row, [length // 2, length - 2]] = -9.0
            case "nan":
                data[row, [length - 1, 40]] = math.nan
            case "inf":
                data[row, length - 1] = math.inf
            case "one":
                data[row] = 3.0
            case _:
                data[row] = -math.inf
    tensors = {
        "in0": data.flatten(),
        "in1": torch.randint(50, (length,)),
        "in2": torch.randn(50),
        **{a.name: torch.full((rows,), math.nan) for a in kernel.args[3:-1]},
        "last": torch.zeros(rows * length).bfloat16(),
    }
    wanted = {name: t.clone() for name, t in tensors.items()}
    interpret_kernel(kernel, wanted, ())
    source = emitted(kernel)
    for config in range(len(source.configs)):
        got = run_source(engine, source, [t.clone() for t in tensors.values()], config=config)
        for found, name in zip(got, wanted, strict=True):
            torch.testing.assert_close(
                found.float(),
                wanted[name].float(),
                equal_nan=True,
                rtol=2e-2 if name == "last" else 1e-3,
                atol=1e-2,
            )


@pytest.mark.parametrize("rows", [7, 64])
def test_gradients_of_sequential_rows_are_those_of_the_reference(engine: TritonProcess, rows: int) -> None:
    width, groups = 1152, 3
    kernel = layer_norm_backward(rows, width, groups)
    tensors = [
        torch.randn(rows * width).bfloat16(),
        torch.randn(width).bfloat16(),
        torch.randn(rows * width).bfloat16(),
        torch.randn(rows),
        torch.rand(rows) + 0.5,
        torch.zeros(groups * width),
        torch.zeros(groups * width),
        torch.zeros(rows * width).bfloat16(),
    ]
    wanted = {a.name: t.clone() for a, t in zip(kernel.args, tensors, strict=True)}
    interpret_kernel(kernel, wanted, ())
    source = emitted(kernel)
    assert "max_contiguous" in source.text
    for config in range(len(source.configs)):
        got = run_source(engine, source, [t.clone() for t in tensors], config=config)
        for found, expected in zip(got, wanted.values(), strict=True):
            torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)
