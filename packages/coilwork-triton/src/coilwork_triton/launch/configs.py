"""Which launches to try: block sizes and warps from the shape of the work and the device.

The reasoning, per kind of kernel (measured on an H200; other devices differ in degree):

- A thread moves most when its loads are 16 bytes wide, and a few of them are in flight. Eight elements per thread and
  four warps do that for two- and four-byte elements.
- A grid smaller than two blocks per multiprocessor leaves some idle, so small work gets small blocks.
- A row kept in registers by one program reaches a copy's bandwidth at 16 to 32 elements per thread; with 32 warps,
  or with a mask that a divisible row does not need, it loses a third.
- A reduction across rows that are contiguous along x is bandwidth bound only if a block spans at least 128 bytes of x.
- Rows that are walked, for sums of columns too, need the next ones on their way while some are reduced. Few threads with
  many elements each are best: two blocks of 128 threads per multiprocessor, whose 255 registers hold 32 elements and two
  sums for each, wait for fewer others at each row's barriers than blocks of 256 do, and do the same work with fewer
  instructions. Rows within a warp need no barriers, and go to registers without a detour through shared memory.
- Where each point takes many instructions, threads that wait for arithmetic need others that do not: half as many
  elements each.
- Where points read what their neighbours read, memory waits for loads from the cache: threads with many points share the
  arithmetic of positions, and small blocks share lines of cache that few others drive out.
- Where every point loads a sector of its own, one point per thread is best: what counts is how many threads wait at a time.
- A transpose needs both tile sides to span whole 32-byte sectors on both of its sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target

Walk = Literal["pointwise", "persistent", "looped"]

# Names of the block sizes of tiles, which are `constexpr` parameters.
BLOCKS: Final[Mapping[str, str]] = MappingProxyType(
    {"x": "XBLOCK", "y": "YBLOCK", "z": "ZBLOCK", "w": "WBLOCK", "r": "R0_BLOCK"}
)
# Iterations in flight of the loop over walked rows, or over blocks of a long one: one more parameter of such kernels.
STAGES: Final = "STAGES"
# How the threads of a program hold a row to sort: so many threads share it, each of them having so many neighbours at a
# time, and so many of them hold a run of its first elements. Where it is likely that these are among so many that each thread
# keeps of its own, that is tried first; 0 for no. Any powers of two are right; these are fast.
SORT_THREADS: Final = "SORT_THREADS"
SORT_WIDTH: Final = "SORT_WIDTH"
SORT_SHARE: Final = "SORT_SHARE"
SORT_KEPT: Final = "SORT_KEPT"
# The probability above which it is not tried. Where it fails, all is done again.
_AGAIN: Final = 0.02

# What a size that is unknown at compile time is taken to be.
UNKNOWN_EXTENT: Final = 1024
# Share of bytes at unit stride along y or z above which a kernel is a transpose.
TRANSPOSED: Final = 0.1
# Share of a row's last block that may lie behind the row's end.
_WASTE: Final = 1 / 8
# Elements of a row that `batch_invariant` reduces at a time.
FIXED_ROW: Final = 1024
# Points of rows to sort that share a program where they lie across memory.
_SHORT_ROW: Final = 64
# Registers of a thread that sums of walked rows' columns may take: the gradients of a norm's weights and of the bias before it, of 32
# elements each, leave room for what the elements need.
_SUMS: Final = 96
# Registers of a thread that what it loads of a whole column may take.
_LOADED: Final = 128
# Points of a block of whole columns of which 256 threads hold 128 each.
_MOST_WIDE: Final = 128 * 256
# Weighted operations per byte that is accessed at every point, above which threads wait for arithmetic as well: a device that
# issues 7 instructions per byte of its memory has no time for twice as many.
_BUSY: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the choice rests on.

    Attributes:
        walk: how the reduction ranges, if any, are walked.
        extents: estimated number of points per tile: `x`, `y`, `z`, `w`, `r` where present.
        coalescing: share of bytes at unit stride per tile, 0 to 1.
        element_bytes: size of the widest element loaded or stored.
        tensors: number of tensor arguments.
        scans: the kernel scans along r.
        scattered: neighbouring points load from sectors of their own.
        columns: reductions along w.
        ragged: rows of r end where data says, most of them early.
        streams: element sizes of what is accessed at every point.
        operations: weighted arithmetic per point.
        sort_bytes: size of the keys that r is sorted by; 0 if it is not sorted.
        sort_width: neighbours along r that one thread loads at once where it is sorted.
        first: how many elements of sorted rows are wanted, a power of two; 0 for all of them.
    """

    walk: Walk
    extents: dict[str, int]
    coalescing: dict[str, float]
    element_bytes: int
    tensors: int
    scans: bool = False
    scattered: bool = False
    columns: int = 0
    ragged: bool = False
    streams: tuple[int, ...] = ()
    operations: int = 0
    sort_bytes: int = 0
    sort_width: int = 1
    first: int = 0


