"""Place many small allocations in few pools: shared blocks for buffers that never leave the program.

An allocation with its free costs the host half of what a launch costs. A pool is allocated once, for a
stretch of the program, and its members lie in it at offsets that are known beforehand. Pools may raise the
peak of memory by a small amount in all, which `Headroom` keeps account of. Where the buffers beside a pool
leave no room for it, the pool ends, and what is alive there is allocated by itself.

Only memory that the program alone knows is placed. It is not returned, and no operator of a library has seen
it, which might keep it, or use it on a stream of its own, as collectives do; nor one of ATen's that counts
from where a storage begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    LoopCall,
    PoolView,
    Program,
    Reinterpret,
    Reuse,
    SubprogramCall,
)
from coilwork_scheduler.memory.blocks import Block, Bytes, Interval, list_blocks, pack, pack_below
from coilwork_scheduler.memory.liveness import PeakMeter, StorageTable

# ---- Headroom ----


MOST_PRODUCTS: Final = 12
# How often each buffer is placed on average, over all attempts, and in all where there are few.
PLACEMENTS_EACH: Final = 12
FEWEST_PLACEMENTS: Final = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Members with their offsets, each in multiples of its own product, and how many of each the pool takes.

    It is there from its first member's start to its last's end.
    """

    members: tuple[Block, ...]
    offsets: tuple[int, ...]
    size: Bytes
    start: int
    end: int


class Headroom:
    """Bytes alive at each instruction, pools included, against the most allowed; and placements left to
    try.
    """

    def __init__(self, blocks: Sequence[Block], length: int, width: int, slack_bytes: int) -> None:
        self.live = profile(blocks, length, width)
        self.placements = max(FEWEST_PLACEMENTS, PLACEMENTS_EACH * len(blocks))
        largest = _list_largest(self.live)
        self._most = [(most[0] + slack_bytes, *most[1:]) for most in largest]

    def violations(self, pool: Pool) -> list[int]:
        """Instructions at which there would be too much memory, with `pool` instead of its members."""
        inside = profile(pool.members, pool.end, len(pool.size), pool.start)
        found = []
        for offset, members in enumerate(inside):
            at = pool.start + offset
            there = tuple(
                live - own + whole for live, own, whole in zip(self.live[at], members, pool.size, strict=True)
            )
            if not any(_is_within(there, peak) for peak in self._most):
                found.append(at)
        return found

    def count_free_units(self, members: Sequence[Block]) -> list[int]:
        """Count the units that a pool for `members`, all of one product, may take at each instruction.

        From the first start to the last end. A unit is the product.
        """
        which = members[0].product
        start, end = min(block.start for block in members), max(block.end for block in members)
        inside = profile(members, end, len(members[0].size), start)
        found = []
        for live, own in zip(self.live[start:end], inside, strict=True):
            others = [k for k in range(len(live)) if k != which]
            left = [
                most[which] - live[which] + own[which]
                for most in self._most
                if all(live[k] <= most[k] for k in others)
            ]
            found.append(max(left, default=0))
        return found

    def take(self, pool: Pool) -> None:
        """Replace the members of `pool` by the pool."""
        inside = profile(pool.members, pool.end, len(pool.size), pool.start)
        for offset, members in enumerate(inside):
            at = pool.start + offset
            self.live[at] = tuple(
                live - own + whole for live, own, whole in zip(self.live[at], members, pool.size, strict=True)
            )


def profile(blocks: Collection[Block], end: int, width: int, start: int = 0) -> list[Bytes]:
    """Bytes of `blocks` alive at each instruction from `start` to before `end`."""
    change = [[0] * width for _ in range(end - start + 1)]
    for block in blocks:
        for k, amount in enumerate(block.size):
            change[block.start - start][k] += amount
            change[min(block.end, end) - start][k] -= amount
    totals, now = [], [0] * width
    for step in change[:-1]:
        now = [a + b for a, b in zip(now, step, strict=True)]
        totals.append(tuple(now))
    return totals


