"""Launches that are proposed: blocks that fit rows and columns."""

from __future__ import annotations

import math
from typing import Any

import pytest
from launch_facts import change_facts, launch_facts

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import get_target
from coilwork_triton.launch.configs import propose_launches
from coilwork_triton.launch.parameters import Facts, Walk

H200 = get_target("sm_90")


def blocks(walk: Walk, streams: tuple[int, ...] = (2,), **extents: int) -> list[tuple[int, ...]]:
    across = {"x": 1.0, "r": 0.0} if walk != "pointwise" else {"x": 1.0}
    facts = launch_facts(
        walk=walk, extents=extents, coalescing=across, element_bytes=4, tensors=2, stream_bytes=streams
    )
    found = propose_launches(facts, H200, 3)
    names = {"YBLOCK": "y", "XBLOCK": "x", "R0_BLOCK": "r"}
    return [
        tuple({names[k]: v for k, v in c.meta if k in names}[n] for n in sorted(extents, reverse=True))
        + (c.num_warps,)
        for c in found
    ]


@pytest.mark.parametrize(
    ("length", "widths"),
    [(4096, [1024, 2048]), (3072, [1024, 512]), (50264, [1024, 2048]), (1100, [256, 512, 1024])],
)
def test_blocks_of_rows_hold_little_behind_the_end(length: int, widths: list[int]) -> None:
    found = blocks("pointwise", y=8192, x=length)
    assert sorted(width for _, width, _ in found) == sorted(widths)
    assert all(rows * width in (8 * 32 * warps, 16 * 32 * warps) for rows, width, warps in found)


@pytest.mark.parametrize("streams", [(2,), (4,), (2, 2)])
def test_columns_have_16_bytes_per_thread_and_32_in_flight(streams: tuple[int, ...]) -> None:
    for width, depth, warps in blocks("looped", streams, x=65536, r=1024):
        assert width * max(streams) >= 64
        assert width * depth * sum(streams) >= 32 * 32 * warps


@pytest.mark.parametrize(("row", "streams"), [(512, (4,)), (128, (2, 2)), (16, (4,))])
def test_whole_columns_fit_registers_and_span_lines(row: int, streams: tuple[int, ...]) -> None:
    found = blocks("persistent", streams, x=65536, r=row)
    assert all(width * depth <= 64 * 32 * warps for width, depth, warps in found)
    assert any(width * max(streams) >= 128 for width, _, _ in found)
    assert len(found) > 1


def test_one_narrow_operand_gives_threads_twice_as_much() -> None:
    # rows of 64 columns are 128 bytes: a block of them is one piece of memory
    first, *others = blocks("persistent", (2,), x=64 * 1792, r=512)
    assert first == (64, 512, 8)
    assert others and all(width * depth <= 64 * 32 * warps for width, depth, warps in others)
    assert (64, 512, 8) not in blocks("persistent", (4,), x=64 * 1792, r=512)


@pytest.mark.parametrize("across", [0.2, 0.4999, 0.5, 0.6])
@pytest.mark.parametrize("length", [200704, 784])
def test_neighbours_in_both_layouts_are_read_together(length: int, across: float) -> None:
    """Where some operands lie along what is reduced and others across it, a block spans a sector of both."""
    facts = launch_facts(
        walk="looped",
        extents={"x": 16384, "r": length},
        coalescing={"x": across, "r": 1 - across},
        element_bytes=2,
        tensors=2,
        stream_bytes=(2, 2),
    )
    for one in propose_launches(facts, H200, 3):
        meta = dict(one.meta)
        assert min(meta["XBLOCK"], meta["R0_BLOCK"]) * 2 >= H200.machine.memory.fetched_bytes


def test_long_rows_that_stay_are_several_where_some_lies_across() -> None:
    facts = launch_facts(
        walk="persistent",
        extents={"x": 8192, "r": 4096},
        coalescing={"x": 0.3, "r": 0.7},
        element_bytes=2,
        tensors=3,
        stream_bytes=(2, 2, 2),
        rereads_rows=True,
    )
    first, *_ = propose_launches(facts, H200, 3)
    assert dict(first.meta)["XBLOCK"] == 8 and 64 * 32 * first.num_warps >= 8 * 4096
    alone = propose_launches(change_facts(facts, coalescing={"r": 1.0}), H200, 3)
    assert [dict(c.meta)["XBLOCK"] for c in alone] == [1, 1]
    # of a GPU with little shared memory, through which such rows change threads
    less = propose_launches(facts, get_target("gfx942"), 3)
    assert all(dict(c.meta)["XBLOCK"] * 4096 * 4 <= get_target("gfx942").shared_memory_bytes for c in less)


