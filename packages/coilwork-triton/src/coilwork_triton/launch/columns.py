"""Block sizes of scans along columns: memory has neighbours along x, and what comes before a point lies in
other rows.

A program walks its columns from end to end, a block of rows at a time, and nothing else does: columns divided
by the width of a block are all the programs that there are. Few programs have to ask for much at a time:
about 40 kB per multiprocessor keep an H200's memory busy, and later blocks can be on their way while one is
scanned. Blocks span a line of cache as long as every multiprocessor has one.

Threads load 16 bytes of a row each, so that neighbouring rows are other threads', unless a block's rows are
dealt out in runs (`combining/scans.py`): 42 instructions per element of a running sum of 16-bit columns, and
10 in runs.
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
    config,
    next_power_of_two,
    other_tiles,
    warps_for,
)


def scanned_columns(facts: Facts, target: Target) -> list[Config]:
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
        x = min(size, next_power_of_two(columns))
        r = min(warps * target.warp_size * per_thread // x, next_power_of_two(facts.extents["r"]))
        one = config(
            other_tiles(facts) | {"x": x, "r": r}, min(warps, warps_for(x * r, per_thread, target)), target
        )
        found.append(replace(one, meta=(*one.meta, (STAGES, stages))))
    return found


def in_runs(configs: Sequence[Config], facts: Facts, target: Target) -> list[Config]:
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
        warps = min(one.num_warps, warps_for(x * r, 2, target))
        threads = warps * target.warp_size
        # threads side by side share a row of the block; the others have a run each
        runs = min(max(2, threads // max(1, x // lanes)), r // 2)
        if threads > x * runs:
            # each thread has a run of its own, or Triton's scans mix up the copies
            return list(configs)
        found.append(replace(one, num_warps=warps, meta=(*one.meta, (RUN, r // runs))))
    return found
