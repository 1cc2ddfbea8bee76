"""Launches of kernels that reduce along memory: rows in registers, row loops, and long rows in blocks.

A row in registers stands in a power of two of lanes. A vector of lanes in which no thread has an element is
known to be empty when the kernel is compiled, and takes no instructions; one in which some thread has an
element takes those of all warps. So 1,152 elements of two bytes are worked on in 2,048 lanes by four warps,
in 1,536 by two, and in 1,280 by one, or in 1,152 where vectors are of 8 bytes. Threads and access widths are
chosen to leave few lanes idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.columns import (
    add_runs,
    propose_column_scans,
    propose_whole_columns,
    transpose_shapes,
)
from coilwork_triton.launch.parameters import (
    BLOCKS,
    STAGES,
    Facts,
    count_warps,
    is_reduction_across,
    is_reduction_of_blocks,
    make_config,
    make_other_tiles,
    round_down_to_power_of_two,
    round_up_to_power_of_two,
)

# Rows


def propose_persistent(facts: Facts, target: Target) -> list[Config]:
    row = round_up_to_power_of_two(facts.extents["r"])
    rows = facts.extents.get("x", 1)
    across = is_reduction_across(facts)
    if "x" in facts.extents and row >= 1024 and not across and is_reduction_of_blocks(facts, target):
        return _long_rows_side_by_side(facts, target, row)
    if "x" not in facts.extents or (row >= 1024 and not across):
        # 64 bytes per thread of one-byte elements, as of others
        warps = max(1, min(16, count_warps(row, 16 if facts.work.element_bytes > 1 else 64, target)))
        if row >= 8192:
            warps = max(8, min(16, count_warps(row, 32, target)))
        blocks = make_other_tiles(facts) | ({"x": 1} if "x" in facts.extents else {}) | {"r": row}
        # few threads have much in flight each; what takes many registers needs more of them
        tried = (warps, warps // 2) if row >= 8192 else (max(1, warps // 2), 2 * warps)
        if rows * row * sum(facts.work.stream_bytes) <= target.l2_bytes // 2 and 2 <= warps <= 4:
            # what a cache holds comes soon, and one warp has too much to do with it
            tried = (warps, 2 * warps)
        fewer = choose_fewer_warps(facts, tried[0], target)
        if fewer < tried[0]:
            tried = (fewer, tried[0])
        return [make_config(blocks, w, target) for w in tried] + _rows_of_a_warp(blocks, facts, target)
    # several rows per program, so that its warps have 16 bytes per thread to load
    enough = max(1, round_up_to_power_of_two(-(-rows // (2 * target.multiprocessors))))
    if across:
        return add_runs(propose_whole_columns(facts, target, row, max(enough, 32)), facts, target)
    found = []
    for elements, per_thread in transpose_shapes(facts, target, row) or list_short_row_shapes(facts, target):
        x = min(max(1, elements // row), enough, round_up_to_power_of_two(rows))
        warps = min(8, count_warps(x * row, per_thread, target))
        found.append(make_config(make_other_tiles(facts) | {"x": x, "r": row}, warps, target))
    return found


def _long_rows_side_by_side(facts: Facts, target: Target, row: int) -> list[Config]:
    """Launches with as many rows as registers hold, where some accesses lie across rows.

    A row alone would fetch a sector for each of their elements.
    """
    found = []
    # what lies across rows changes threads through shared memory
    room = round_down_to_power_of_two(target.shared_memory_bytes // max(4, facts.work.element_bytes))
    for per_thread in (64, 32):
        elements = min(per_thread * 16 * target.warp_size, room)
        x = max(1, min(elements // row, round_up_to_power_of_two(facts.extents["x"])))
        warps = min(16, count_warps(x * row, per_thread, target))
        found.append(make_config(make_other_tiles(facts) | {"x": x, "r": row}, warps, target))
    return found


def _rows_of_a_warp(blocks: Mapping[str, int], facts: Facts, target: Target) -> list[Config]:
    """Several rows for each warp, as well as `blocks` for each program of a warp, where as many programs as
    there is room for ask for little.

    So it is with 65,536 rows of 784 in 16 bits, of which a multiprocessor has 32 on their way, 50 kB, and
    which take an H200 half as long again as a copy.
    """
    grids = target.machine.grids
    rows = facts.extents.get("x", 1)
    little = facts.extents["r"] * sum(facts.work.stream_bytes) * grids.room_programs < grids.bytes_on_the_way
    several = grids.several_rows_elements * target.warp_size // blocks["r"]
    enough = (
        rows % max(1, several) == 0
        and rows >= several * grids.several_rows_waves * grids.room_programs * target.multiprocessors
    )
    if several < 2 or not little or not enough or facts.work.rereads_rows or not facts.work.stream_bytes:
        return []
    return [make_config({**blocks, "x": several}, 1, target)]


def propose_shared_rows(facts: Facts, target: Target) -> list[Config]:
    """Return a piece of a row per program, all of it in registers.

    Few threads have fewer barriers to wait at: the running sums of 64 rows of 1M f32 take an H200 147 us with
    4 warps, 154 with 8 and 167 with 16.
    """
    blocks = {tile: 1 for tile in ("z", "y", "x") if tile in facts.extents} | {"r": facts.piece}
    warps = max(1, min(2, count_warps(facts.piece, 8, target)), count_warps(facts.piece, 64, target))
    return [make_config(blocks, w, target) for w in (warps, 2 * warps)]


def propose_row_loop(facts: Facts, target: Target) -> list[Config]:
    """Return a row, or a few short ones, per step: up to 32 elements per thread of what is read and of each
    column's sums.
    """
    grids = target.machine.grids
    row = round_up_to_power_of_two(facts.extents["r"])
    most = round_up_to_power_of_two(facts.extents["w"])
    rest = {tile: 1 for tile in ("z", "y", "x") if tile in facts.extents}
    each = max(8, min(32, round_down_to_power_of_two(grids.sum_registers // max(1, facts.work.column_sums))))
    step = 4 * target.warp_size * each
    # (elements per step, elements per thread, stages): the next rows are on their way in further stages
    if row * max(facts.work.stream_bytes, default=facts.work.element_bytes) <= 16 * target.warp_size:
        # the loads of many rows at once keep memory busy
        # of two columns' sums, twice as many do not spill yet
        more = 2 if facts.work.column_sums <= 2 else 1
        shapes = [(step, each, 1), (more * step, more * each, 1), (step, each // 2, 1)]
    elif row >= step:
        shapes = [(row, each, 3), (row, each // 2, 3), (row, each // 2, 1)]
    elif 2 * row >= step:
        shapes = [(step, each, 3), (step, each // 2, 3)]
    else:
        shapes = [(step, each, 3), (step // 2, each // 2, 4)]
    found = []
    for elements, per_thread, stages in shapes:
        rows = min(max(1, elements // row), most)
        warps = min(16, count_warps(rows * row, per_thread, target))
        one = make_config(rest | {"w": rows, "r": row}, warps, target)
        found.append(replace(one, meta=(*one.meta, (STAGES, stages))))
    return found


def _propose_segmented(facts: Facts, target: Target) -> list[Config]:
    """Wide blocks of results, a few points of r at a time: most rows have no more. Deeper ones where rows are
    few.
    """
    columns = facts.extents.get("x", 1)
    rows = facts.extents.get("y", 1)
    if "y" not in facts.extents:
        shapes = [(1, 128, 4, 4), (1, 64, 8, 4), (1, 256, 2, 4)]
        if columns >= 1024 * 2 * target.multiprocessors:
            # several results per thread, each with a chain of loads
            shapes = [(1, 512, 2, 8), (1, 256, 1, 4)]
    elif rows * -(-columns // 256) < 4 * target.multiprocessors:
        shapes = [(1, 64, 32, 4), (1, 128, 16, 4)]
    else:
        width = _segment_block_width(columns)
        height = max(1, 512 // width)
        # 8 results per thread, with all its points of r: no thread waits for another, and registers leave
        # room for many
        warps = max(1, height * width // 256)
        shapes = [(height, width, 2, warps), (height, width, 1, warps)]
    found = []
    for height, width, depth, warps in shapes:
        x = min(width, round_up_to_power_of_two(columns))
        y = min(height * width // x, round_up_to_power_of_two(rows))
        blocks = {"y": y, "x": x} if "y" in facts.extents else {"x": x}
        r = min(depth, round_up_to_power_of_two(facts.extents["r"]))
        found.append(make_config(blocks | {"r": r}, min(warps, count_warps(x * y * r, 4, target)), target))
    return found


def _segment_block_width(columns: int) -> int:
    """Results of a row that a program takes: as many as may be with little behind the row's end."""
    for width in (1024, 512):
        if columns > width // 2 and 1 - columns / (-(-columns // width) * width) <= 1 / 4:
            return width
    return min(256, round_up_to_power_of_two(columns))