def test_busy_columns_have_twice_the_threads() -> None:
    facts = launch_facts(
        walk="persistent",
        extents={"x": 65536, "r": 512},
        coalescing={"x": 1.0, "r": 0.0},
        element_bytes=4,
        tensors=3,
        stream_bytes=(2, 2, 2),
        operations=8,
    )
    (idle, *_), (busy, *_) = (
        propose_launches(facts, H200, 3),
        propose_launches(change_facts(facts, operations=40), H200, 3),
    )

    def each(config: Config) -> float:
        meta = dict(config.meta)
        return meta["XBLOCK"] * meta["R0_BLOCK"] / config.num_warps

    assert each(idle) == 2 * each(busy)


def test_few_columns_have_little_to_do_for_each_thread() -> None:
    found = blocks("persistent", (4, 4), x=768, r=256)
    assert found == [(8, 256, 8), (8, 256, 4)]


def rows_on_chip(rows: int, length: int) -> Facts:
    """Rows of two bytes per element, read, reduced and written."""
    return launch_facts(
        walk="persistent",
        extents={"x": rows, "r": length},
        coalescing={"r": 1.0},
        element_bytes=2,
        tensors=2,
        stream_bytes=(2, 2),
    )


def test_short_rows_have_16_elements_per_thread_in_large_or_small_blocks() -> None:
    facts = rows_on_chip(131072, 256)
    for streams in ((2, 2), (4, 4)):
        found = propose_launches(change_facts(facts, stream_bytes=streams), H200, 3)
        assert [(dict(c.meta)["XBLOCK"], c.num_warps) for c in found] == [(16, 8), (4, 2)]


def test_rows_that_a_cache_holds_are_for_two_warps_or_four() -> None:
    assert [c.num_warps for c in propose_launches(rows_on_chip(4096, 1024), H200, 3)] == [2, 4]
    assert [c.num_warps for c in propose_launches(rows_on_chip(65536, 1024), H200, 3)] == [1, 4]


def test_a_warp_has_two_rows_where_programs_of_one_ask_for_little() -> None:
    facts = change_facts(rows_on_chip(65536, 784), stream_bytes=(2,))
    found = [(dict(c.meta)["XBLOCK"], c.num_warps) for c in propose_launches(facts, H200, 3)]
    assert found == [(1, 1), (1, 4), (2, 1)]
    for others in (
        change_facts(facts, stream_bytes=(4,)),
        change_facts(facts, rereads_rows=True),
        change_facts(facts, extents={"x": 65537, "r": 784}),
        change_facts(facts, extents={"x": 16384, "r": 784}),
        change_facts(facts, extents={"x": 65536, "r": 2000}),
    ):
        assert all(dict(c.meta)["XBLOCK"] == 1 for c in propose_launches(others, H200, 3))
    bytes_each = change_facts(facts, element_bytes=1, stream_bytes=(1,), extents={"x": 65536, "r": 1900})
    assert all(dict(c.meta)["XBLOCK"] == 1 for c in propose_launches(bytes_each, H200, 3))


def test_programs_of_few_long_rows_are_large() -> None:
    facts = launch_facts(
        walk="looped",
        extents={"x": 256, "r": 240_000},
        coalescing={"r": 1.0},
        element_bytes=4,
        stream_bytes=(4, 4),
        tensors=2,
    )
    assert [c.num_warps for c in propose_launches(facts, H200, 3)] == [32, 8, 4]
    many = change_facts(facts, extents={"x": 4096, "r": 240_000})
    assert [c.num_warps for c in propose_launches(many, H200, 3)] == [8, 4, 4]


def test_few_short_columns_are_for_four_warps_or_for_two() -> None:
    facts = launch_facts(
        walk="persistent",
        extents={"x": 65536, "r": 128},
        coalescing={"x": 1.0},
        element_bytes=2,
        tensors=2,
        stream_bytes=(2,),
    )
    found = [(dict(c.meta)["XBLOCK"], c.num_warps) for c in propose_launches(facts, H200, 3)]
    # of variances of 96 rows these take 96, 60 and 54 us on an H200; half of the second takes 61
    assert found == [(64, 4), (32, 2), (64, 2)]


@pytest.mark.parametrize(
    ("row", "warps"), [(1024, [1, 4]), (4096, [4, 16]), (8192, [8, 4]), (16384, [16, 8])]
)
def test_whole_rows_are_for_few_threads_or_more(row: int, warps: list[int]) -> None:
    assert [c.num_warps for c in propose_launches(rows_on_chip(8192, row), H200, 3)] == warps