def next_power_of_two(n: int) -> int:
    """The least power of two that is at least `n`; 1 for `n` below 1."""
    return 1 << max(0, (n - 1).bit_length())


def propose(facts: Facts, target: Target, limit: int) -> tuple[Config, ...]:
    """At most `limit` candidates, best guess first. Every tile's block size is in `Config.meta`."""
    rules = {"pointwise": _pointwise, "persistent": _persistent, "looped": _looped}
    if facts.sort_bytes:
        found = _sorting(facts, target)
    else:
        found = _walked(facts, target) if "w" in facts.extents else rules[facts.walk](facts, target)
    return tuple(dict.fromkeys(found))[:limit]


def fixed(tiles: Iterable[str], target: Target) -> tuple[Config, ...]:
    """The one configuration of `batch_invariant` for reductions of `tiles`: a row per program, in blocks of one length.

    How threads share a block's sum follows from its shape, so no block may hold several rows, nor a whole row of some
    lengths alone. A short row wastes most of its block.
    """
    blocks = {tile: FIXED_ROW if tile == "r" else 1 for tile in tiles}
    config = _config(blocks, 4, target)
    return (replace(config, meta=(*config.meta, (STAGES, 1))),)


def _config(blocks: dict[str, int], warps: int, target: Target) -> Config:
    most = min(32, target.max_threads_per_block // target.warp_size)
    meta = tuple((BLOCKS[tile], size) for tile, size in blocks.items())
    return Config(meta=meta, num_warps=max(1, min(most, next_power_of_two(warps))), num_stages=1)


def _warps_for(elements: int, per_thread: int, target: Target) -> int:
    return max(1, elements // (per_thread * target.warp_size))


def _pointwise(facts: Facts, target: Target) -> list[Config]:
    tiles = [t for t in ("z", "y", "x") if t in facts.extents]
    if tiles in ([], ["x"]):
        return _pointwise_line(facts, target)
    extents = facts.extents
    candidates = []
    # (elements in the block, its side along y): square first, as both sides carry contiguous accesses
    transposing = max(facts.coalescing.get(tile, 0.0) for tile in ("y", "z")) > TRANSPOSED
    shapes = [(32, 32, 4), (64, 64, 8), (128, 16, 4)] if transposing else _row_shapes(extents.get("x", 1))
    if transposing and facts.element_bytes <= 2:
        shapes = [(64, 64, 8), (32, 64, 4), (128, 32, 8)]
    for width, height, warps in shapes:
        x = min(width, next_power_of_two(extents.get("x", 1)))
        # what x cannot use goes to y
        y = min(height * width // x, next_power_of_two(extents.get("y", 1)))
        blocks = {"z": 1, "y": y, "x": x}
        if "z" in extents:
            blocks["z"] = min(max(1, height * width // (x * y)), next_power_of_two(extents["z"]))
        size = blocks["x"] * blocks["y"] * blocks["z"]
        blocks = {tile: blocks[tile] for tile in tiles}
        candidates.append(_config(blocks, min(warps, _warps_for(size, 4, target)), target))
    return candidates


def _row_shapes(length: int) -> list[tuple[int, int, int]]:
    """(points of a row, rows, warps) of blocks that hold little behind the end of rows of `length` points."""

    def waste(width: int) -> float:
        return 1 - length / (-(-length // width) * width)

    shapes = ((1024, 1, 4), (2048, 1, 4), (2048, 1, 8), (512, 1, 2))
    long = [shape for shape in shapes if waste(shape[0]) <= _WASTE]
    # without masks if there is a choice
    exact = [shape for shape in long if waste(shape[0]) == 0]
    if exact or long:
        return exact or long
    return sorted([(256, 4, 4), (512, 2, 4), (1024, 1, 4)], key=lambda shape: waste(shape[0]))


def _pointwise_line(facts: Facts, target: Target) -> list[Config]:
    extent = facts.extents.get("x")
    if extent is None:
        return [_config({}, 1, target)]
    whole = next_power_of_two(extent)
    if facts.scattered and extent >= 1024 * 2 * target.multiprocessors:
        # several per thread are better where the sectors turn out to be in a cache
        few = ((512, 1), (256, 1), (1024, 4))
        return [_config({"x": size}, _warps_for(size, each, target), target) for size, each in few]
    # 16 bytes per thread and load, two loads in flight for four-byte elements; what is one number for all does not count
    per_thread = 4 if max(facts.streams, default=facts.element_bytes) >= 8 else 8
    share = next_power_of_two(-(-extent // (2 * target.multiprocessors)))
    best = max(128, min(1024, share))
    shapes = [(best, per_thread)]
    if best == 1024 and _is_stencil(facts):
        shapes = [(512, per_thread), (best, 4 * per_thread), *shapes]
    elif extent >= 1024 * 2 * target.multiprocessors:
        # more in flight, by more threads or by each
        shapes += [(2048, per_thread), (2048, 2 * per_thread)]
    elif best > 256:
        shapes.append((best // 2, per_thread))
    return [
        _config({"x": min(size, whole)}, min(8, _warps_for(min(size, whole), each, target)), target)
        for size, each in shapes
    ]


def _is_stencil(facts: Facts) -> bool:
    """Points read several elements of one tensor, which their neighbours read as well."""
    return len(facts.streams) > facts.tensors + 1


def _rest(facts: Facts) -> dict[str, int]:
    return {tile: 1 for tile in ("z", "y") if tile in facts.extents}


def _persistent(facts: Facts, target: Target) -> list[Config]:
    row = next_power_of_two(facts.extents["r"])
    rows = facts.extents.get("x", 1)
    across = _reduces_across(facts)
    if "x" not in facts.extents or (row >= 1024 and not across):
        # 64 bytes per thread of one-byte elements, as of others
        warps = max(1, min(16, _warps_for(row, 16 if facts.element_bytes > 1 else 64, target)))
        if row >= 8192:
            warps = max(8, min(16, _warps_for(row, 32, target)))
        blocks = _rest(facts) | ({"x": 1} if "x" in facts.extents else {}) | {"r": row}
        return [
            _config(blocks, w, target) for w in (warps, warps * 2 if warps < 16 else 8, max(1, warps // 2))
        ]
    # several rows per program, so that its warps have 16 bytes per thread to load
    enough = max(1, next_power_of_two(-(-rows // (2 * target.multiprocessors))))
    if across:
        return _persistent_columns(facts, target, row, max(enough, 32))
    # twice 16 bytes per thread: there is something to load while a row is reduced
    most = max(4, min(16, 32 // max(facts.streams, default=facts.element_bytes)))
    found = []
    for elements, per_thread in ((2048, most), (1024, 8), (4096, 16)):
        x = min(max(1, elements // row), enough, next_power_of_two(rows))
        warps = min(8, _warps_for(x * row, per_thread, target))
        found.append(_config(_rest(facts) | {"x": x, "r": row}, warps, target))
    return found


def _sorting(facts: Facts, target: Target) -> list[Config]:
    """As few threads per row as have room for it: an exchange within a thread costs a third of one between threads."""
    row = next_power_of_two(facts.extents["r"])
    rows = next_power_of_two(facts.extents.get("x", 1))
    # several long rows in one program gave wrong results on an H200 where they lie across memory: one at a time
    across = _reduces_across(facts) and row <= _SHORT_ROW
    # elements per thread: registers for 32 keys of 8 bytes, or 64 of 4
    room = 256 // facts.sort_bytes
    found = []
    # each takes seconds to build
    for most in (room, room // 2):
        warps = max(1, row // (most * target.warp_size))
        # short rows share a warp, unless there are too few of them to keep the device busy
        enough = _power_of_two_below(rows // (8 * target.multiprocessors)) if not across else rows
        together = min(rows, max(1, min(most, 32) * target.warp_size // row), max(enough, 1))
        if across:
            # threads exchange what they hold through shared memory
            most_rows = _power_of_two_below(target.shared_memory_bytes // (facts.sort_bytes * row))
            together = min(rows, max(32, together), most_rows)
            warps = max(1, min(16, together * row // (most * target.warp_size)))
        blocks = _rest(facts) | ({"x": together} if "x" in facts.extents else {}) | {"r": row}
        one = _config(blocks, warps, target)
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
    return found


def _power_of_two_below(n: int) -> int:
    """The greatest power of two that is at most `n`; 1 for `n` below 1."""
    return 1 << max(0, n.bit_length() - 1)


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


def _walked(facts: Facts, target: Target) -> list[Config]:
    """A row, or a few short ones, per step: up to 32 elements per thread of what is read and of each column's sums."""
    row = next_power_of_two(facts.extents["r"])
    most = next_power_of_two(facts.extents["w"])
    rest = {tile: 1 for tile in ("z", "y", "x") if tile in facts.extents}
    each = max(8, min(32, _power_of_two_below(_SUMS // max(1, facts.columns))))
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
        shapes = [(step, each, 3), (step, each // 2, 3), (step // 2, each // 2, 3)]
    else:
        shapes = [(step, each, 3), (step // 2, each // 2, 4), (step // 2, each // 2, 3)]
    found = []
    for elements, per_thread, stages in shapes:
        rows = min(max(1, elements // row), most)
        warps = min(16, _warps_for(rows * row, per_thread, target))
        one = _config(rest | {"w": rows, "r": row}, warps, target)
        found.append(replace(one, meta=(*one.meta, (STAGES, stages))))
    return found


def _persistent_columns(facts: Facts, target: Target, row: int, most: int) -> list[Config]:
    """Blocks of whole columns of `row` points: contiguous along x, where a block spans a line of cache."""
    line = 128 // max(facts.streams, default=facts.element_bytes)
    best = max(2048 // row, line)
    if facts.extents["x"] < best * target.multiprocessors:
        # few columns: a sector of memory is enough for a block, so that there are more of them, with little to do for each
        shapes = [(max(1, best // 2), 16), (max(1, best // 4), 16), (max(1, best // 4), 8)]
    else:
        each = 64 if sum(facts.streams) * 64 <= 4 * _LOADED and not _busy(facts) else 32
        fitting = [x for x in (best, best // 2, 2 * best, best // 4) if 0 < x * row <= each * 512]
        # small blocks first, if large ones are not what it takes to span a line
        ordered = sorted(fitting[:3], key=lambda x: x * row > 64 * 256)
        shapes = [(x, each) for x in ordered] or [(max(1, best // 4), each)]
        if sum(facts.streams) <= 2 and best * row <= _MOST_WIDE and not _busy(facts):
            # what is loaded takes half a register each
            shapes.insert(0, (best, 2 * each))
    found = []
    for width, per_thread in shapes[:3]:
        x = min(width, most, next_power_of_two(facts.extents["x"]))
        # blocks that are small have little in flight for each thread anyway
        warps = max(min(16, _warps_for(x * row, per_thread, target)), min(4, _warps_for(x * row, 8, target)))
        found.append(_config(_rest(facts) | {"x": x, "r": row}, warps, target))
    return found


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
            shapes = [(1, 512, 1, 4), (1, 256, 1, 4), (1, 512, 2, 8)]
    elif rows * -(-columns // 256) < 4 * target.multiprocessors:
        shapes = [(1, 64, 32, 4), (1, 128, 16, 4), (1, 32, 64, 4)]
    else:
        width = _ragged_width(columns)
        height = max(1, 512 // width)
        # 8 results per thread, with all its points of r: no thread waits for another, and registers leave room for many
        warps = max(1, height * width // 256)
        shapes = [
            (height, width, 2, warps),
            (height, width, 1, warps),
            (height, max(1, width // 2), 4, warps),
        ]
    found = []
    for height, width, depth, warps in shapes:
        x = min(width, next_power_of_two(columns))
        y = min(height * width // x, next_power_of_two(rows))
        blocks = {"y": y, "x": x} if "y" in facts.extents else {"x": x}
        r = min(depth, next_power_of_two(facts.extents["r"]))
        found.append(_config(blocks | {"r": r}, min(warps, _warps_for(x * y * r, 4, target)), target))
    return found


def _ragged_width(columns: int) -> int:
    """Results of a row that a program takes: as many as may be with little behind the row's end."""
    for width in (1024, 512):
        if columns > width // 2 and 1 - columns / (-(-columns // width) * width) <= 1 / 4:
            return width
    return min(256, next_power_of_two(columns))


def _looped(facts: Facts, target: Target) -> list[Config]:
    if facts.ragged:
        return _ragged(facts, target)
    # one block of the loop at a time; a search tries more
    return [replace(c, meta=(*c.meta, (STAGES, 1))) for c in _looped_blocks(facts, target)]


def _looped_blocks(facts: Facts, target: Target) -> list[Config]:
    length = next_power_of_two(facts.extents["r"])
    if "x" not in facts.extents or not _reduces_across(facts):
        one = {"x": 1} if "x" in facts.extents else {}
        found = []
        # 32 bytes per thread of two-byte elements per step
        other = [(8192, 16), (2048, 4)] if facts.scans else [(2048, 4), (1024, 4)]
        for size, warps in ((4096, 8), *other):
            r = min(size, length)
            found.append(_config(_rest(facts) | one | {"r": r}, min(warps, _warps_for(r, 4, target)), target))
        return found
    found = []
    # few columns: narrower blocks, down to one 32-byte sector, keep every multiprocessor busy
    columns = facts.extents["x"]
    # 32 bytes per thread in flight: deeper blocks of small elements
    deep = 2 if 0 < sum(facts.streams) <= 2 else 1
    shapes = [(64, 32 * deep, 8), (32, 64 * deep, 8), (16, 128 * deep, 8)]
    if columns >= 128 * 3 * target.multiprocessors:
        # blocks of 64 need more registers than leave room for all of them at once; half as many run in one wave
        shapes = [(128, 32 * deep, 4), (64, 32 * deep, 8), (128, 32 * deep, 8)]
    busy = [shape for shape in shapes if columns >= shape[0] * target.multiprocessors]
    ordered = busy + [shape for shape in reversed(shapes) if shape not in busy]
    # few threads with many loads each are best where several tensors are read
    few = [(ordered[0][0], ordered[0][1], 2)] if len(facts.streams) > 1 else []
    for width, depth, warps in [*ordered[:2], *few, *ordered[2:]]:
        x = min(width, next_power_of_two(columns))
        r = min(depth * width // x, length)
        found.append(
            _config(_rest(facts) | {"x": x, "r": r}, min(warps, _warps_for(x * r, 4, target)), target)
        )
    return found


def _reduces_across(facts: Facts) -> bool:
    """Neighbouring addresses lie along x, not along the reduction."""
    return facts.coalescing.get("x", 0.0) > facts.coalescing.get("r", 0.0)
