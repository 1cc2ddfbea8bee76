"""Launches of kernels that reduce or scan columns: x lies along memory, and rows are combined.

Whole columns on chip are blocks that span a line of cache along x. A scan walks its columns from end to end,
a block of rows at a time, and columns divided by a block's width are all the programs there are. About 40 kB
on the way per multiprocessor keep an H200's memory busy, so later blocks are loaded while one is scanned.

Threads load 16 bytes of a row each, so that neighbouring rows are other threads', unless a block's rows are
dealt out in runs (`statements/scans.py`): a running sum of 16-bit columns takes 42 instructions per element
without runs, and 10 with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import (
    RUN,
    STAGES,
    Facts,
    count_warps,
    is_search,
    make_config,
    make_other_tiles,
    round_up_to_power_of_two,
)

# Scans


def propose_column_scans(facts: Facts, target: Target) -> list[Config]:
    """Blocks of rows of neighbouring columns, of which some are on their way while one is scanned."""
    grids = target.machine.grids
    memory = target.machine.memory
    widest = max(facts.work.stream_bytes, default=facts.work.element_bytes)
    columns = facts.extents["x"]
    programs = columns * prod(facts.extents.get(tile, 1) for tile in ("y", "z"))
    enough = grids.full_share * target.multiprocessors
    # of narrow elements beside wide ones at least half a line, too
    least = grids.line_bytes // 2 // min(facts.work.stream_bytes, default=widest)
    widths = [
        max(size // widest, min(least, size))
        for size in (grids.line_bytes, grids.line_bytes // 2, memory.fetched_bytes)
    ]
    fitting = [width for width in widths if programs >= enough * width] or widths[-1:]
    width = fitting[0]
    narrow = next((w for w in fitting if w < width), width)
    each = 64 if facts.work.scan_words == 1 and sum(facts.work.stream_bytes) <= grids.little_bytes else 32
    crowded = programs >= 2 * enough * width
    shapes = [
        (width, 4 if crowded else 8, each, 3),
        (narrow, 4, each, 3) if narrow < width else (width, 8 if crowded else 4, each, 3),
        (width, 8, max(16, each // 2), 4),
    ]
    if (
        width * widest == grids.line_bytes
        and programs >= 2 * grids.enough_programs * target.multiprocessors * width
    ):
        # two lines at a time still leave work for all: running sums of 32,768 columns of f32 in 139 us
        # instead of 152
        shapes[1] = (2 * width, 4, each, 4)
    found = []
    for size, warps, per_thread, stages in shapes:
        x = min(size, round_up_to_power_of_two(columns))
        r = min(warps * target.warp_size * per_thread // x, round_up_to_power_of_two(facts.extents["r"]))
        one = make_config(
            make_other_tiles(facts) | {"x": x, "r": r},
            min(warps, count_warps(x * r, per_thread, target)),
            target,
        )
        found.append(replace(one, meta=(*one.meta, (STAGES, stages))))
    return found


def add_runs(configs: Sequence[Config], facts: Facts, target: Target) -> list[Config]:
    """`configs` with the length of threads' runs along a scan, if there is one and all of them have runs for
    all threads.
    """
    grids = target.machine.grids
    sizes = [dict(c.meta) for c in configs]
    if not facts.work.scan_words or any(
        s["XBLOCK"] < 2 or s["R0_BLOCK"] < grids.shortest_run_block for s in sizes
    ):
        return list(configs)
    lanes = max(1, target.vector_bytes // min(facts.work.stream_bytes, default=facts.work.element_bytes))
    found = []
    for one, size in zip(configs, sizes, strict=True):
        x, r = size["XBLOCK"], size["R0_BLOCK"]
        warps = min(one.num_warps, count_warps(x * r, 2, target))
        threads = warps * target.warp_size
        # threads side by side share a row of the block; the others have a run each
        runs = min(max(2, threads // max(1, x // lanes)), r // 2)
        if threads > x * runs:
            # each thread has a run of its own, or Triton's scans mix up the copies
            return list(configs)
        found.append(replace(one, num_warps=warps, meta=(*one.meta, (RUN, r // runs))))
    return found


# Whole columns


def propose_whole_columns(facts: Facts, target: Target, row: int, most: int) -> list[Config]:
    """Blocks of whole columns of `row` points: contiguous along x, where a block spans a line of cache."""
    grids = target.machine.grids
    if not facts.work.stream_bytes and facts.work.load_chain > 1 and not is_search(facts, target):
        return _propose_gathered_columns(facts, target, row, most)
    blocks: list[tuple[int, int]] = []
    alone: list[tuple[int, int]] = []
    for width, per_thread in _column_shapes(facts, target, row):
        x = min(width, most, round_up_to_power_of_two(facts.extents["x"]))
        warps = few = min(16, count_warps(x * row, per_thread, target))
        if not _is_compute_bound(facts, target) or per_thread <= 32:
            # blocks that are small have little in flight for each thread anyway
            warps = max(warps, min(4, count_warps(x * row, 8, target)))
        if few <= 2 and few < warps:
            # few warps wait for few others: two sums each of 26 rows of 48 columns take 101 us with one, 545
            # with four
            alone.append((x, few))
        if (x, warps) in blocks and width >= grids.wide_column_block and min(x, warps) > 1:
            # both came to the same: half as much for half as many threads instead, or for one warp, which
            # waits for no other
            x, warps = x // 2, warps // 2
            if warps == 2:
                alone.append((x, 1))
        blocks.append((x, warps))
    tried = dict.fromkeys((*blocks, *alone))
    return [make_config(make_other_tiles(facts) | {"x": x, "r": row}, warps, target) for x, warps in tried]


def _column_shapes(facts: Facts, target: Target, row: int) -> list[tuple[int, int]]:
    """(columns, points per thread) of two blocks of whole columns, or three."""
    grids = target.machine.grids
    line = 128 // max(facts.work.stream_bytes, default=facts.work.element_bytes)
    best = max(2048 // row, line)
    if facts.extents["x"] < best * target.multiprocessors:
        # few columns: a sector of memory is enough for a block, so that there are more of them, with little
        # to do for each
        if is_search(facts, target):
            return [(max(1, best // 4), 2)]
        return [(max(1, best // 4), 8), (max(1, best // 4), 16)]
    little = sum(facts.work.stream_bytes) * 64 <= 4 * grids.column_registers
    if (
        _is_compute_bound(facts, target)
        and 0 < sum(facts.work.stream_bytes) <= grids.little_bytes
        and best * row <= grids.widest_column_points
    ):
        # few threads reduce a column with few instructions: softmax along 256 rows in 75 us with 64 points
        # per thread, in 87 with 32; half as many threads have fewer instructions still, if registers leave
        # room for enough of them
        return [(max(1, best // 2), 64), (best, 64), (max(1, best // 2), 128)]
    each = 64 if little and not _is_compute_bound(facts, target) else 32
    fitting = [x for x in (best, best // 2, 2 * best, best // 4) if 0 < x * row <= each * 512]
    # small blocks first, if large ones are not what it takes to span a line
    ordered = sorted(fitting[:3], key=lambda x: x * row > 64 * 256)
    if each == 64 and 2 * best in ordered and 2 * best * row <= each * 128:
        # four warps are kept busy by nothing less
        ordered = [2 * best, best]
    shapes = [(x, each) for x in ordered] or [(max(1, best // 4), each)]
    if (
        sum(facts.work.stream_bytes) <= 2
        and best * row <= grids.widest_column_points
        and not _is_compute_bound(facts, target)
    ):
        # what is loaded takes half a register each
        shapes.insert(0, (best, 2 * each))
    return shapes[:2]


def transpose_shapes(facts: Facts, target: Target, row: int) -> list[tuple[int, int]]:
    """(points of a program, points of a thread) where some tensors have neighbours along x and others along
    rows of `row` points.

    So it is where pictures in planes are normalised over their channels and stored with channels last. A
    block spans whole sectors of both, and few threads exchange what they have with few instructions: 12.6 per
    element of 96 channels, where 16 points per thread take 28.8.
    """
    grids = target.machine.grids
    width = grids.stored_column_bytes // max(facts.work.stream_bytes, default=grids.stored_column_bytes)
    both = min(facts.coalescing.get("x", 0.0), facts.coalescing.get("r", 0.0)) > grids.transposed_share
    if not both or row < width or facts.work.scan_words or not facts.work.stream_bytes:
        return []
    few = [
        (width * row, each)
        for each in (64, 128)
        if each * sum(facts.work.stream_bytes) <= 4 * grids.column_registers
    ]
    return [*few, (4096, 16)]


def _propose_gathered_columns(facts: Facts, target: Target, row: int, most: int) -> list[Config]:
    """Blocks of whole columns of points that are looked up: a warp has all of what it adds, and waits for no
    other.

    Sums of 20 rows each of a table take an H200 133 us with one warp per 64 columns, 228 with two and 460
    with four.
    """
    grids = target.machine.grids
    found = []
    for points in (2048, 1024):
        x = min(
            max(grids.wide_load_bytes // facts.work.element_bytes, points // row),
            most,
            round_up_to_power_of_two(facts.extents["x"]),
        )
        found.append(
            make_config(
                make_other_tiles(facts) | {"x": x, "r": row}, count_warps(x * row, 64, target), target
            )
        )
    return found


def _is_compute_bound(facts: Facts, target: Target) -> bool:
    """Arithmetic takes about as long as memory."""
    return facts.work.operations > target.machine.grids.busy_operations * max(1, sum(facts.work.stream_bytes))
