"""Block sizes of kernels that sort rows, and how threads share a row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import (
    SORT_KEPT,
    SORT_SHARE,
    SORT_THREADS,
    SORT_WIDTH,
    Facts,
    config,
    next_power_of_two,
    other_tiles,
    power_of_two_below,
    reduces_across,
)

# The probability above which it is not tried. Where it fails, all is done again.
_AGAIN: Final = 0.02

# Warps of a program that sorts. Exchanges between warps are reductions over two elements, and of eight warps or more that share the
# three dimensions of an exchange out among them bit by bit, Triton (3.6, 3.7) takes one warp's elements for another's.
MOST_WARPS: Final = 4

# Points of rows to sort that share a program where they lie across memory.
_SHORT_ROW: Final = 64


def sorted_rows(facts: Facts, target: Target) -> list[Config]:
    """As few threads per row as have room for it: an exchange within a thread costs a third of one between threads."""
    row = next_power_of_two(facts.extents["r"])
    rows = next_power_of_two(facts.extents.get("x", 1))
    # several long rows in one program gave wrong results on an H200 where they lie across memory: one at a time
    across = reduces_across(facts) and row <= _SHORT_ROW
    # elements per thread: registers for 32 keys of 8 bytes, or 64 of 4
    room = 256 // facts.sort_bytes
    tried: tuple[int, ...] = (room, room // 2)
    if rows < target.multiprocessors and not (across or facts.first):
        # a multiprocessor has one row at most, and units for four warps at a time
        tried = (max(1, row // (MOST_WARPS * target.warp_size)),)
    found = []
    # each takes seconds to build
    for most in tried:
        warps = min(MOST_WARPS, max(1, row // (most * target.warp_size)))
        # short rows share a warp, unless there are too few of them to keep the device busy
        enough = power_of_two_below(rows // (8 * target.multiprocessors)) if not across else rows
        together = min(rows, max(1, min(most, 32) * target.warp_size // row), max(enough, 1))
        if across:
            # threads exchange what they hold through shared memory
            most_rows = power_of_two_below(target.shared_memory_bytes // (facts.sort_bytes * row))
            together = min(rows, max(32, together), most_rows)
            warps = max(1, min(MOST_WARPS, together * row // (most * target.warp_size)))
        blocks = other_tiles(facts) | ({"x": together} if "x" in facts.extents else {}) | {"r": row}
        one = config(blocks, warps, target)
        threads = one.num_warps * target.warp_size
        if across:
            width, along = 1, max(1, min(row, threads // together))
        else:
            width = max(1, min(facts.sort_width, together * row // threads, row))
            along = max(1, min(threads, row // width))
        meta = (*one.meta, (SORT_THREADS, along), (SORT_WIDTH, width))
        if facts.first:
            share = _share(facts.first, row // along, along)
            kept = 0 if across else _kept(facts.first, row // along, along)
            meta = (*meta, (SORT_SHARE, share), (SORT_KEPT, kept))
        found.append(replace(one, meta=meta))
    return list(dict.fromkeys(found))


def _share(count: int, own: int, threads: int) -> int:
    """Threads that hold a run of `count` elements of a row, of which each of `threads` has `own`."""
    share = 1 << ((count.bit_length() - 1) // 2)
    return min(max(share, count // own), threads, count)


def _kept(count: int, own: int, threads: int) -> int:
    """How many each of `threads` keeps of its `own` elements of a row, so that the first `count` of the row are likely among them.

    0 if that is not far fewer than it has. Where the first ones lie is taken to be random, so that a thread has k of them with the
    probability that Poisson's distribution gives.
    """
    mean = count / threads
    kept = 4
    while 4 * kept <= own:
        fewer = sum(mean**k / math.factorial(k) for k in range(kept)) * math.exp(-mean)
        if threads * (1 - fewer) < _AGAIN and threads * kept >= 2 * count:
            return kept
        kept *= 2
    return 0