@pytest.mark.parametrize(
    ("columns", "row", "best"),
    [
        (2, 4096, (1, 4, 3)),
        (2, 1024, (4, 4, 3)),
        (3, 1024, (4, 4, 3)),
        (4, 1024, (2, 4, 3)),
        (3, 256, (16, 4, 1)),
        (1, 8192, (1, 8, 3)),
        (2, 256, (16, 4, 1)),
        (2, 64, (64, 4, 1)),
        (9, 2048, (1, 8, 3)),
    ],
)
def test_sequential_rows_are_for_few_threads(columns: int, row: int, best: tuple[int, int, int]) -> None:
    facts = launch_facts(
        walk="persistent",
        extents={"x": 256, "w": 64, "r": row},
        coalescing={"r": 1.0},
        element_bytes=4,
        tensors=8,
        column_sums=columns,
        stream_bytes=(2, 2, 2),
    )
    found = propose_launches(facts, get_target("sm_90"), 3)
    meta = dict(found[0].meta)
    assert (meta["WBLOCK"], found[0].num_warps, meta["STAGES"]) == best
    assert len(found) == (3 if row > 1024 or row < 256 or (columns, row) == (2, 256) else 2)
    for config in found:
        meta = dict(config.meta)
        assert meta["R0_BLOCK"] == row and meta["WBLOCK"] <= 64
        # accumulators and one row's elements stay in registers
        assert meta["WBLOCK"] * row * (columns + 1) <= 192 * 32 * config.num_warps
        # rows within a warp are loaded without stages
        assert meta["STAGES"] == 1 or row > 256


@pytest.mark.parametrize("rows", [1, 7, 300, 5000, 65536])
@pytest.mark.parametrize("length", [8, 100, 700, 4096])
@pytest.mark.parametrize("sort_bytes", [4, 8])
@pytest.mark.parametrize("along", ["x", "r"])
def test_sorted_blocks_are_powers_of_two_that_fit(
    rows: int, length: int, sort_bytes: int, along: str
) -> None:
    facts = launch_facts(
        walk="persistent",
        extents={"x": rows, "r": length},
        coalescing={along: 1.0},
        element_bytes=4,
        tensors=3,
        stream_bytes=(4,),
        sort_key_bytes=sort_bytes,
    )
    for config in propose_launches(facts, H200, 3):
        meta = dict(config.meta)
        assert all(size & (size - 1) == 0 for size in meta.values())
        assert meta["XBLOCK"] * meta["R0_BLOCK"] * sort_bytes <= H200.shared_memory_bytes


def test_stencils_have_small_blocks_or_many_points_per_thread() -> None:
    # four neighbours of one tensor are read, one result is written
    facts = launch_facts(
        walk="pointwise",
        extents={"x": 1 << 26},
        coalescing={"x": 1.0},
        element_bytes=2,
        tensors=2,
        stream_bytes=(2,) * 5,
    )
    assert [(dict(c.meta)["XBLOCK"], c.num_warps) for c in propose_launches(facts, H200, 3)] == [
        (512, 2),
        (1024, 1),
        (1024, 4),
    ]
    four_tensors = change_facts(facts, tensors=5)
    assert [(dict(c.meta)["XBLOCK"], c.num_warps) for c in propose_launches(four_tensors, H200, 3)] == [
        (2048, 4),
        (1024, 4),
    ]


def test_stencils_over_rows_have_several_rows_to_a_program() -> None:
    facts = launch_facts(
        walk="pointwise",
        extents={"y": 65408, "x": 1022},
        coalescing={"x": 1.0, "y": 0.0},
        element_bytes=4,
        tensors=2,
        stream_bytes=(4,) * 5,
    )
    first, *_ = propose_launches(facts, H200, 3)
    assert (dict(first.meta)["YBLOCK"], dict(first.meta)["XBLOCK"]) == (4, 512)
    one_tensor_each = propose_launches(change_facts(facts, tensors=5), H200, 3)
    assert all(dict(c.meta)["YBLOCK"] == 1 for c in one_tensor_each)


def test_a_seed_does_not_make_threads_take_fewer_points() -> None:
    # one number of 8 bytes for all points, beside two streams of 2 bytes
    facts = launch_facts(
        walk="pointwise",
        extents={"x": 1 << 26},
        coalescing={"x": 1.0},
        element_bytes=8,
        tensors=3,
        stream_bytes=(2, 2),
    )
    (first, *_) = propose_launches(facts, H200, 3)
    assert (dict(first.meta)["XBLOCK"], first.num_warps) == (2048, 4)
    (wide, *_) = propose_launches(change_facts(facts, stream_bytes=(2, 8)), H200, 3)
    assert (dict(wide.meta)["XBLOCK"], wide.num_warps) == (2048, 8)


