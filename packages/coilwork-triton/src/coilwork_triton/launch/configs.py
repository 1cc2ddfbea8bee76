"""Propose launches to try: block sizes and warps from the shape of the work and the device.

`LAUNCHES` has a rule for each kind of kernel. The reasoning, per kind of kernel (measured on an H200; other
devices differ in degree):

- A thread moves most when its loads are 16 bytes wide, and a few of them are in flight. Sixteen elements per
  thread and four warps do that for two- and four-byte elements, or eight and eight where threads have much to
  compute.
- Two candidates do if they differ much; there is a third where, over the kernels of models and of benchmarks,
  it was now and then faster than both by more than a few percent.
- A grid smaller than two blocks per multiprocessor leaves some idle, so small work gets small blocks.
- A row kept in registers by one program reaches a copy's bandwidth at 16 to 32 elements per thread; with 32
  warps, or with a mask that a divisible row does not need, it loses a third.
- Threads work on lanes behind a row's end in vain, unless all of them have such lanes: half as many threads,
  or half as wide accesses, leave fewer (`reductions.py`).
- A reduction across rows that are contiguous along x is bandwidth bound only if a block spans at least 128
  bytes of x.
- Rows that are walked, for sums of columns too, need the next ones on their way while some are reduced. Few
  threads with many elements each are best: two blocks of 128 threads per multiprocessor, whose 255 registers
  hold 32 elements and two sums for each, wait for fewer others at each row's barriers than blocks of 256 do,
  and do the same work with fewer instructions. Rows within a warp need no barriers, and go to registers
  without a detour through shared memory.
- Where each point takes many instructions, threads that wait for arithmetic need others that do not: half as
  many elements each.
- Code has each operation once per element of a thread, and compilers take time for each: where a point takes
  hundreds, threads have as many fewer (`limit_code_length`).
- Where points read what their neighbours read, memory waits for loads from the cache: threads with many
  points share the arithmetic of positions, and small blocks share lines of cache that few others drive out.
- A point that is a step of several, each of its accesses 16 bytes wide, is work enough for a thread; two let
  threads share the arithmetic of positions, and larger blocks the rows that their neighbours read.
- Where every point loads a sector of its own, one point per thread is best: what counts is how many threads
  wait at a time.
- Rows in lanes of which some are empty: a warp alone has all of a row, and the same columns of many, which
  share what finds their elements; more warps wait for fewer loads each.
- A transpose needs both tile sides to span whole 32-byte sectors on both of its sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import (
    BLOCKS,
    STAGES,
    Facts,
    count_warps,
    is_search,
    make_config,
    make_other_tiles,
    round_up_to_power_of_two,
)
from coilwork_triton.launch.reductions import (
    propose_looped,
    propose_persistent,
    propose_row_loop,
    propose_shared_rows,
)
from coilwork_triton.launch.sorts import propose_sorts
from coilwork_triton.rule_table import Rule, RuleTable, match_always

# Code length


def limit_code_length(proposed: Config, facts: Facts, target: Target) -> Config:
    """`proposed`, with fewer elements per thread where its machine code, which has all operations once for
    each, would be too long.

    Blocks of points are made smaller; rows, whose blocks are what they are, get more threads. Memory does
    not notice: it has long delivered the next elements when so much has been computed.
    """
    grids = target.machine.grids
    blocks = {name: size for name, size in proposed.meta if name in BLOCKS.values()}
    warps = proposed.num_warps
    most = min(grids.most_row_warps, target.max_threads_per_block // target.warp_size)
    while True:
        elements, threads = math.prod(blocks.values()), warps * target.warp_size
        if elements <= threads or facts.work.operations * elements <= grids.longest_code * threads:
            break
        if facts.walk == "pointwise":
            blocks[max(blocks, key=lambda name: blocks[name])] //= 2
        elif warps < most:
            warps *= 2
        else:
            break
    meta = tuple((name, blocks.get(name, value)) for name, value in proposed.meta)
    return replace(proposed, meta=meta, num_warps=warps)


# Histograms


# Points of a program at least: a thread has one in whatever launch is tried, and so mappings with fewer are
# refused.
LEAST_BLOCK: Final = 1024


def propose_histogram(facts: Facts, target: Target) -> list[Config]:
    """Blocks along rows of bins: large ones, as long as there are programs for all multiprocessors."""
    grids = target.machine.grids
    row = facts.extents["x"]
    points = row * prod(facts.extents.get(tile, 1) for tile in ("y", "z"))
    share = round_up_to_power_of_two(-(-points // (2 * target.multiprocessors)))
    found = []
    for size in (8192, 16384):
        block = min(size, share, round_up_to_power_of_two(row))
        while block > LEAST_BLOCK and 1 - row / (-(-row // block) * block) > grids.histogram_waste:
            block //= 2
        block = max(LEAST_BLOCK, block)
        # small work is done sooner by more threads
        each = grids.histogram_points if block >= 8192 else grids.histogram_points // 2
        found.append(
            make_config({**make_other_tiles(facts), "x": block}, count_warps(block, each, target), target)
        )
    return found


# Points


def propose_pointwise(facts: Facts, target: Target) -> list[Config]:
    grids = target.machine.grids
    tiles = [t for t in ("z", "y", "x") if t in facts.extents]
    if tiles in ([], ["x"]):
        return _propose_line(facts, target)
    extents = facts.extents
    candidates = []
    # (elements in the block, its side along y): square first, as both sides carry contiguous accesses
    transposing = max(facts.coalescing.get(tile, 0.0) for tile in ("y", "z")) > grids.transposed_share
    shapes = (
        [(32, 32, 4), (64, 64, 8), (128, 16, 4)]
        if transposing
        else _row_shapes(extents.get("x", 1), facts, target)
    )
    if facts.neighbours > 1:
        # rows of whole sectors on both sides, and what a point shares fills its registers
        shapes = [(64, 16, 4), (64, 16, 8), (64, 32, 8)]
    elif transposing and facts.work.element_bytes <= 2:
        shapes = [(64, 64, 8), (128, 128, 16)]
    elif transposing and facts.coalescing["x"] >= grids.mostly_contiguous_share and extents["x"] >= 1024:
        # little lies along another range, perhaps few neighbours, as of the three colours of pictures: 68 us
        # instead of 80
        shapes = [(64, 64, 8), (1024, 4, 4), (128, 16, 4)]
    for width, height, warps in shapes:
        x = min(width, round_up_to_power_of_two(extents.get("x", 1)))
        # what x cannot use goes to y
        y = min(height * width // x, round_up_to_power_of_two(extents.get("y", 1)))
        blocks = {"z": 1, "y": y, "x": x}
        if "z" in extents:
            blocks["z"] = min(max(1, height * width // (x * y)), round_up_to_power_of_two(extents["z"]))
        size = blocks["x"] * blocks["y"] * blocks["z"]
        blocks = {tile: blocks[tile] for tile in tiles}
        candidates.append(make_config(blocks, min(warps, count_warps(size, 4, target)), target))
    return candidates


def _row_shapes(length: int, facts: Facts, target: Target) -> list[tuple[int, int, int]]:
    """(points of a row, rows, warps) of blocks that hold little behind the end of rows of `length` points."""

    def waste(width: int) -> float:
        return 1 - length / (-(-length // width) * width)

    # 32 bytes per thread: half as many threads for narrow elements
    few = 1 if facts.work.element_bytes > 2 else 2
    shapes = ((2048, 1, 4), (1024, 1, 4 // few), (2048, 1, 8), (512, 1, 2 // few))
    long = [shape for shape in shapes if waste(shape[0]) <= target.machine.grids.row_waste]
    # without masks if there is a choice
    exact = [shape for shape in long if waste(shape[0]) == 0]
    if exact or long:
        found = (exact or long)[:2]
        # neighbours in other rows are read once by programs that have these rows as well
        return (
            [(512, 4, 8), (256, 8, 8), found[0]] if _is_stencil(facts) and facts.work.stream_bytes else found
        )
    return sorted([(256, 4, 4), (512, 2, 4), (1024, 1, 4)], key=lambda shape: waste(shape[0]))


def _propose_line(facts: Facts, target: Target) -> list[Config]:
    extent = facts.extents.get("x")
    if extent is None:
        return [make_config({}, 1, target)]
    whole = round_up_to_power_of_two(extent)
    if facts.step > 1:
        return _propose_steps(extent, target)
    if facts.padded:
        # few threads, which have the same columns of many rows
        return [make_config({"x": size}, warps, target) for size, warps in ((1024, 1), (2048, 2), (2048, 4))]
    if facts.work.is_scattered and extent >= 1024 * 2 * target.multiprocessors:
        # many of few threads are on their way where the sectors turn out to be in a cache
        few = ((256, 1), (4096, 8), (8192, 32))
        if is_search(facts, target):
            # every step of a search is there once per element: 32 of them take ptxas half a minute
            few = ((256, 1), (512, 2), (1024, 4))
        return [make_config({"x": size}, count_warps(size, each, target), target) for size, each in few]
    if is_search(facts, target) and extent < 1024 * 2 * target.multiprocessors:
        return [make_config({"x": min(128, whole)}, count_warps(min(128, whole), 1, target), target)]
    # 16 bytes per thread and load, two loads in flight for four-byte elements; what is one number for all
    # does not count
    per_thread = 4 if max(facts.work.stream_bytes, default=facts.work.element_bytes) >= 8 else 8
    share = round_up_to_power_of_two(-(-extent // (2 * target.multiprocessors)))
    best = max(128, min(1024, share))
    shapes = [(best, per_thread)]
    if best == 1024 and facts.neighbours > 1:
        # what a point shares fills its registers
        shapes = [(512, per_thread), (512, per_thread // 2), *shapes]
    elif best == 1024 and _is_stencil(facts):
        # small blocks are best for pooling, many points per thread for resizing
        shapes = [(512, per_thread), (best, 4 * per_thread), *shapes]
    elif extent >= 1024 * 2 * target.multiprocessors:
        # more in flight by each thread, or small blocks
        shapes = [(2048, 2 * per_thread), (1024, per_thread)]
    elif best > 256:
        shapes.append((best // 2, per_thread))
    return [
        make_config({"x": min(size, whole)}, min(8, count_warps(min(size, whole), each, target)), target)
        for size, each in shapes
    ]


def _propose_steps(extent: int, target: Target) -> list[Config]:
    """Candidates for `extent` steps, of which each is work enough for a thread."""
    share = round_up_to_power_of_two(-(-extent // (2 * target.multiprocessors)))
    best = max(target.warp_size, min(128, share))
    # more of what neighbouring rows share, and of what neighbouring steps compute alike
    large = [size for size in (512, 256) if extent >= size * 2 * target.multiprocessors]
    shapes = [(best, 1), *((size, 2) for size in large)]
    return [make_config({"x": size}, count_warps(size, each, target), target) for size, each in shapes]


def _is_stencil(facts: Facts) -> bool:
    """Points read several elements of one tensor, which their neighbours read as well."""
    return len(facts.work.stream_bytes) > facts.work.tensors + 1


# The table


# Elements of a row that `batch_invariant` reduces at a time.
FIXED_ROW: Final = 1024


def _rule(
    name: str,
    launches: Callable[[Facts, Target], list[Config]],
    why: str,
    matches: Callable[[Facts], bool],
    *,
    length: bool = True,
) -> Rule[Facts, Launches]:
    return Rule(
        name=name,
        matches=matches,
        answer=lambda facts: Launches(propose=launches, has_code_limit=length),
        why=why,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Proposes the launches of one kind of kernel; blocks with a `has_code_limit` shrink where a point takes
    hundreds of instructions.
    """

    propose: Callable[[Facts, Target], list[Config]]
    has_code_limit: bool


