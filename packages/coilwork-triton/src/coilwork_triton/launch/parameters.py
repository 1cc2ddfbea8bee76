"""The parameters of launches by name, and the facts that their choice rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.capabilities import get_capabilities
from coilwork_triton.facts.kernel_analysis import Work

Walk = Literal["pointwise", "persistent", "looped", "shared"]
# Names of tiles: three of parallel ranges, innermost first, those of sequential and of reduced ones, that of
# the first elements of sorted rows, and that of the length of an attention's products.
Letter = Literal["x", "y", "z", "w", "r", "c", "l"]

# Names of the block sizes of tiles, which are `constexpr` parameters.
BLOCKS: Final[Mapping[str, str]] = MappingProxyType(
    {"x": "XBLOCK", "y": "YBLOCK", "z": "ZBLOCK", "w": "WBLOCK", "r": "R0_BLOCK", "l": "LBLOCK"}
)
# Iterations in flight of the loop over sequential rows, or over blocks of a long one: one more parameter of
# kernels with such a loop.
STAGES: Final = "STAGES"
# Rows of blocks of a product whose programs follow each other: one more parameter of products.
GROUP: Final = "GROUP"
# What a launcher is told beside compile-time parameters: warps of a program.
WARPS: Final = "num_warps"
# Neighbours along a scan that one thread is to have together, where memory has neighbours along other ranges.
# Any power of two that leaves two such runs to a block is right.
RUN: Final = "RUN"
# How the threads of a program hold a row to sort: so many threads share it, each of them having so many
# neighbours at a time, and so many of them hold a run of its first elements. Any powers of two are right;
# these are fast.
SORT_THREADS: Final = "SORT_THREADS"
SORT_WIDTH: Final = "SORT_WIDTH"
SORT_SHARE: Final = "SORT_SHARE"
# Where the first elements are looked for among a few that reach a bound: how many may reach it, at least as
# many as are wanted, and 0 if it is not tried; of how many groups of elements, each one thread's, the best
# give the bound, again as many at least; and how many threads the program has, of which any power of two is
# right.
SORT_ROOM: Final = "SORT_ROOM"
SORT_GROUPS: Final = "SORT_GROUPS"
SORT_SPREAD: Final = "SORT_SPREAD"
# What a size that is unknown at compile time is taken to be.
UNKNOWN_EXTENT: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that launches are chosen by: the work of a kernel, and what is decided of how it runs.

    Attributes:
        work: what it does at each point.
        walk: how the reduction ranges, if any, are walked.
        extents: estimated number of points per tile: `x`, `y`, `z`, `w`, `r` where present.
        coalescing: share of bytes at unit stride per tile, 0 to 1.
        padded: rows stand in more lanes than they have points.
        step: points of the kernel's result that one of its points, a step, gives.
        neighbours: points of the kernel's result along outer ranges that one of its points computes.
        piece: points of the piece of a row that a program has, if programs share rows.
        row: points of r, where that is known and a row stands in registers; else 0.
        first: how many elements of sorted rows are wanted, a power of two; 0 for all of them.
        bins: programs count their points in so many at most; 0 if they do not.
    """

    work: Work
    walk: Walk
    extents: dict[str, int]
    coalescing: dict[str, float]
    padded: bool = False
    step: int = 1
    neighbours: int = 1
    piece: int = 0
    row: int = 0
    first: int = 0
    bins: int = 0


def is_search(facts: Facts, target: Target) -> bool:
    """Tell if chains of dependent loads take most of the time: then many threads should wait at once."""
    return facts.work.load_chain >= target.machine.grids.search_loads


def round_up_to_power_of_two(n: int) -> int:
    """Return the least power of two that is at least `n`; 1 for `n` below 1."""
    return 1 << max(0, (n - 1).bit_length())


def iterate_powers_of_two(least: int, most: int) -> Iterator[int]:
    """Yield the powers of two from `least`, which is one, to `most`."""
    size = least
    while size <= most:
        yield size
        size *= 2


def round_down_to_power_of_two(n: int) -> int:
    """Return the greatest power of two that is at most `n`; 1 for `n` below 1."""
    return 1 << max(0, n.bit_length() - 1)


def make_config(blocks: dict[str, int], warps: int, target: Target) -> Config:
    """Block sizes per tile, and as many warps as the device allows."""
    most = min(32, target.max_threads_per_block // target.warp_size)
    meta = tuple((BLOCKS[tile], size) for tile, size in blocks.items())
    return Config(meta=meta, num_warps=max(1, min(most, round_up_to_power_of_two(warps))), num_stages=1)


def count_warps(elements: int, per_thread: int, target: Target) -> int:
    """Warps whose threads have `per_thread` of `elements` each."""
    return max(1, elements // (per_thread * target.warp_size))


def make_other_tiles(facts: Facts) -> dict[str, int]:
    """Blocks of one point of the outer tiles."""
    return {tile: 1 for tile in ("z", "y") if tile in facts.extents}


def is_reduction_across(facts: Facts) -> bool:
    """Neighbouring addresses lie along x, not along the reduction."""
    return facts.coalescing.get("x", 0.0) > facts.coalescing.get("r", 0.0)


def is_reduction_of_blocks(facts: Facts, target: Target) -> bool:
    """Rows are reduced in blocks of neighbours: enough of what is touched lies along x."""
    along = facts.coalescing.get("r", 0.0)
    return get_capabilities(target).rows.are_across(across=facts.coalescing.get("x", 0.0), along=along)
