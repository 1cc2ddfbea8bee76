"""Many small allocations become a few: buffers that never leave the program are placed in shared blocks.

An allocation with its free costs the host half of what a launch costs. A pool is allocated once, for a stretch of the program,
and its members are found in it at offsets that are known beforehand. Pools may raise the peak of memory by a fixed small amount in all: where
the buffers beside a pool leave no room for it, the pool ends, and what is alive there is allocated by itself.

Only memory that the program alone knows is placed: it is not returned, and no operator of a library has seen it, which might
keep it, or use it on a stream of its own, as collectives do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from coilwork_ir.buffers import Buffer, Ref, references
from coilwork_ir.index import Const, Expr, Mul, as_expr, node, product
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    PoolView,
    Program,
    Reinterpret,
    Return,
    Reuse,
    WhileCall,
)
from coilwork_scheduler.memory.packing import ALIGNMENT, Interval, pack
from coilwork_scheduler.memory.peak import PeakMeter
from coilwork_scheduler.memory.storage import StorageTable

Bytes = tuple[int, ...]
"""Bytes as coefficients: how many times each of the products of sizes that occur in the program."""

MOST_PRODUCTS: Final = 12
FEWEST_MEMBERS: Final = 2
MOST_SPLITS: Final = 12
THRESHOLDS: Final = 6
MOST_ROUNDS: Final = 6
PARTS: Final = (2, 4, 8)
# How often each buffer is placed on average, over all attempts, and in all where there are few.
PLACEMENTS_EACH: Final = 12
FEWEST_PLACEMENTS: Final = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Memory of the program's, from the instruction that defines it to the one that frees it, which it is not alive in.

    Attributes:
        root: the buffer that is allocated.
        size: as the peak counts it.
        product: number of the product that a member's size is a multiple of; -1 for what is no candidate.
    """

    root: Buffer
    start: int
    end: int
    size: Bytes
    product: int

    @property
    def device(self) -> str:
        """Where it is."""
        return self.root.device


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Members with their offsets, each in multiples of its own product, and how many of each the pool takes.

    It is there from its first member's start to its last's end.
    """

    members: tuple[_Block, ...]
    offsets: tuple[int, ...]
    size: Bytes
    start: int
    end: int


def with_pools(program: Program, table: StorageTable, *, slack_bytes: int) -> Program:
    """`program` with as many of its allocations as possible in pools. `table` says which names are one piece of memory.

    The peak is at most `slack_bytes` higher, whatever the sizes are, each rounded up to a multiple of 64 bytes, as allocators
    do. Deterministic; linear in the number of instructions: the number of attempts is bounded.
    """
    products: dict[Expr, int] = {as_expr(1): 0}
    blocks = _blocks(program, table, products)
    if len(products) > MOST_PRODUCTS:
        return program
    width = len(products)
    blocks = [replace(block, size=block.size + (0,) * (width - len(block.size))) for block in blocks]
    pools: list[_Pool] = []
    room = _Room(blocks, len(program.instructions), width, slack_bytes)
    for device in dict.fromkeys(block.device for block in blocks):
        candidates = [block for block in blocks if block.device == device and block.product >= 0]
        for _ in range(MOST_ROUNDS):
            found = _pools(candidates, room, 0)
            if not found:
                break
            for pool in found:
                room.take(pool)
            pools += found
            placed = {member.root.name for pool in found for member in pool.members}
            candidates = [block for block in candidates if block.root.name not in placed]
    if not pools:
        return program
    return _rewritten(program, blocks, pools, tuple(products))


# What there is


def _blocks(program: Program, table: StorageTable, products: dict[Expr, int]) -> list[_Block]:
    """All memory that `program` comes to have, in the order of definition; fills `products`."""
    groups = _Groups(len(table.storages))
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    allocated: set[int] = set()
    for number, instruction in enumerate(program.instructions):
        match instruction:
            case Alloc(buffer=buffer):
                starts[table.of[buffer.name]] = number
                allocated.add(table.of[buffer.name])
            case Reuse(buffer=buffer, source=source) | Reinterpret(buffer=buffer, source=source):
                groups.join(table.of[source], table.of[buffer.name])
            case ExternCall() | CondCall() | WhileCall():
                for output in instruction.outputs:
                    if isinstance(output, Buffer):
                        starts.setdefault(table.of[output.name], number)
            case Free(names=names):
                # the last one counts: an input whose memory a result took over is freed by name only
                for name in names:
                    ends[groups.first(table.of[name])] = number
            case Return(values=values):
                for value in values:
                    if isinstance(value, Ref):
                        ends.pop(groups.first(table.of[value.name]), None)
            case _:
                pass
    kept = _kept(program, table)
    outside = {groups.first(position) for position in kept}
    given = {
        groups.first(p) for p, s in enumerate(table.storages) if s.owner in ("input", "donated", "constant")
    }
    made = []
    for position, start in sorted(starts.items(), key=lambda item: item[1]):
        if groups.first(position) != position or position in given:
            continue
        end = ends.get(position, len(program.instructions))
        size, which = _size(table.storages[position].size_bytes, products)
        free = position in allocated and position not in outside and position in ends
        made.append(
            _Block(
                root=table.storages[position].root,
                start=start,
                end=end,
                size=size,
                product=which if free else -1,
            )
        )
    return made


def _kept(program: Program, table: StorageTable) -> frozenset[int]:
    """Storages that are returned, or seen by an operator that might keep them.

    Results of ATen's operators that share an operand's memory are known (`Extern.aliases`), and belong to its storage.
    """
    names: list[str] = []
    for instruction in program.instructions:
        if isinstance(instruction, ExternCall) and not instruction.target.startswith("aten."):
            given = (*instruction.args, *(value for _, value in instruction.kwargs))
            names += [name for value in given for name in references(value)]
            names += [name for _, name in instruction.out]
        if isinstance(instruction, Return):
            names += [value.name for value in instruction.values if isinstance(value, Ref)]
    return frozenset(table.of[name] for name in names)


class _Groups:
    """Storages whose memory was handed on from one to the other; the first to have it stands for them."""

    def __init__(self, count: int) -> None:
        self._before = list(range(count))

    def first(self, position: int) -> int:
        """The storage that had the memory first."""
        while self._before[position] != position:
            self._before[position] = self._before[self._before[position]]
            position = self._before[position]
        return position

    def join(self, source: int, position: int) -> None:
        """`position` has the memory of `source` now."""
        if source != position:
            self._before[self.first(position)] = self.first(source)


def _size(size_bytes: Expr, products: dict[Expr, int]) -> tuple[Bytes, int]:
    """The coefficients of a size, and the number of its product if a member of a pool may have such a size, else -1."""
    factor, of = _split(size_bytes)
    number = products.setdefault(of, len(products))
    if number == 0:
        factor = -(-factor // ALIGNMENT) * ALIGNMENT
    places = factor > 0 and factor % ALIGNMENT == 0
    return (0,) * number + (factor,), number if places else -1


def _split(size: Expr) -> tuple[int, Expr]:
    """`size` as a number times an expression; 1 times itself if it is no product."""
    match node(size):
        case Const(value):
            return value, as_expr(1)
        case Mul((first, *rest)):
            match node(first):
                case Const(value) if value > 0:
                    return value, product(rest)
    return 1, size


# What goes together


class _Room:
    """Bytes alive at each instruction, pools included, and how many there may be; and how many placements may be tried."""

    def __init__(self, blocks: Sequence[_Block], length: int, width: int, slack_bytes: int) -> None:
        self.live = _profile(blocks, length, width)
        self.placements = max(FEWEST_PLACEMENTS, PLACEMENTS_EACH * len(blocks))
        self._most = [(most[0] + slack_bytes, *most[1:]) for most in _largest(self.live)]

    def violations(self, pool: _Pool) -> list[int]:
        """Instructions at which there would be too much memory, with `pool` instead of its members."""
        inside = _profile(pool.members, pool.end, len(pool.size), pool.start)
        found = []
        for offset, members in enumerate(inside):
            at = pool.start + offset
            there = tuple(
                live - own + whole for live, own, whole in zip(self.live[at], members, pool.size, strict=True)
            )
            if not any(_within(there, peak) for peak in self._most):
                found.append(at)
        return found

    def take(self, pool: _Pool) -> None:
        """`pool` it is."""
        inside = _profile(pool.members, pool.end, len(pool.size), pool.start)
        for offset, members in enumerate(inside):
            at = pool.start + offset
            self.live[at] = tuple(
                live - own + whole for live, own, whole in zip(self.live[at], members, pool.size, strict=True)
            )


def _profile(blocks: Collection[_Block], end: int, width: int, start: int = 0) -> list[Bytes]:
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


def _within(one: Bytes, other: Bytes) -> bool:
    """Whether `one` is at most `other`, whatever the sizes are."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def _largest(totals: Sequence[Bytes]) -> list[Bytes]:
    """Those that none of the others contains."""
    found: list[Bytes] = []
    for total in sorted(set(totals), reverse=True):
        if not any(_within(total, other) for other in found):
            found.append(total)
    return found[:MOST_PRODUCTS]