def _is_within(one: Bytes, other: Bytes) -> bool:
    """Tell if `one` is at most `other`, whatever the sizes are."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def _list_largest(totals: Sequence[Bytes]) -> list[Bytes]:
    """Return the totals that are within none of the others."""
    found: list[Bytes] = []
    for total in sorted(set(totals), reverse=True):
        if not any(_is_within(total, other) for other in found):
            found.append(total)
    return found[:MOST_PRODUCTS]


# ---- Pools ----


FEWEST_MEMBERS: Final = 2
MOST_SPLITS: Final = 12
THRESHOLDS: Final = 6
MOST_ROUNDS: Final = 6
PARTS: Final = (2, 4, 8)
SMALL_PEAK_BYTES: Final = 1 << 24
SMALL_SHARE: Final = 2


def place_in_pools(
    program: Program, table: StorageTable, *, slack_bytes: int, small_slack_bytes: int = 0
) -> Program:
    """Place as many allocations of `program` as possible in pools; `table` maps names to storages.

    The peak is at most `slack_bytes` higher, whatever the sizes are, each rounded up to a multiple of 64
    bytes, as allocators do; by `small_slack_bytes` and a half where it is at most 16 MiB, known beforehand,
    and most allocations would stay otherwise. Inputs that are given away count as long as they are there.
    Deterministic; linear in the number of instructions: the number of attempts is bounded.
    """
    products: dict[Expr, int] = {as_expr(1): 0}
    blocks = list_blocks(program, table, products)
    if len(products) > MOST_PRODUCTS:
        return program
    width = len(products)
    blocks = [replace(block, size=block.size + (0,) * (width - len(block.size))) for block in blocks]
    length = len(program.instructions)
    pools = _find_all_pools(blocks, Headroom(blocks, length, width, slack_bytes))
    more = min(small_slack_bytes, _small_peak_share(blocks, length, width))
    if more > slack_bytes and 2 * _count_members(pools) < sum(block.product >= 0 for block in blocks):
        pools = max(pools, _find_all_pools(blocks, Headroom(blocks, length, width, more)), key=_count_members)
    if not pools:
        return program
    return _rewrite(program, blocks, pools, tuple(products))


def _find_all_pools(blocks: Sequence[Block], headroom: Headroom) -> list[Pool]:
    """Pools on all devices, found in rounds: what one round leaves over has another."""
    pools: list[Pool] = []
    for device in dict.fromkeys(block.device for block in blocks):
        candidates = [block for block in blocks if block.device == device and block.product >= 0]
        for _ in range(MOST_ROUNDS):
            found = _find_pools(candidates, headroom, 0)
            if not found:
                break
            for pool in found:
                headroom.take(pool)
            pools += found
            placed = {member.root.name for pool in found for member in pool.members}
            candidates = [block for block in candidates if block.root.name not in placed]
    return pools


def _count_members(pools: Sequence[Pool]) -> int:
    return sum(len(pool.members) for pool in pools)


def _small_peak_share(blocks: Sequence[Block], length: int, width: int) -> int:
    """Return a share of the peak if the peak is known at compile time and small, else 0.

    The time of a small program is what it costs the host.
    """
    if width > 1:
        return 0
    peak = max((live for (live,) in profile(blocks, length, width)), default=0)
    return peak // SMALL_SHARE if peak <= SMALL_PEAK_BYTES else 0


def _find_pools(candidates: Sequence[Block], headroom: Headroom, depth: int) -> list[Pool]:
    """Pools of `candidates` that there is room for."""
    if len(candidates) < FEWEST_MEMBERS or depth > MOST_SPLITS or headroom.placements < len(candidates):
        return []
    whole = _pack_pool(candidates, headroom)
    too_much = headroom.violations(whole)
    if not too_much:
        return [whole]
    smaller = (
        _fit_below_limit(candidates, headroom)
        or _drop_largest(candidates, headroom)
        or _take_lower_part(whole, headroom)
    )
    if smaller is not None:
        return [smaller]
    found = []
    # what is alive where there is no room is allocated by itself; between those places is another chance
    edges = [-1, *too_much, whole.end + 1]
    for left, right in pairwise(edges):
        if right - left > FEWEST_MEMBERS:
            inside = [block for block in candidates if left < block.start and block.end <= right]
            if len(inside) < len(candidates):
                found += _find_pools(inside, headroom, depth + 1)
    return found


def _fit_below_limit(candidates: Sequence[Block], headroom: Headroom) -> Pool | None:
    """Return a pool of most of `candidates`, as large as what is not in it leaves room for while it is
    there.
    """
    same = [block for block in candidates if block.product == candidates[0].product]
    best: Pool | None = None
    for limit in sorted(set(headroom.count_free_units(same)))[:THRESHOLDS]:
        pool = _fill_pool(limit, same, headroom)
        if pool is not None and (best is None or len(pool.members) > len(best.members)):
            best = pool
    return best


def _fill_pool(limit: int, blocks: Sequence[Block], headroom: Headroom) -> Pool | None:
    """Return a pool of at most `limit` units for those of `blocks` that find a place, if that is most of
    them.
    """
    members = list(blocks)
    while 2 * len(members) >= len(blocks) and len(members) >= FEWEST_MEMBERS:
        if headroom.placements < len(members):
            return None
        headroom.placements -= len(members)
        start = min(block.start for block in members)
        # what is not in it is allocated by itself; where that leaves less, the pool is not there yet, or any
        # more
        tight = [start + at for at, units in enumerate(headroom.count_free_units(members)) if units < limit]
        inside = _find_fullest_gap(tight, members)
        placed = pack_below(limit, [Interval(b.start, b.end, b.size[b.product]) for b in inside])
        if len(placed) == len(members):
            return _pool_of(members, [placed[k] for k in range(len(members))])
        members = [block for k, block in enumerate(inside) if k in placed]
    return None


def _find_fullest_gap(edges: Sequence[int], blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks alive between two neighbouring `edges`, for the pair with the most."""
    found: dict[int, list[Block]] = {}
    for block in blocks:
        edge = bisect_left(edges, block.start)
        if edge == bisect_left(edges, block.end):
            found.setdefault(edge, []).append(block)
    return max(found.values(), key=len, default=[])


