"""Bytes and operations of a kernel to be, as cost models get to see them."""

from __future__ import annotations

import pytest
from declared import declare
from graph_builder import Builder

from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Pointwise, Reduce
from coilwork_ir.scalar import const, op
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.fusion.alignment import find_alignments
from coilwork_scheduler.fusion.fusion_candidate import FusionCandidate, make_candidate, merge_candidates
from coilwork_scheduler.fusion.profitability import Traffic
from coilwork_scheduler.fusion_group import group_of, make_stage
from coilwork_scheduler.options import make_size_hints


def traffic(build: Builder, name: str = "sm_90", kept_bytes: int | None = None) -> Traffic:
    targets = declare(get_target(name), kept_bytes=kept_bytes)
    return Traffic(buffers=build.buffers, sizes=make_size_hints(ScheduleOptions()), targets=targets)


def candidates(build: Builder) -> list[FusionCandidate]:
    return [
        make_candidate(make_stage(k, node), "cuda:0")
        for k, node in enumerate(build.nodes)
        if isinstance(node, Pointwise | Reduce)
    ]


def test_a_broadcast_operand_is_read_once(build: Builder) -> None:
    build.input("x", 32, 64, dtype=DType.F32)
    build.input("w", 64, dtype=DType.F32)
    build.pointwise(
        "y", [32, 64], lambda i, j: op("mul", build.at("x", i, j), build.at("w", j)), dtype=DType.F32
    )
    (only,) = candidates(build)
    work = traffic(build).work(only, {"y"})
    assert (work.read_bytes, work.write_bytes) == (4 * 32 * 64 + 4 * 64, 4 * 32 * 64)
    assert (work.rows, work.row_length, work.operations) == (32 * 64, 1, 32 * 64)


def test_what_nobody_wants_is_not_written(build: Builder) -> None:
    build.input("x", 8)
    build.pointwise("y", [8], lambda i: op("exp", build.at("x", i)))
    (only,) = candidates(build)
    assert traffic(build).work(only, ()).write_bytes == 0


def test_a_slice_counts_with_the_points_that_are_read(build: Builder) -> None:
    build.input("x", 1000)
    build.pointwise("y", [10], lambda i: op("exp", build.at("x", i + 5)))
    (only,) = candidates(build)
    assert traffic(build).work(only, {"y"}).read_bytes == 80


@pytest.mark.parametrize(("kept_bytes", "passes"), [(1 << 16, 1), (64, 2)])
def test_a_row_that_does_not_stay_on_chip_is_read_again(build: Builder, kept_bytes: int, passes: int) -> None:
    build.input("x", 6, 100)
    build.reduce("s", "sum", [6], [100], lambda i, r: build.at("x", i, r))
    build.pointwise("y", [6, 100], lambda i, j: op("sub", build.at("x", i, j), build.at("s", i)))
    one, two = candidates(build)
    stages = [part.stage for candidate in (one, two) for part in candidate.parts]
    rows, columns = stages[0].stores[0].index, stages[1].stores[0].index
    shared = [((rows[0], *stages[0].reduced), columns)]
    both = merge_candidates(
        one, two, next(find_alignments(group_of(stages[0]), group_of(stages[1]), shared, "t"))
    )
    work = traffic(build, kept_bytes=kept_bytes).work(both, {"y"})
    assert work.read_bytes == passes * 8 * 600
    assert (work.rows, work.row_length) == (6, 100)


def test_shared_bytes_are_those_that_both_read(build: Builder) -> None:
    build.input("x", 16)
    build.input("z", 4)
    build.pointwise("a", [16], lambda i: op("exp", build.at("x", i)))
    build.pointwise("b", [16], lambda i: op("mul", build.at("x", i), const(2.0, DType.F64)))
    build.pointwise("c", [4], lambda i: op("exp", build.at("z", i)))
    a, b, c = candidates(build)
    found = traffic(build)
    assert found.common_bytes(a, b) == 128 and found.common_bytes(a, c) == 0


@pytest.mark.parametrize(
    ("columns", "name", "times"), [(2048, "sm_90", 2), (2048, "x86-64-avx512", 1), (256, "sm_90", 1)]
)
def test_rows_that_read_across_fetch_sectors_in_vain(
    build: Builder, columns: int, name: str, times: int
) -> None:
    """Of `z`, a block of two rows of 2,048 columns takes 16 bytes of each 32; a block of 16 shorter rows all
    of them.
    """
    build.input("x", 64, columns)
    build.input("y", 64, columns)
    build.input("z", columns, 64)
    build.reduce(
        "s",
        "sum",
        [64],
        [columns],
        lambda i, r: op("mul", op("mul", build.at("x", i, r), build.at("y", i, r)), build.at("z", r, i)),
    )
    (only,) = candidates(build)
    size = 8 * 64 * columns
    assert traffic(build, name=name).work(only, {"s"}).read_bytes == (2 + times) * size


@pytest.mark.parametrize(
    ("shape", "name", "times"),
    [((10, 4096), "sm_90", 4), ((10, 4096), "x86-64-avx512", 1), ((10, 256), "sm_90", 1)],
)
def test_rows_in_two_orders_of_memory_fetch_sectors_in_vain(
    build: Builder, shape: tuple[int, ...], name: str, times: int
) -> None:
    """Of what lies in another order than the results, threads take 8 bytes of each 32: ten elements lie 4,096
    steps apart. Where they are 256 apart a block has all of them.
    """
    channels, pixels = shape
    build.input("x", 6, pixels, channels)
    build.reduce("s", "sum", [6], [channels, pixels], lambda n, c, p: build.at("x", n, p, c))
    build.pointwise(
        "y", [6, channels, pixels], lambda n, c, p: op("sub", build.at("x", n, p, c), build.at("s", n))
    )
    one, two = candidates(build)
    (total,), (result,) = one.parts, two.parts
    summed = (total.stage.stores[0].index[0], *total.stage.reduced)
    shared = [(summed, result.stage.stores[0].index)]
    both = merge_candidates(
        one, two, next(find_alignments(group_of(total.stage), group_of(result.stage), shared, "t"))
    )
    size = 8 * 6 * channels * pixels
    work = traffic(build, name=name, kept_bytes=1 << 20).work(both, {"y"})
    if name == "sm_90":
        assert (work.read_bytes, work.write_bytes) == (times * size, size)
    # the sum alone is walked in the order of what it reads
    assert traffic(build, name=name).work(one, {"s"}).read_bytes == size