def test_one_point_per_thread_or_several_where_each_loads_a_sector() -> None:
    facts = launch_facts(
        walk="pointwise",
        extents={"x": 4_000_000},
        coalescing={"x": 0.8},
        element_bytes=8,
        tensors=3,
        is_scattered=True,
    )
    found = propose_launches(facts, H200, 3)
    assert [(dict(c.meta)["XBLOCK"], c.num_warps) for c in found] == [(256, 8), (4096, 16), (8192, 8)]
    few = propose_launches(change_facts(facts, extents={"x": 4096}), H200, 3)
    assert all(dict(c.meta)["XBLOCK"] == 128 for c in few)
    # a search that scatters is long code as it is
    searching = propose_launches(change_facts(facts, load_chain=20), H200, 3)
    assert all(dict(c.meta)["XBLOCK"] <= 4 * 32 * c.num_warps for c in searching)


@pytest.mark.parametrize(
    ("length", "again", "wanted"),
    [(50257, True, True), (50257, False, False), (1 << 20, True, False), (9000, True, False)],
)
def test_rows_that_are_read_again_are_tried_one_per_multiprocessor(
    length: int, again: bool, wanted: bool
) -> None:
    """As long as the cache holds that many, and would not hold several of each."""
    facts = launch_facts(
        walk="looped",
        extents={"x": 2048, "r": length},
        coalescing={"x": 0.0, "r": 1.0},
        element_bytes=4,
        tensors=2,
        stream_bytes=(4, 4),
        rereads_rows=again,
    )
    assert any(c.num_warps == 32 for c in propose_launches(facts, H200, 3)) is wanted


def test_many_columns_of_one_operand_are_also_tried_with_few_threads() -> None:
    assert (128, 32, 2) in blocks("looped", (2,), x=64 * 2048, r=1024)
    assert (128, 32, 2) not in blocks("looped", (2,), x=4096, r=16384)


def test_what_gathers_two_values_per_point_has_later_rows_on_their_way() -> None:
    facts = launch_facts(
        walk="looped",
        extents={"x": 65536, "r": 2048},
        coalescing={"x": 1.0, "r": 0.0},
        element_bytes=4,
        tensors=3,
        stream_bytes=(2,),
        accumulators=2,
    )
    found = propose_launches(facts, H200, 3)
    assert dict(found[0].meta)["STAGES"] == 3
    for one in found:
        sizes = dict(one.meta)
        assert sizes["XBLOCK"] * sizes["R0_BLOCK"] <= 16 * 32 * one.num_warps