def _drop_largest(candidates: Sequence[Block], headroom: Headroom) -> Pool | None:
    """Return a pool of most of `candidates`: all but those above some size."""
    sizes = sorted({max(block.size) for block in candidates}, reverse=True)
    for limit in sizes[1 : 1 + THRESHOLDS]:
        rest = [block for block in candidates if max(block.size) <= limit]
        if 2 * len(rest) < len(candidates) or len(rest) < FEWEST_MEMBERS:
            return None
        if headroom.placements < len(rest):
            return None
        pool = _pack_pool(rest, headroom)
        if not headroom.violations(pool):
            return pool
    return None


def _take_lower_part(whole: Pool, headroom: Headroom) -> Pool | None:
    """A pool of what lies in the first half of `whole`, or in less: it may end earlier. What is left has
    further rounds.
    """
    for part in PARTS:
        rest = [
            member
            for member, offset in zip(whole.members, whole.offsets, strict=True)
            if (offset + member.size[member.product]) * part <= whole.size[member.product]
        ]
        if len(rest) < FEWEST_MEMBERS or headroom.placements < len(rest):
            return None
        pool = _pack_pool(rest, headroom)
        if not headroom.violations(pool):
            return pool
    return None


def _pack_pool(blocks: Sequence[Block], headroom: Headroom) -> Pool:
    """Offsets for `blocks`: each product has a part of the pool to itself."""
    headroom.placements -= len(blocks)
    offsets = [0] * len(blocks)
    for which in dict.fromkeys(block.product for block in blocks):
        numbers = [k for k, block in enumerate(blocks) if block.product == which]
        placed = pack([Interval(blocks[k].start, blocks[k].end, blocks[k].size[which]) for k in numbers])
        for k, offset in zip(numbers, placed.offsets, strict=True):
            offsets[k] = offset
    return _pool_of(blocks, offsets)