def propose_looped(facts: Facts, target: Target) -> list[Config]:
    if facts.work.is_segmented:
        return _propose_segmented(facts, target)
    if facts.work.scan_words and is_reduction_across(facts):
        return add_runs(propose_column_scans(facts, target), facts, target)
    # one block of the loop at a time; a search tries more
    found = [replace(c, meta=(*c.meta, (STAGES, 1))) for c in _propose_loop_blocks(facts, target)]
    if is_reduction_of_blocks(facts, target):
        return _add_staged_columns(found, facts, target)
    return found


def _add_staged_columns(configs: list[Config], facts: Facts, target: Target) -> list[Config]:
    """`configs`, and launches of few threads that load the next block while they reduce one.

    Those come last where columns are few or several tensors are read.
    Where lanes have much to gather, they are first: 16 million 16-bit numbers go into the log-sum-exps of
    columns in 49 us instead of 54.
    """
    grids = target.machine.grids
    blocks: list[tuple[int, int, int, int]] = []
    place = 2
    if len(facts.work.stream_bytes) == 1 and _has_many_columns(facts, target):
        blocks.append((128, 32, 2, 2))
        if facts.work.accumulators >= grids.many_accumulators:
            blocks, place = [(64, 32, 4, 3), (64, 64, 8, 3)], 0
    elif 1 <= len(facts.work.stream_bytes) <= 2:
        blocks.append((128 // max(facts.work.stream_bytes), 64, 4, 3))
    staged = []
    for x, r, warps, stages in blocks:
        size = {"x": x, "r": min(r, round_up_to_power_of_two(facts.extents["r"]))}
        one = make_config(make_other_tiles(facts) | size, warps, target)
        staged.append(replace(one, meta=(*one.meta, (STAGES, stages))))
    return [*configs[:place], *staged, *configs[place:]]


def _has_many_columns(facts: Facts, target: Target) -> bool:
    return _rows(facts) >= 128 * 3 * target.multiprocessors


def _fits_one_row_each(facts: Facts, target: Target) -> bool:
    """The second-level cache holds a row of every multiprocessor until it is read again, but not several of
    each.
    """
    grids = target.machine.grids
    rows = _rows(facts)
    in_flight = facts.extents["r"] * sum(facts.work.stream_bytes) // 2 * target.multiprocessors
    few, many = grids.cached_rows_share * target.l2_bytes, target.l2_bytes
    return rows >= 2 * target.multiprocessors and in_flight <= few and grids.rows_at_a_time * in_flight > many


def _rows(facts: Facts) -> int:
    """Rows, or columns, that are reduced."""
    return prod(extent for tile, extent in facts.extents.items() if tile != "r")


def _propose_loop_blocks(facts: Facts, target: Target) -> list[Config]:
    grids = target.machine.grids
    length = round_up_to_power_of_two(facts.extents["r"])
    if "x" not in facts.extents or not is_reduction_of_blocks(facts, target):
        one = {"x": 1} if "x" in facts.extents else {}
        found = []
        # 32 bytes per thread of two-byte elements per step
        sizes = (
            [(4096, 8), (8192, 16), (2048, 4)] if facts.work.scan_words else [(4096, 8), (2048, 4), (1024, 4)]
        )
        if facts.work.rereads_rows and _fits_one_row_each(facts, target):
            sizes = [(4096, 8), (8192, 32)]
        elif (
            not facts.work.scan_words
            and target.multiprocessors <= _rows(facts) <= grids.crowd_programs * target.multiprocessors
        ):
            # programs of 256 threads would leave room for others
            wide = max(facts.work.stream_bytes, default=facts.work.element_bytes) >= 4
            sizes = [(4096, 32 if wide else 16), (4096, 8), (1024, 4)]
        for size, warps in sizes:
            r = min(size, length)
            found.append(
                make_config(
                    make_other_tiles(facts) | one | {"r": r}, min(warps, count_warps(r, 4, target)), target
                )
            )
        return found
    found = []
    # few columns: narrower blocks, down to one 32-byte sector, keep every multiprocessor busy
    columns = _rows(facts)
    # 32 bytes per thread in flight: deeper blocks of small elements
    deep = 2 if 0 < sum(facts.work.stream_bytes) <= 2 else 1
    shapes = [(64, 32 * deep, 8), (32, 64 * deep, 8), (16, 128 * deep, 8)]
    if _has_many_columns(facts, target) and facts.work.accumulators < grids.many_accumulators:
        # blocks of 64 need more registers than leave room for all of them at once; half as many run in one
        # wave
        shapes = [(128, 32 * deep, 4), (64, 32 * deep, 8), (128, 32 * deep, 8)]
    busy = [shape for shape in shapes if columns >= shape[0] * target.multiprocessors]
    ordered = busy + [shape for shape in reversed(shapes) if shape not in busy]
    for width, depth, warps in ordered[:2]:
        x = min(width, round_up_to_power_of_two(facts.extents["x"]))
        r = min(depth * width // x, length)
        # a thread has a value of each sum for each of its elements
        while r > 1 and r * x * facts.work.sums > grids.sum_registers * warps * target.warp_size:
            r //= 2
        found.append(
            make_config(
                make_other_tiles(facts) | {"x": x, "r": r}, min(warps, count_warps(x * r, 4, target)), target
            )
        )
    return found


# Lane utilization


def count_access_lanes(facts: Facts, target: Target) -> int:
    """Neighbours along a row that a thread accesses at once."""
    width = target.vector_bytes // min(facts.work.stream_bytes, default=target.vector_bytes)
    while width > 1 and facts.row % width:
        width //= 2
    return max(1, width)


def count_active_lanes(row: int, threads: int, width: int) -> int:
    """Lanes that take instructions where `threads` have a row of so many points, `width` neighbours at a
    time.
    """
    step = min(threads * width, round_up_to_power_of_two(row))
    return -(-row // step) * step


def choose_fewer_warps(facts: Facts, warps: int, target: Target) -> int:
    """Half of `warps`, if they are for one row and leave fewer lanes idle; `warps` if not.

    Rows have to be many, and little enough for the registers of as few threads. For 65,536 rows of 1,152 in
    16 bits, normalised and modulated, that is 14.6 instructions per element instead of 20.8, and no barriers.
    """
    grids = target.machine.grids
    half, width = warps // 2, count_access_lanes(facts, target)
    many = facts.extents.get("x", 1) >= grids.room_programs * target.multiprocessors
    if not facts.row or not facts.work.stream_bytes or facts.work.scan_words or not many or half < 1:
        return warps
    before = count_active_lanes(facts.row, warps * target.warp_size, width)
    after = count_active_lanes(facts.row, half * target.warp_size, width)
    each = after // (half * target.warp_size)
    fits = (
        each <= grids.idle_lanes_most_elements
        and each * sum(facts.work.stream_bytes) <= grids.idle_lanes_most_bytes
    )
    return half if fits and _saves(before, after, grids.saved_lanes_by_threads) else warps


def list_short_row_shapes(facts: Facts, target: Target) -> list[tuple[int, int]]:
    """(lanes of a program, lanes of a thread) for short rows, so that there is something to load while some
    are reduced.

    Where a good part of the lanes of rows that are spread over several warps is idle, a warp alone has all of
    a row, and waits for no other: softmax of rows of 384 in 16 bits takes 17 instructions per element instead
    of 27.
    """
    grids = target.machine.grids
    row = round_up_to_power_of_two(facts.row)
    spread = bool(facts.work.stream_bytes) and row > target.warp_size * count_access_lanes(facts, target)
    alone = [
        (lanes, each)
        for lanes, each in ((1024, 32), (2048, 64))
        if each * sum(facts.work.stream_bytes) <= grids.idle_lanes_most_bytes
    ]
    if (
        alone
        and spread
        and not facts.work.scan_words
        and _saves(row, facts.row, grids.saved_lanes_by_threads)
    ):
        return [*alone, (4096, 16)][:2]
    return [(4096, 16), (1024, 16)]


def choose_narrow_access(facts: Facts, first: Config, target: Target) -> int:
    """Neighbours along a row that threads should access at once, in 8 bytes, because that leaves fewer lanes
    idle; else 0.

    `first` is how the kernel is launched. Threads lie along a row first, then along several. Of elements that
    are wider than two bytes few enough come at a time for all that is computed of them.
    """
    grids = target.machine.grids
    width, narrowest = (
        count_access_lanes(facts, target),
        min(facts.work.stream_bytes, default=target.vector_bytes),
    )
    if (
        not facts.row
        or facts.work.scan_words
        or narrowest > 2
        or width * narrowest <= grids.narrow_access_bytes
    ):
        return 0
    threads = first.num_warps * target.warp_size
    lanes = dict(first.meta)[BLOCKS["r"]]
    before, after = (
        count_active_lanes(facts.row, min(threads, lanes // each), each) for each in (width, width // 2)
    )
    return width // 2 if _saves(before, after, grids.saved_lanes_by_accesses) else 0


def _saves(before: int, after: int, share: int) -> bool:
    return (before - after) * share >= before