@pytest.mark.parametrize(
    ("columns", "streams"), [(8192, (2, 2)), (8192, (4, 4)), (16384, (2, 2, 8)), (512, (2, 2))]
)
def test_scanned_columns_have_enough_on_their_way(columns: int, streams: tuple[int, ...]) -> None:
    facts = launch_facts(
        walk="looped",
        extents={"x": columns, "r": 8192},
        coalescing={"x": 1.0, "r": 0.0},
        element_bytes=max(streams),
        tensors=len(streams),
        stream_bytes=streams,
        scan_words=1,
    )
    for one in propose_launches(facts, H200, 3):
        sizes = dict(one.meta)
        width, depth = sizes["XBLOCK"], sizes["R0_BLOCK"]
        programs = min(columns // width / H200.multiprocessors, 2)
        assert width * min(streams) >= 32
        assert (sizes["STAGES"] - 1) * width * depth * streams[0] * max(programs, 1) >= 16384
        # each thread has a run of its own
        assert 32 * one.num_warps * sizes["RUN"] <= width * depth and sizes["RUN"] > 1


def columns(walk: Walk, streams: tuple[int, ...], *, x: int, r: int, **others: Any) -> list[tuple[int, ...]]:
    """(columns, rows, warps, stages) of the candidates."""
    facts = launch_facts(
        walk=walk,
        extents={"x": x, "r": r},
        coalescing={"x": 1.0, "r": 0.0},
        element_bytes=max(streams, default=8),
        tensors=3,
        stream_bytes=streams,
        **others,
    )
    found: list[tuple[int, ...]] = []
    for one in propose_launches(facts, H200, 3):
        meta = dict(one.meta)
        found.append((meta["XBLOCK"], meta["R0_BLOCK"], one.num_warps, meta.get("STAGES", 1)))
    return found


def test_columns_that_are_looked_up_are_for_single_warps() -> None:
    assert columns("persistent", (), x=1 << 23, r=20, load_chain=2, operations=8) == [
        (64, 32, 1, 1),
        (32, 32, 1, 1),
    ]
    for width, depth, warps, _ in columns("persistent", (), x=1 << 20, r=300, load_chain=2):
        assert width >= 16 and width * depth == 64 * 32 * warps


def test_busy_columns_of_little_have_64_points_per_thread_or_128() -> None:
    assert columns("persistent", (2, 2), x=1 << 18, r=256, operations=17) == [
        (32, 256, 4, 1),
        (64, 256, 8, 1),
        (32, 256, 2, 1),
    ]
    found = columns("persistent", (2, 2), x=802816, r=96, operations=18)
    assert found == [(32, 128, 2, 1), (64, 128, 4, 1), (32, 128, 1, 1)]


def test_few_columns_have_later_rows_on_their_way() -> None:
    assert columns("looped", (2, 2), x=12288, r=8192)[-1] == (64, 64, 4, 3)
    assert columns("looped", (4,), x=20000, r=3000, accumulators=2)[-1] == (32, 64, 4, 3)


def test_few_long_rows_have_more_threads() -> None:
    facts = launch_facts(
        walk="looped",
        extents={"x": 512, "r": 1 << 18},
        coalescing={"x": 0.0, "r": 1.0},
        element_bytes=4,
        tensors=2,
        stream_bytes=(2,),
    )
    assert propose_launches(facts, H200, 3)[0].num_warps == 16
    # 16 bytes per thread
    assert propose_launches(change_facts(facts, stream_bytes=(4,)), H200, 3)[0].num_warps == 32
    many = propose_launches(change_facts(facts, extents={"x": 4096, "r": 1 << 15}), H200, 3)
    assert max(one.num_warps for one in many) == 8


def test_two_lines_of_scanned_columns_where_there_are_many() -> None:
    wide = columns("looped", (4, 4), x=32768, r=2048, scan_words=1)
    assert (64, 64, 4, 4) in wide
    assert all(width == 32 for width, *_ in columns("looped", (4, 4), x=16384, r=2048, scan_words=1)[::2])


def test_few_neighbours_along_another_range_are_no_transpose() -> None:
    facts = launch_facts(
        walk="pointwise",
        extents={"y": 192, "x": 262144},
        coalescing={"y": 0.2, "x": 0.8},
        element_bytes=4,
        tensors=4,
        stream_bytes=(1, 4),
    )

    def sides(facts: Facts) -> list[tuple[int, int]]:
        return [(dict(c.meta)["XBLOCK"], dict(c.meta)["YBLOCK"]) for c in propose_launches(facts, H200, 3)]

    assert (1024, 4) in sides(facts)
    assert (1024, 4) not in sides(change_facts(facts, coalescing={"y": 0.5, "x": 0.5}))


@pytest.mark.parametrize(
    "extents", [{"x": 1 << 22}, {"x": 3000}, {"y": 4096, "x": 4096}, {"z": 64, "y": 64, "x": 640}]
)
@pytest.mark.parametrize("operations", [100, 800, 4000, 20000])
@pytest.mark.parametrize("across", [{"x": 1.0}, {"x": 0.5, "y": 0.5}])
def test_code_of_many_operations_is_for_few_elements(
    extents: dict[str, int], operations: int, across: dict[str, float]
) -> None:
    facts = launch_facts(walk="pointwise", extents=extents, coalescing=across, element_bytes=4, tensors=2)
    light = propose_launches(facts, H200, 3)
    heavy = propose_launches(change_facts(facts, operations=operations), H200, 3)
    for found in heavy:
        elements = math.prod(size for _, size in found.meta) // (32 * found.num_warps)
        assert elements <= 1 or elements * operations <= H200.machine.grids.longest_code
    if operations == 100:
        assert heavy == light


def test_rows_of_many_operations_have_more_threads() -> None:
    facts = launch_facts(
        walk="persistent", extents={"x": 4096, "r": 1024}, coalescing={"r": 1.0}, element_bytes=4, tensors=2
    )
    light, heavy = (
        propose_launches(change_facts(facts, operations=count), H200, 1)[0] for count in (100, 2000)
    )
    assert light == propose_launches(facts, H200, 1)[0]
    assert heavy.meta == light.meta and heavy.num_warps == 16 > light.num_warps
