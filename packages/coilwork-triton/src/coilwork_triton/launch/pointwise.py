"""Block sizes of kernels without reductions: lines, rows of blocks, and transposes."""

from __future__ import annotations

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import (
    Facts,
    config,
    next_power_of_two,
    searches,
    warps_for,
)


def pointwise(facts: Facts, target: Target) -> list[Config]:
    grids = target.machine.grids
    tiles = [t for t in ("z", "y", "x") if t in facts.extents]
    if tiles in ([], ["x"]):
        return _pointwise_line(facts, target)
    extents = facts.extents
    candidates = []
    # (elements in the block, its side along y): square first, as both sides carry contiguous accesses
    transposing = max(facts.coalescing.get(tile, 0.0) for tile in ("y", "z")) > grids.transposed_share
    shapes = (
        [(32, 32, 4), (64, 64, 8), (128, 16, 4)]
        if transposing
        else _row_shapes(extents.get("x", 1), facts, target)
    )
    if transposing and facts.work.element_bytes <= 2:
        shapes = [(64, 64, 8), (128, 128, 16)]
    elif transposing and facts.coalescing["x"] >= grids.mostly_contiguous_share and extents["x"] >= 1024:
        # little lies along another range, perhaps few neighbours, as of the three colours of pictures: 68 us
        # instead of 80
        shapes = [(64, 64, 8), (1024, 4, 4), (128, 16, 4)]
    for width, height, warps in shapes:
        x = min(width, next_power_of_two(extents.get("x", 1)))
        # what x cannot use goes to y
        y = min(height * width // x, next_power_of_two(extents.get("y", 1)))
        blocks = {"z": 1, "y": y, "x": x}
        if "z" in extents:
            blocks["z"] = min(max(1, height * width // (x * y)), next_power_of_two(extents["z"]))
        size = blocks["x"] * blocks["y"] * blocks["z"]
        blocks = {tile: blocks[tile] for tile in tiles}
        candidates.append(config(blocks, min(warps, warps_for(size, 4, target)), target))
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


def _pointwise_line(facts: Facts, target: Target) -> list[Config]:
    extent = facts.extents.get("x")
    if extent is None:
        return [config({}, 1, target)]
    whole = next_power_of_two(extent)
    if facts.step > 1:
        return _steps(extent, target)
    if facts.padded:
        # few threads, which have the same columns of many rows
        return [config({"x": size}, warps, target) for size, warps in ((1024, 1), (2048, 2), (2048, 4))]
    if facts.work.is_scattered and extent >= 1024 * 2 * target.multiprocessors:
        # many of few threads are on their way where the sectors turn out to be in a cache
        few = ((256, 1), (4096, 8), (8192, 32))
        if searches(facts, target):
            # every step of a search is there once per element: 32 of them take ptxas half a minute
            few = ((256, 1), (512, 2), (1024, 4))
        return [config({"x": size}, warps_for(size, each, target), target) for size, each in few]
    if searches(facts, target) and extent < 1024 * 2 * target.multiprocessors:
        return [config({"x": min(128, whole)}, warps_for(min(128, whole), 1, target), target)]
    # 16 bytes per thread and load, two loads in flight for four-byte elements; what is one number for all
    # does not count
    per_thread = 4 if max(facts.work.stream_bytes, default=facts.work.element_bytes) >= 8 else 8
    share = next_power_of_two(-(-extent // (2 * target.multiprocessors)))
    best = max(128, min(1024, share))
    shapes = [(best, per_thread)]
    if best == 1024 and _is_stencil(facts):
        # small blocks are best for pooling, many points per thread for resizing
        shapes = [(512, per_thread), (best, 4 * per_thread), *shapes]
    elif extent >= 1024 * 2 * target.multiprocessors:
        # more in flight by each thread, or small blocks
        shapes = [(2048, 2 * per_thread), (1024, per_thread)]
    elif best > 256:
        shapes.append((best // 2, per_thread))
    return [
        config({"x": min(size, whole)}, min(8, warps_for(min(size, whole), each, target)), target)
        for size, each in shapes
    ]


def _steps(extent: int, target: Target) -> list[Config]:
    """Candidates for `extent` steps, of which each is work enough for a thread."""
    share = next_power_of_two(-(-extent // (2 * target.multiprocessors)))
    best = max(target.warp_size, min(128, share))
    # more of what neighbouring rows share, and of what neighbouring steps compute alike
    large = [size for size in (512, 256) if extent >= size * 2 * target.multiprocessors]
    shapes = [(best, 1), *((size, 2) for size in large)]
    return [config({"x": size}, warps_for(size, each, target), target) for size, each in shapes]


def _is_stencil(facts: Facts) -> bool:
    """Points read several elements of one tensor, which their neighbours read as well."""
    return len(facts.work.stream_bytes) > facts.work.tensors + 1