def _pools(candidates: Sequence[_Block], room: _Room, depth: int) -> list[_Pool]:
    """Pools of `candidates` that there is room for."""
    if len(candidates) < FEWEST_MEMBERS or depth > MOST_SPLITS or room.placements < len(candidates):
        return []
    whole = _packed(candidates, room)
    too_much = room.violations(whole)
    if not too_much:
        return [whole]
    smaller = _without_the_largest(candidates, room) or _lower_part(whole, room)
    if smaller is not None:
        return [smaller]
    found = []
    # what is alive where there is no room is allocated by itself; between those places is another chance
    edges = [-1, *too_much, whole.end + 1]
    for left, right in pairwise(edges):
        if right - left > FEWEST_MEMBERS:
            inside = [block for block in candidates if left < block.start and block.end <= right]
            if len(inside) < len(candidates):
                found += _pools(inside, room, depth + 1)
    return found


def _without_the_largest(candidates: Sequence[_Block], room: _Room) -> _Pool | None:
    """A pool of most of `candidates`: all but those above some size."""
    sizes = sorted({max(block.size) for block in candidates}, reverse=True)
    for limit in sizes[1 : 1 + THRESHOLDS]:
        rest = [block for block in candidates if max(block.size) <= limit]
        if 2 * len(rest) < len(candidates) or len(rest) < FEWEST_MEMBERS:
            return None
        if room.placements < len(rest):
            return None
        pool = _packed(rest, room)
        if not room.violations(pool):
            return pool
    return None