LAUNCHES: Final[RuleTable[Facts, Launches]] = RuleTable(
    rules=(
        _rule(
            "histogram",
            propose_histogram,
            "programs with many points update memory least",
            lambda facts: facts.bins > 0,
            length=False,
        ),
        _rule(
            "sorted-rows",
            propose_sorts,
            "threads exchange elements of a row, so that few with many elements each are best",
            lambda facts: facts.work.sort_key_bytes > 0,
            length=False,
        ),
        _rule(
            "row-loop",
            propose_row_loop,
            "the next rows are on their way while some are reduced",
            lambda facts: "w" in facts.extents,
            length=False,
        ),
        _rule(
            "shared-rows",
            propose_shared_rows,
            "a program has one piece of a row in registers",
            lambda facts: facts.walk == "shared",
        ),
        _rule(
            "rows-in-registers",
            propose_persistent,
            "16 to 32 elements per thread reach the bandwidth of a copy",
            lambda facts: facts.walk == "persistent",
        ),
        _rule(
            "long-rows",
            propose_looped,
            "blocks are as long as enough loads in flight ask for",
            lambda facts: facts.walk == "looped",
        ),
        _rule(
            "points",
            propose_pointwise,
            "a thread moves most with a few loads of 16 bytes in flight",
            match_always,
        ),
    )
)


def propose_launches(facts: Facts, target: Target, limit: int) -> tuple[Config, ...]:
    """At most `limit` candidates, best guess first. Every tile's block size is in `Config.meta`."""
    launches = LAUNCHES.answer(facts)
    found = launches.propose(facts, target)
    if launches.has_code_limit and not facts.work.scan_words:
        found = [limit_code_length(one, facts, target) for one in found]
    return tuple(dict.fromkeys(found))[:limit]


def make_invariant_launch(tiles: Iterable[str], target: Target, *, staged: bool) -> tuple[Config, ...]:
    """Return the one configuration of `batch_invariant` for reductions of `tiles`: a row per program, in
    blocks of one length.

    How threads share a block's sum follows from its shape, so no block may hold several rows, nor a whole row
    of some lengths alone. A short row wastes most of its block.
    """
    blocks = {tile: FIXED_ROW if tile == "r" else 1 for tile in tiles}
    one = make_config(blocks, 4, target)
    # a loop that data end has no stages
    return (replace(one, meta=(*one.meta, *(((STAGES, 1),) if staged else ()))),)
