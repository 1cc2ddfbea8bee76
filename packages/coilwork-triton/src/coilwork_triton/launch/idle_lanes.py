"""Lanes behind the ends of rows in registers: how many of them take instructions all the same, and what
leaves few.

A row stands in a power of two of lanes. A thread has them in vectors, as many neighbours as it accesses at
once. What all threads have behind the row's end is known to be empty when a kernel is compiled, and takes
nothing; a vector that some thread has elements in takes the instructions of all warps. So 1,152 elements of
two bytes, which stand in 2,048 lanes, are worked on in 2,048 by four warps, in 1,536 by two, and in 1,280 by
one, or in 1,152 where its vectors are of 8 bytes.
"""

from __future__ import annotations

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import BLOCKS, Facts, next_power_of_two


def together(facts: Facts, target: Target) -> int:
    """Neighbours along a row that a thread accesses at once."""
    width = target.vector_bytes // min(facts.work.stream_bytes, default=target.vector_bytes)
    while width > 1 and facts.row % width:
        width //= 2
    return max(1, width)


def worked_lanes(row: int, threads: int, width: int) -> int:
    """Lanes that take instructions where `threads` have a row of so many points, `width` neighbours at a
    time.
    """
    step = min(threads * width, next_power_of_two(row))
    return -(-row // step) * step


def fewer_warps(facts: Facts, warps: int, target: Target) -> int:
    """Half of `warps`, if they are for one row and leave fewer lanes idle; `warps` if not.

    Rows have to be many, and little enough for the registers of as few threads. For 65,536 rows of 1,152 in
    16 bits, normalised and modulated, that is 14.6 instructions per element instead of 20.8, and no barriers.
    """
    grids = target.machine.grids
    half, width = warps // 2, together(facts, target)
    many = facts.extents.get("x", 1) >= grids.room_programs * target.multiprocessors
    if not facts.row or not facts.work.stream_bytes or facts.work.scan_words or not many or half < 1:
        return warps
    before = worked_lanes(facts.row, warps * target.warp_size, width)
    after = worked_lanes(facts.row, half * target.warp_size, width)
    each = after // (half * target.warp_size)
    fits = (
        each <= grids.idle_lanes_most_elements
        and each * sum(facts.work.stream_bytes) <= grids.idle_lanes_most_bytes
    )
    return half if fits and _saves(before, after, grids.saved_lanes_by_threads) else warps


def short_rows(facts: Facts, target: Target) -> list[tuple[int, int]]:
    """(lanes of a program, lanes of a thread) for short rows, so that there is something to load while some
    are reduced.

    Where a good part of the lanes of rows that are spread over several warps is idle, a warp alone has all of
    a row, and waits for no other: softmax of rows of 384 in 16 bits takes 17 instructions per element instead
    of 27.
    """
    grids = target.machine.grids
    row = next_power_of_two(facts.row)
    spread = bool(facts.work.stream_bytes) and row > target.warp_size * together(facts, target)
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


def narrower(facts: Facts, first: Config, target: Target) -> int:
    """Neighbours along a row that threads should access at once, in 8 bytes, because that leaves fewer lanes
    idle; else 0.

    `first` is how the kernel is launched. Threads lie along a row first, then along several. Of elements that
    are wider than two bytes few enough come at a time for all that is computed of them.
    """
    grids = target.machine.grids
    width, narrowest = together(facts, target), min(facts.work.stream_bytes, default=target.vector_bytes)
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
        worked_lanes(facts.row, min(threads, lanes // each), each) for each in (width, width // 2)
    )
    return width // 2 if _saves(before, after, grids.saved_lanes_by_accesses) else 0


def _saves(before: int, after: int, of: int) -> bool:
    return (before - after) * of >= before
