"""Block sizes of kernels that reduce: rows on chip, rows that are walked, and rows by blocks."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.columns import in_runs, scanned_columns
from coilwork_triton.launch.parameters import (
    STAGES,
    Facts,
    config,
    next_power_of_two,
    other_tiles,
    power_of_two_below,
    reduces_across,
    searches,
    warps_for,
)

# Registers of a thread that sums of walked rows' columns may take: the gradients of a norm's weights and of the bias before it, of 32
# elements each, leave room for what the elements need.
_SUMS: Final = 96
# Registers of a thread that what it loads of a whole column may take.
_LOADED: Final = 128
# Columns of a block of which half are worth a candidate, too.
_WIDE_BLOCK: Final = 64
# Points of a block of whole columns of which 256 threads hold 128 each.
_MOST_WIDE: Final = 128 * 256
# Share of the second-level cache that rows may take which are to be found in it again, and rows that a multiprocessor walks at a time
# by programs of 256 threads.
_STAYS: Final = 0.75
_SEVERAL: Final = 8
# Values per point that reductions gather of which a thread cannot have those of many points.
_MUCH: Final = 2
# Weighted operations per byte that is accessed at every point, above which threads wait for arithmetic as well: a device that
# issues 7 instructions per byte of its memory has no time for twice as many.
_BUSY: Final = 4.0


def persistent(facts: Facts, target: Target) -> list[Config]:
    row = next_power_of_two(facts.extents["r"])
    rows = facts.extents.get("x", 1)
    across = reduces_across(facts)
    if "x" not in facts.extents or (row >= 1024 and not across):
        # 64 bytes per thread of one-byte elements, as of others
        warps = max(1, min(16, warps_for(row, 16 if facts.element_bytes > 1 else 64, target)))
        if row >= 8192:
            warps = max(8, min(16, warps_for(row, 32, target)))
        blocks = other_tiles(facts) | ({"x": 1} if "x" in facts.extents else {}) | {"r": row}
        # few threads have much in flight each; what takes many registers needs more of them
        tried = (warps, warps // 2) if row >= 8192 else (max(1, warps // 2), 2 * warps)
        if rows * row * sum(facts.streams) <= target.l2_bytes // 2 and 2 <= warps <= 4:
            # what a cache holds comes soon, and one warp has too much to do with it
            tried = (warps, 2 * warps)
        return [config(blocks, w, target) for w in tried]
    # several rows per program, so that its warps have 16 bytes per thread to load
    enough = max(1, next_power_of_two(-(-rows // (2 * target.multiprocessors))))
    if across:
        return in_runs(_persistent_columns(facts, target, row, max(enough, 32)), facts, target)
    found = []
    # there is something to load while a row is reduced, by this program or by others
    for elements, per_thread in ((4096, 16), (1024, 16)):
        x = min(max(1, elements // row), enough, next_power_of_two(rows))
        warps = min(8, warps_for(x * row, per_thread, target))
        found.append(config(other_tiles(facts) | {"x": x, "r": row}, warps, target))
    return found


def shared(facts: Facts, target: Target) -> list[Config]:
    """A piece of a row per program, all of it in registers.

    Few threads have fewer barriers to wait at: the running sums of 64 rows of 1M f32 take an H200 147 us with 4 warps, 154 with 8 and 167 with 16.
    """
    blocks = {tile: 1 for tile in ("z", "y", "x") if tile in facts.extents} | {"r": facts.piece}
    warps = max(1, min(2, warps_for(facts.piece, 8, target)), warps_for(facts.piece, 64, target))
    return [config(blocks, w, target) for w in (warps, 2 * warps)]


def walked(facts: Facts, target: Target) -> list[Config]:
    """A row, or a few short ones, per step: up to 32 elements per thread of what is read and of each column's sums."""
    row = next_power_of_two(facts.extents["r"])
    most = next_power_of_two(facts.extents["w"])
    rest = {tile: 1 for tile in ("z", "y", "x") if tile in facts.extents}
    each = max(8, min(32, power_of_two_below(_SUMS // max(1, facts.columns))))
    step = 4 * target.warp_size * each
    # (elements per step, elements per thread, stages): the next rows are on their way in further stages
    if row * max(facts.streams, default=facts.element_bytes) <= 16 * target.warp_size:
        # the loads of many rows at once keep memory busy
        # of two columns' sums, twice as many do not spill yet
        more = 2 if facts.columns <= 2 else 1
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
        warps = min(16, warps_for(rows * row, per_thread, target))
        one = config(rest | {"w": rows, "r": row}, warps, target)
        found.append(replace(one, meta=(*one.meta, (STAGES, stages))))
    return found


def _persistent_columns(facts: Facts, target: Target, row: int, most: int) -> list[Config]:
    """Blocks of whole columns of `row` points: contiguous along x, where a block spans a line of cache."""
    line = 128 // max(facts.streams, default=facts.element_bytes)
    best = max(2048 // row, line)
    if facts.extents["x"] < best * target.multiprocessors:
        # few columns: a sector of memory is enough for a block, so that there are more of them, with little to do for each
        shapes = [(max(1, best // 4), 8), (max(1, best // 4), 16)]
        if searches(facts):
            shapes = [(max(1, best // 4), 2)]
    else:
        each = 64 if sum(facts.streams) * 64 <= 4 * _LOADED and not _busy(facts) else 32
        fitting = [x for x in (best, best // 2, 2 * best, best // 4) if 0 < x * row <= each * 512]
        # small blocks first, if large ones are not what it takes to span a line
        ordered = sorted(fitting[:3], key=lambda x: x * row > 64 * 256)
        if each == 64 and 2 * best in ordered and 2 * best * row <= each * 128:
            # four warps are kept busy by nothing less
            ordered = [2 * best, best]
        shapes = [(x, each) for x in ordered] or [(max(1, best // 4), each)]
        if sum(facts.streams) <= 2 and best * row <= _MOST_WIDE and not _busy(facts):
            # what is loaded takes half a register each
            shapes.insert(0, (best, 2 * each))
    blocks: list[tuple[int, int]] = []
    for width, per_thread in shapes[:2]:
        x = min(width, most, next_power_of_two(facts.extents["x"]))
        # blocks that are small have little in flight for each thread anyway
        warps = max(min(16, warps_for(x * row, per_thread, target)), min(4, warps_for(x * row, 8, target)))
        if (x, warps) in blocks and width >= _WIDE_BLOCK:
            # both came to the same: half as much for half as many threads instead
            x, warps = x // 2, warps // 2
        blocks.append((x, warps))
    return [config(other_tiles(facts) | {"x": x, "r": row}, warps, target) for x, warps in blocks]


def _busy(facts: Facts) -> bool:
    """Arithmetic takes about as long as memory."""
    return facts.operations > _BUSY * max(1, sum(facts.streams))


def _ragged(facts: Facts, target: Target) -> list[Config]:
    """Wide blocks of results, a few points of r at a time: most rows have no more. Deeper ones where rows are few."""
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
        width = _ragged_width(columns)
        height = max(1, 512 // width)
        # 8 results per thread, with all its points of r: no thread waits for another, and registers leave room for many
        warps = max(1, height * width // 256)
        shapes = [(height, width, 2, warps), (height, width, 1, warps)]
    found = []
    for height, width, depth, warps in shapes:
        x = min(width, next_power_of_two(columns))
        y = min(height * width // x, next_power_of_two(rows))
        blocks = {"y": y, "x": x} if "y" in facts.extents else {"x": x}
        r = min(depth, next_power_of_two(facts.extents["r"]))
        found.append(config(blocks | {"r": r}, min(warps, warps_for(x * y * r, 4, target)), target))
    return found


def _ragged_width(columns: int) -> int:
    """Results of a row that a program takes: as many as may be with little behind the row's end."""
    for width in (1024, 512):
        if columns > width // 2 and 1 - columns / (-(-columns // width) * width) <= 1 / 4:
            return width
    return min(256, next_power_of_two(columns))


def looped(facts: Facts, target: Target) -> list[Config]:
    if facts.ragged:
        return _ragged(facts, target)
    if facts.scans and reduces_across(facts):
        return in_runs(scanned_columns(facts, target), facts, target)
    # one block of the loop at a time; a search tries more
    found = [replace(c, meta=(*c.meta, (STAGES, 1))) for c in _looped_blocks(facts, target)]
    if reduces_across(facts) and len(facts.streams) == 1 and _many_columns(facts, target):
        # or few threads, which have the next block on its way while they reduce one; where lanes have much to gather, more of both
        x, r, warps, stages = (128, 32, 2, 2) if facts.lanes < _MUCH else (64, 64, 8, 3)
        blocks = other_tiles(facts) | {"x": x, "r": min(r, next_power_of_two(facts.extents["r"]))}
        staged = config(blocks, warps, target)
        found.insert(2 if facts.lanes < _MUCH else 0, replace(staged, meta=(*staged.meta, (STAGES, stages))))
    return found


def _many_columns(facts: Facts, target: Target) -> bool:
    return facts.extents["x"] >= 128 * 3 * target.multiprocessors


def _one_row_each_stays(facts: Facts, target: Target) -> bool:
    """The second-level cache holds a row of every multiprocessor until it is read again, but not several of each."""
    rows = prod(extent for tile, extent in facts.extents.items() if tile != "r")
    in_flight = facts.extents["r"] * sum(facts.streams) // 2 * target.multiprocessors
    few, many = _STAYS * target.l2_bytes, target.l2_bytes
    return rows >= 2 * target.multiprocessors and in_flight <= few and _SEVERAL * in_flight > many


def _looped_blocks(facts: Facts, target: Target) -> list[Config]:
    length = next_power_of_two(facts.extents["r"])
    if "x" not in facts.extents or not reduces_across(facts):
        one = {"x": 1} if "x" in facts.extents else {}
        found = []
        # 32 bytes per thread of two-byte elements per step
        sizes = [(4096, 8), (8192, 16), (2048, 4)] if facts.scans else [(4096, 8), (2048, 4), (1024, 4)]
        if facts.again and _one_row_each_stays(facts, target):
            sizes = [(4096, 8), (8192, 32)]
        for size, warps in sizes:
            r = min(size, length)
            found.append(
                config(other_tiles(facts) | one | {"r": r}, min(warps, warps_for(r, 4, target)), target)
            )
        return found
    found = []
    # few columns: narrower blocks, down to one 32-byte sector, keep every multiprocessor busy
    columns = facts.extents["x"]
    # 32 bytes per thread in flight: deeper blocks of small elements
    deep = 2 if 0 < sum(facts.streams) <= 2 else 1
    shapes = [(64, 32 * deep, 8), (32, 64 * deep, 8), (16, 128 * deep, 8)]
    if _many_columns(facts, target) and facts.lanes < _MUCH:
        # blocks of 64 need more registers than leave room for all of them at once; half as many run in one wave
        shapes = [(128, 32 * deep, 4), (64, 32 * deep, 8), (128, 32 * deep, 8)]
    busy = [shape for shape in shapes if columns >= shape[0] * target.multiprocessors]
    ordered = busy + [shape for shape in reversed(shapes) if shape not in busy]
    for width, depth, warps in ordered[:2]:
        x = min(width, next_power_of_two(columns))
        r = min(depth * width // x, length)
        found.append(
            config(other_tiles(facts) | {"x": x, "r": r}, min(warps, warps_for(x * r, 4, target)), target)
        )
    return found
