"""Block sizes where whole columns are on chip: memory has neighbours along x, and what is reduced lies in
other rows.
"""

from __future__ import annotations

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import (
    Facts,
    config,
    next_power_of_two,
    other_tiles,
    searches,
    warps_for,
)


def whole_columns(facts: Facts, target: Target, row: int, most: int) -> list[Config]:
    """Blocks of whole columns of `row` points: contiguous along x, where a block spans a line of cache."""
    grids = target.machine.grids
    if not facts.work.stream_bytes and facts.work.load_chain > 1 and not searches(facts, target):
        return _gathered_columns(facts, target, row, most)
    blocks: list[tuple[int, int]] = []
    alone: list[tuple[int, int]] = []
    for width, per_thread in _column_shapes(facts, target, row):
        x = min(width, most, next_power_of_two(facts.extents["x"]))
        warps = few = min(16, warps_for(x * row, per_thread, target))
        if not _busy(facts, target) or per_thread <= 32:
            # blocks that are small have little in flight for each thread anyway
            warps = max(warps, min(4, warps_for(x * row, 8, target)))
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
    return [config(other_tiles(facts) | {"x": x, "r": row}, warps, target) for x, warps in tried]


def _column_shapes(facts: Facts, target: Target, row: int) -> list[tuple[int, int]]:
    """(columns, points per thread) of two blocks of whole columns, or three."""
    grids = target.machine.grids
    line = 128 // max(facts.work.stream_bytes, default=facts.work.element_bytes)
    best = max(2048 // row, line)
    if facts.extents["x"] < best * target.multiprocessors:
        # few columns: a sector of memory is enough for a block, so that there are more of them, with little
        # to do for each
        if searches(facts, target):
            return [(max(1, best // 4), 2)]
        return [(max(1, best // 4), 8), (max(1, best // 4), 16)]
    little = sum(facts.work.stream_bytes) * 64 <= 4 * grids.column_registers
    if (
        _busy(facts, target)
        and 0 < sum(facts.work.stream_bytes) <= grids.little_bytes
        and best * row <= grids.widest_column_points
    ):
        # few threads reduce a column with few instructions: softmax along 256 rows in 75 us with 64 points
        # per thread, in 87 with 32; half as many threads have fewer instructions still, if registers leave
        # room for enough of them
        return [(max(1, best // 2), 64), (best, 64), (max(1, best // 2), 128)]
    each = 64 if little and not _busy(facts, target) else 32
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
        and not _busy(facts, target)
    ):
        # what is loaded takes half a register each
        shapes.insert(0, (best, 2 * each))
    return shapes[:2]


def both_ways(facts: Facts, target: Target, row: int) -> list[tuple[int, int]]:
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


def _gathered_columns(facts: Facts, target: Target, row: int, most: int) -> list[Config]:
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
            next_power_of_two(facts.extents["x"]),
        )
        found.append(config(other_tiles(facts) | {"x": x, "r": row}, warps_for(x * row, 64, target), target))
    return found


def _busy(facts: Facts, target: Target) -> bool:
    """Arithmetic takes about as long as memory."""
    return facts.work.operations > target.machine.grids.busy_operations * max(1, sum(facts.work.stream_bytes))