def _lower_part(whole: _Pool, room: _Room) -> _Pool | None:
    """A pool of what lies in the first half of `whole`, or in less: it may end earlier. What is left has further rounds."""
    for part in PARTS:
        rest = [
            member
            for member, offset in zip(whole.members, whole.offsets, strict=True)
            if (offset + member.size[member.product]) * part <= whole.size[member.product]
        ]
        if len(rest) < FEWEST_MEMBERS or room.placements < len(rest):
            return None
        pool = _packed(rest, room)
        if not room.violations(pool):
            return pool
    return None


def _packed(blocks: Sequence[_Block], room: _Room) -> _Pool:
    """Offsets for `blocks`: each product has a part of the pool to itself."""
    room.placements -= len(blocks)
    offsets = [0] * len(blocks)
    size = [0] * len(blocks[0].size)
    for which in dict.fromkeys(block.product for block in blocks):
        numbers = [k for k, block in enumerate(blocks) if block.product == which]
        placed = pack([Interval(blocks[k].start, blocks[k].end, blocks[k].size[which]) for k in numbers])
        size[which] = placed.size
        for k, offset in zip(numbers, placed.offsets, strict=True):
            offsets[k] = offset
    return _Pool(
        members=tuple(blocks),
        offsets=tuple(offsets),
        size=tuple(size),
        start=min(block.start for block in blocks),
        end=max(block.end for block in blocks),
    )


# What becomes of the program


def _rewritten(
    program: Program, blocks: Sequence[_Block], pools: Sequence[_Pool], products: Sequence[Expr]
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
            case ExternCall() | CondCall() | WhileCall():
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
    program: Program, blocks: Sequence[_Block], pools: Sequence[_Pool], products: Sequence[Expr]
) -> Expr | None:
    """The peak with pools: the pools' bytes, and those of what is allocated by itself, not rounded."""
    if program.peak_bytes is None:
        return None
    inside = {member.root.name for pool in pools for member in pool.members}
    events: dict[int, list[tuple[bool, Expr]]] = {}

    def add(start: int, end: int, size: Expr) -> None:
        events.setdefault(start, []).append((True, size))
        events.setdefault(end, []).append((False, size))

    for block in blocks:
        if block.root.name not in inside:
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
