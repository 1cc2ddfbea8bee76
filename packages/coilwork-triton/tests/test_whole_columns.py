"""Whole columns on chip, of which some tensors have neighbours along the columns and others along what is
reduced.
"""

from __future__ import annotations

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, run_source
from launch_facts import launch_facts

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.scalar import Scalar, cast, const, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.launch.configs import propose_launches

H200 = get_target("sm_90")
F16, F32 = DType.F16, DType.F32


def launches(
    row: int, streams: tuple[int, ...] = (2, 2), *, x: float = 0.5, rows: int = 1 << 20
) -> list[tuple[int, int]]:
    """(columns, warps) of programs for columns of `row` points, of which tensors have a share `x` of
    neighbours along x.
    """
    facts = launch_facts(
        walk="persistent",
        extents={"x": rows, "r": row},
        coalescing={"x": x, "r": 1 - x},
        element_bytes=max(streams),
        tensors=len(streams),
        stream_bytes=streams,
        row=row,
    )
    return [(dict(c.meta)["XBLOCK"], c.num_warps) for c in propose_launches(facts, H200, 3)]


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (48, [(32, 1), (64, 8)]),
        (96, [(32, 2), (32, 1), (32, 8)]),
        (192, [(32, 4), (32, 2), (16, 8)]),
        (512, [(32, 8), (32, 4), (8, 8)]),
    ],
)
def test_few_threads_have_sectors_of_both(row: int, wanted: list[tuple[int, int]]) -> None:
    assert launches(row) == wanted


def test_sectors_are_of_fewer_wide_elements_for_which_registers_are() -> None:
    assert launches(96, (4, 4)) == [(16, 1), (32, 8)]
    assert launches(96, (2, 4)) == [(16, 1), (32, 8)]


def test_rows_with_neighbours_along_one_range_and_pairs_are_as_they_were() -> None:
    assert launches(96, x=0.05) == launches(96, x=0.0) == [(32, 8), (8, 2)]
    assert launches(2) == launches(2, x=0.05)


def normed_planes(images: int, channels: int, points: int) -> Kernel:
    """out = layer_norm(x) over channels: x in planes, out with channels last."""
    x0, x1 = along("x0", images), along("x1", points)
    r0 = along("r0", channels, "reduction")
    x = cast(load("in0", [(x0.symbol * channels + r0.symbol) * points + x1.symbol], F16), F32)
    mean, m2 = (reduce("welford", [x], [r0.symbol], output=k) for k in (0, 1))
    deviation: Scalar = op("add", op("div", m2, const(channels, F32)), const(1e-5, F32))
    value = op("mul", op("sub", x, mean), op("rsqrt", deviation))
    size = images * channels * points
    return Kernel(
        name="normed",
        ranges=(x0, x1, r0),
        args=(arg("in0", F16, size), arg("out0", F16, size)),
        stores=(
            Store(
                buffer="out0",
                index=(x0.symbol * points + x1.symbol) * channels + r0.symbol,
                value=cast(value, F16),
            ),
        ),
    )


@pytest.mark.parametrize(("images", "channels", "points"), [(2, 96, 49), (1, 320, 64), (3, 40, 9)])
def test_planes_are_normed_over_channels(
    engine: TritonProcess, images: int, channels: int, points: int
) -> None:
    kernel = normed_planes(images, channels, points)
    data = torch.randn(images * channels * points).half()
    wanted = {"in0": data.clone(), "out0": torch.zeros_like(data)}
    interpret_kernel(kernel, wanted, ())
    source = TritonCodegen().emit(kernel, H200, {})
    assert "max_contiguous" not in source.text
    for config in range(len(source.configs)):
        got = run_source(engine, source, [data.clone(), torch.zeros_like(data)], config=config)[-1]
        torch.testing.assert_close(got, wanted["out0"], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("row", "wanted"), [(32, [(64, 4), (128, 4), (64, 1)]), (128, [(64, 4), (32, 2), (64, 2)])]
)
def test_short_columns_are_also_for_few_threads_each(row: int, wanted: list[tuple[int, int]]) -> None:
    assert launches(row, (2,), x=1.0)[:3] == wanted