def _pool_of(blocks: Sequence[Block], offsets: Sequence[int]) -> Pool:
    """Return the pool in which `blocks` lie at `offsets`."""
    size = [0] * len(blocks[0].size)
    for block, offset in zip(blocks, offsets, strict=True):
        size[block.product] = max(size[block.product], offset + block.size[block.product])
    return Pool(
        members=tuple(blocks),
        offsets=tuple(offsets),
        size=tuple(size),
        start=min(block.start for block in blocks),
        end=max(block.end for block in blocks),
    )


def _rewrite(
    program: Program, blocks: Sequence[Block], pools: Sequence[Pool], products: Sequence[Expr]
) -> Program:
    names = _pool_names(program, len(pools))
    views: dict[str, PoolView] = {}
    before: dict[int, list[Instruction]] = {}
    after: dict[int, list[str]] = {}
    for name, pool in zip(names, pools, strict=True):
        before.setdefault(pool.start, []).append(
            AllocPool(pool=name, size_bytes=_total(pool.size, products), device=pool.members[0].device)
        )
        after.setdefault(pool.end, []).append(name)
        parts = [as_expr(0)]
        for factor, one in zip(pool.size, products, strict=True):
            parts.append(parts[-1] + one * factor)
        for member, offset in zip(pool.members, pool.offsets, strict=True):
            at = parts[member.product] + products[member.product] * offset
            views[member.root.name] = PoolView(buffer=member.root, pool=name, offset_bytes=at)
    out: list[Instruction] = []
    for number, instruction in enumerate(program.instructions):
        out += before.get(number, ())
        if isinstance(instruction, Alloc):
            out.append(views.get(instruction.buffer.name, instruction))
        elif isinstance(instruction, Free):
            out.append(Free(names=(*instruction.names, *after.get(number, ()))))
        else:
            out.append(instruction)
    return replace(program, instructions=tuple(out), peak_bytes=_peak(program, blocks, pools, products))


def _total(size: Bytes, products: Sequence[Expr]) -> Expr:
    found = as_expr(0)
    for factor, one in zip(size, products, strict=True):
        found = found + one * factor
    return found


def _pool_names(program: Program, count: int) -> list[str]:
    """Names that the program has not."""
    taken: set[str] = {entry.name for entry in program.inputs if isinstance(entry, Buffer)}
    taken |= {constant.buffer.name for constant in program.constants}
    for instruction in program.instructions:
        match instruction:
            case Alloc(buffer=buffer) | Reuse(buffer=buffer) | Reinterpret(buffer=buffer):
                taken.add(buffer.name)
            case ExternCall() | CondCall() | LoopCall() | SubprogramCall():
                taken |= {output.name for output in instruction.outputs if isinstance(output, Buffer)}
            case _:
                pass
    found: list[str] = []
    number = 0
    while len(found) < count:
        if f"pool{number}" not in taken:
            found.append(f"pool{number}")
        number += 1
    return found


def _peak(
    program: Program, blocks: Sequence[Block], pools: Sequence[Pool], products: Sequence[Expr]
) -> Expr | None:
    """Return the peak with pools: the pools' bytes, and those of what is allocated by itself, not rounded."""
    if program.peak_bytes is None:
        return None
    inside = {member.root.name for pool in pools for member in pool.members}
    events: dict[int, list[tuple[bool, Expr]]] = {}

    def add(start: int, end: int, size: Expr) -> None:
        events.setdefault(start, []).append((True, size))
        events.setdefault(end, []).append((False, size))

    for block in blocks:
        if block.root.name not in inside and not block.given:
            add(block.start, block.end, block.root.span * block.root.dtype.itemsize)
    for pool in pools:
        add(pool.start, pool.end, _total(pool.size, products))
    meter = PeakMeter()
    for number in sorted(events):
        for grows, size in sorted(events[number], key=lambda event: event[0]):
            if grows:
                meter.grow(size)
            else:
                meter.shrink(size)
    return meter.peak()
