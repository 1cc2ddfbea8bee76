"""Block sizes of kernels that sort rows, and how threads share a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import (
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SHARE,
    SORT_SPREAD,
    SORT_THREADS,
    SORT_WIDTH,
    Facts,
    is_reduction_across,
    make_config,
    make_other_tiles,
    round_down_to_power_of_two,
    round_up_to_power_of_two,
)

# Where first elements are looked for among those that reach a bound, there is room for twice as many as are
# wanted, and no less than this.
_LEAST_ROOM: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoundedSort:
    """The limit below which that is less work than to sort all of a row, for keys of one size.

    Attributes:
        rooms: length of the row, as a multiple of the room.
        length: its length.
        own: elements per thread, in the order of the candidates.
    """

    rooms: int
    length: int
    own: tuple[int, int]


_BOUNDED: Final[Mapping[int, _BoundedSort]] = MappingProxyType(
    {4: _BoundedSort(rooms=8, length=512, own=(32, 64)), 8: _BoundedSort(rooms=4, length=512, own=(32, 16))}
)

# Warps of a program that sorts. Exchanges between warps are reductions over two elements, and of eight warps
# or more that share the three dimensions of an exchange out among them bit by bit, Triton (3.6) takes one
# warp's elements for another's.
MOST_WARPS: Final = 4


def propose_sorts(facts: Facts, target: Target) -> list[Config]:
    """Launches with as few threads per row as have room for it.

    An exchange within a thread costs a third of one between threads.
    """
    grids = target.machine.grids
    row = round_up_to_power_of_two(facts.extents["r"])
    rows = round_up_to_power_of_two(facts.extents.get("x", 1))
    # long rows that lie across memory come one at a time: threads would have to exchange most of several
    across = is_reduction_across(facts) and row <= grids.short_sorted_row
    # elements per thread: registers for 32 keys of 8 bytes, or 64 of 4
    room = 256 // facts.work.sort_key_bytes
    found = []
    # each takes seconds to build
    for most in (room, room // 2):
        warps = min(MOST_WARPS, max(1, row // (most * target.warp_size)))
        # short rows share a warp, unless there are too few of them to keep the device busy
        enough = round_down_to_power_of_two(rows // (8 * target.multiprocessors)) if not across else rows
        together = min(rows, max(1, min(most, 32) * target.warp_size // row), max(enough, 1))
        if across:
            # threads exchange what they hold through shared memory
            most_rows = round_down_to_power_of_two(
                target.shared_memory_bytes // (facts.work.sort_key_bytes * row)
            )
            together = min(rows, max(32, together), most_rows)
            warps = max(1, min(MOST_WARPS, together * row // (most * target.warp_size)))
        found.append(_propose_full_sort(facts, target, together, warps, across=across))
    bounded = _BOUNDED[facts.work.sort_key_bytes]
    if facts.first and not across and row >= max(bounded.length, bounded.rooms * _room(facts.first)):
        fewer = [_propose_bounded_sort(facts, target, rows, own) for own in bounded.own]
        if fewer[0] != fewer[1]:
            return fewer
        # short rows may be sorted as fast
        return fewer[:1] if fewer[0].num_warps == MOST_WARPS else [fewer[0], found[-1]]
    return list(dict.fromkeys(found))


def _propose_full_sort(facts: Facts, target: Target, together: int, warps: int, *, across: bool) -> Config:
    """Return a program of `warps` that has `together` rows, all of which are sorted."""
    row = round_up_to_power_of_two(facts.extents["r"])
    blocks = make_other_tiles(facts) | ({"x": together} if "x" in facts.extents else {}) | {"r": row}
    one = make_config(blocks, warps, target)
    threads = one.num_warps * target.warp_size
    if across:
        width, along = 1, max(1, min(row, threads // together))
    else:
        width = max(1, min(facts.work.sort_width, together * row // threads, row))
        along = max(1, min(threads, row // width))
    meta = (*one.meta, (SORT_THREADS, along), (SORT_WIDTH, width))
    if facts.first:
        share = _share(facts.first, row // along, along)
        meta = (*meta, (SORT_SHARE, share), (SORT_GROUPS, 1), (SORT_ROOM, 0), (SORT_SPREAD, threads))
    return replace(one, meta=meta)


def _propose_bounded_sort(facts: Facts, target: Target, rows: int, own: int) -> Config:
    """Return a program that looks for the first elements of a row among those that reach a bound.

    Its threads have `own` elements each, but it has two warps at least: one would gather in registers, an
    element of all at a time.
    """
    grids = target.machine.grids
    row = round_up_to_power_of_two(facts.extents["r"])
    warps = min(MOST_WARPS, max(2, row // (own * target.warp_size)))
    # short rows come in pairs, unless there are too few of them to keep the device busy
    pairs = row < own * warps * target.warp_size and rows >= 16 * target.multiprocessors
    together = 2 if pairs and "x" in facts.extents else 1
    found = _propose_full_sort(facts, target, together, warps, across=False)
    meta = dict(found.meta)
    threads = meta[SORT_THREADS]
    groups = max(threads, facts.first if row // threads <= grids.few_sorted_elements else 2 * facts.first)
    return replace(found, meta=tuple((meta | {SORT_GROUPS: groups, SORT_ROOM: _room(facts.first)}).items()))


def _room(count: int) -> int:
    return max(_LEAST_ROOM, 2 * count)


def _share(count: int, own: int, threads: int) -> int:
    """Threads that hold a run of `count` elements of a row, of which each of `threads` has `own`."""
    share = 1 << ((count.bit_length() - 1) // 2)
    return min(max(share, count // own), threads, count)
