"""Block sizes of kernels whose programs count their points: see `coilwork_triton.kernel_passes.histogram`.

What a program takes beside its points are a barrier, sums over its warps, and an update of memory for each
bin. With 32 points for each thread the former are a seventh of what 16 take (58 instructions for 32 points
and 256 bins, and 70), and loads of bytes are 16 wide.
"""

from __future__ import annotations

from math import prod
from typing import Final

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import Facts, config, next_power_of_two, other_tiles, warps_for

# Points of a program at least: a thread has one in whatever launch is tried, and so mappings with fewer are
# refused.
LEAST_BLOCK: Final = 1024


def counted(facts: Facts, target: Target) -> list[Config]:
    """Blocks along rows of bins: large ones, as long as there are programs for all multiprocessors."""
    grids = target.machine.grids
    row = facts.extents["x"]
    points = row * prod(facts.extents.get(tile, 1) for tile in ("y", "z"))
    share = next_power_of_two(-(-points // (2 * target.multiprocessors)))
    found = []
    for size in (8192, 16384):
        block = min(size, share, next_power_of_two(row))
        while block > LEAST_BLOCK and 1 - row / (-(-row // block) * block) > grids.histogram_waste:
            block //= 2
        block = max(LEAST_BLOCK, block)
        # small work is done sooner by more threads
        each = grids.histogram_points if block >= 8192 else grids.histogram_points // 2
        found.append(config({**other_tiles(facts), "x": block}, warps_for(block, each, target), target))
    return found
