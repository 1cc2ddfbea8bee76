"""Blocks of memory with their lifetimes, and offsets for them in a pool.

A block is memory that a program allocates, from the instruction that defines it to the one that frees it.
`pack` places intervals in as few bytes as a fast method finds, the better of two: best fit in the order of
time, as allocators work, and greedy by size (Pisarchyk and Lee, Efficient Memory Management for Deep Neural
Net Inference, 2020), which is quadratic and so is tried for few pieces only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from coilwork_ir.buffers import Buffer, Ref, list_references
from coilwork_ir.index import Const, Expr, Mul, as_expr, get_node, multiply_all
from coilwork_ir.operators import find_target_info
from coilwork_ir.program.nodes import (
    Alloc,
    CondCall,
    ExternCall,
    Free,
    LoopCall,
    Program,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_scheduler.memory.liveness import StorageTable

# ---- Offsets ----


ALIGNMENT: Final = 64
MOST_BY_SIZE: Final = 128
MOST_BY_SIZE_BELOW: Final = 512


class Interval(NamedTuple):
    """A piece of `size` units, alive from `start` to before `end`."""

    start: int
    end: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An offset for each piece, and the size of the whole."""

    offsets: tuple[int, ...]
    size: int


def pack(intervals: Sequence[Interval]) -> Placement:
    """Place pieces so that none that are alive at once overlap.

    Sums of sizes are offsets, so alignment is kept.
    """
    in_time = place_best_fit(intervals)
    if len(intervals) > MOST_BY_SIZE or in_time.size == find_peak(intervals):
        return in_time
    by_size = place_by_size(intervals)
    return by_size if by_size.size < in_time.size else in_time


def find_peak(intervals: Sequence[Interval]) -> int:
    """Return the largest sum of sizes at a time, which no placement can undercut."""
    changes = sorted(
        [(one.end, -one.size) for one in intervals] + [(one.start, one.size) for one in intervals]
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def pack_below(limit: int, intervals: Sequence[Interval]) -> dict[int, int]:
    """Pack as many intervals as possible into `limit` units; return offsets by the intervals' numbers.

    Intervals that found no place are missing.
    """
    in_time = place_best_fit_below(limit, intervals)
    if len(intervals) > MOST_BY_SIZE_BELOW or len(in_time) == len(intervals):
        return in_time
    by_size = place_by_size_below(limit, intervals)
    return max(in_time, by_size, key=lambda placed: sum(intervals[k].size for k in placed))


def place_best_fit(intervals: Sequence[Interval]) -> Placement:
    """Each piece, when it comes to life, into the smallest hole that takes it; at the end if none does."""
    return _make_placement(intervals, place_best_fit_below(sum(one.size for one in intervals), intervals))


def _make_placement(intervals: Sequence[Interval], offsets: Mapping[int, int]) -> Placement:
    size = max((offset + intervals[k].size for k, offset in offsets.items()), default=0)
    return Placement(offsets=tuple(offsets[k] for k in range(len(intervals))), size=size)


def place_best_fit_below(limit: int, intervals: Sequence[Interval]) -> dict[int, int]:
    """`place_best_fit` in `limit` units: offsets by number, without the pieces that found no place when they
    came to life.
    """
    offsets: dict[int, int] = {}
    # holes by offset, none beside another; `top` is where nothing has ever been
    holes: dict[int, int] = {}
    ends: dict[int, int] = {}
    top = 0

    def give_back(offset: int, size: int) -> None:
        following = holes.pop(offset + size, 0)
        if following:
            del ends[offset + size + following]
        before = ends.pop(offset, None)
        start = offset if before is None else before
        holes[start] = offset + size + following - start
        ends[offset + size + following] = start

    def take(start: int, size: int) -> None:
        found = holes.pop(start)
        del ends[start + found]
        if found > size:
            holes[start + size] = found - size
            ends[start + found] = start + size

    # at equal times memory is given back before it is taken
    changes = sorted(
        [(one.end, 0, k) for k, one in enumerate(intervals)]
        + [(one.start, 1, k) for k, one in enumerate(intervals)]
    )
    for _, comes, k in changes:
        size = intervals[k].size
        if not comes:
            if k in offsets:
                give_back(offsets[k], size)
            continue
        fitting = [(found, start) for start, found in holes.items() if found >= size]
        if not fitting:
            last = ends.get(top)
            start = top if last is None else last
            if start + size > limit:
                continue
            if last is not None:
                take(last, holes[last])
            top = start + size
            offsets[k] = start
            continue
        _, offsets[k] = min(fitting)
        take(offsets[k], size)
    return offsets


def place_by_size(intervals: Sequence[Interval]) -> Placement:
    """Large pieces first, each into the smallest gap between those that are alive at the same time."""
    return _make_placement(intervals, place_by_size_below(sum(one.size for one in intervals), intervals))


def place_by_size_below(limit: int, intervals: Sequence[Interval]) -> dict[int, int]:
    """`place_by_size` in `limit` units: offsets by number, without the pieces that found no place."""
    offsets: dict[int, int] = {}
    for k in sorted(range(len(intervals)), key=lambda k: (-intervals[k].size, intervals[k].start)):
        one = intervals[k]
        beside = sorted(
            (offset, intervals[other].size)
            for other, offset in offsets.items()
            if intervals[other].start < one.end and one.start < intervals[other].end
        )
        best: tuple[int, int] | None = None
        at = 0
        for offset, other_size in beside:
            gap = offset - at
            if gap >= one.size and (best is None or gap < best[0]):
                best = (gap, at)
            at = max(at, offset + other_size)
        start = at if best is None else best[1]
        if start + one.size <= limit:
            offsets[k] = start
    return offsets


# ---- Blocks ----


Bytes: TypeAlias = tuple[int, ...]
"""Bytes as coefficients: how many times each of the products of sizes that occur in the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Memory that the program has, from the instruction that defines it to the one that frees it, which it is
    not alive in.

    Attributes:
        root: the buffer that is allocated.
        size: as the peak counts it.
        product: number of the product that a member's size is a multiple of; -1 for what is no candidate.
        given: the caller allocated it and gives it away: it is there from the beginning, and no part of the
            program's peak.
    """

    root: Buffer
    start: int
    end: int
    size: Bytes
    product: int
    given: bool = False

    @property
    def device(self) -> str:
        """Return where it is."""
        return self.root.device


def list_blocks(program: Program, table: StorageTable, products: dict[Expr, int]) -> list[Block]:
    """List all memory that `program` comes to have, in order of definition, and fill `products`.

    What the program is given comes first.
    """
    groups = _Groups(len(table.storages))
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    allocated: set[int] = set()
    for number, instruction in enumerate(program.instructions):
        match instruction:
            case Alloc(buffer=buffer):
                starts[table.positions[buffer.name]] = number
                allocated.add(table.positions[buffer.name])
            case Reuse(buffer=buffer, source=source) | Reinterpret(buffer=buffer, source=source):
                groups.join(table.positions[source], table.positions[buffer.name])
            case ExternCall() | CondCall() | LoopCall() | SubprogramCall():
                for output in instruction.outputs:
                    if isinstance(output, Buffer):
                        starts.setdefault(table.positions[output.name], number)
            case Free(names=names):
                # the last one counts: an input whose memory a result took over is freed by name only
                for name in names:
                    ends[groups.first(table.positions[name])] = number
            case Return(values=values):
                for value in values:
                    if isinstance(value, Ref):
                        ends.pop(groups.first(table.positions[value.name]), None)
            case _:
                pass
    kept = _find_escaping(program, table)
    outside = {groups.first(position) for position in kept}
    given = {
        groups.first(p) for p, s in enumerate(table.storages) if s.owner in ("input", "donated", "constant")
    }
    made = [
        Block(
            root=storage.root,
            start=0,
            end=ends.get(position, len(program.instructions)),
            size=_size(storage.size_bytes, products)[0],
            product=-1,
            given=True,
        )
        for position, storage in enumerate(table.storages)
        if storage.owner == "donated"
    ]
    for position, start in sorted(starts.items(), key=lambda item: item[1]):
        if groups.first(position) != position or position in given:
            continue
        end = ends.get(position, len(program.instructions))
        size, which = _size(table.storages[position].size_bytes, products)
        free = position in allocated and position not in outside and position in ends
        made.append(
            Block(
                root=table.storages[position].root,
                start=start,
                end=end,
                size=size,
                product=which if free else -1,
            )
        )
    return made


def _find_escaping(program: Program, table: StorageTable) -> frozenset[int]:
    """Find storages that are returned, or that an operator might keep or counts from the start of.

    Results of ATen's operators that share an operand's memory are known (`Extern.aliases`), and belong to its
    storage.
    """
    names: list[str] = []
    for instruction in program.instructions:
        if isinstance(instruction, ExternCall) and (
            instruction.in_flight or not _takes_any_memory(instruction.target)
        ):
            given = (*instruction.args, *(value for _, value in instruction.kwargs))
            names += [name for value in given for name in list_references(value)]
            names += [name for _, name in instruction.out]
        if isinstance(instruction, Return):
            names += [value.name for value in instruction.values if isinstance(value, Ref)]
    retained = (position for position, storage in enumerate(table.storages) if storage.retained)
    return frozenset((*(table.positions[name] for name in names), *retained))


def _takes_any_memory(target: str) -> bool:
    return target.startswith("aten.") and not find_target_info(target).counts_from_storage


class _Groups:
    """Storages whose memory was handed on from one to the other; the first to have it stands for them."""

    def __init__(self, count: int) -> None:
        self._before = list(range(count))

    def first(self, position: int) -> int:
        """Return the storage that had the memory first."""
        while self._before[position] != position:
            self._before[position] = self._before[self._before[position]]
            position = self._before[position]
        return position

    def join(self, source: int, position: int) -> None:
        """`position` has the memory of `source` now."""
        if source != position:
            self._before[self.first(position)] = self.first(source)


def _size(size_bytes: Expr, products: dict[Expr, int]) -> tuple[Bytes, int]:
    """Return the coefficients of a size, and the number of its product if a member of a pool may have such a
    size, else -1.
    """
    factor, of = _split(size_bytes)
    number = products.setdefault(of, len(products))
    if number == 0:
        factor = -(-factor // ALIGNMENT) * ALIGNMENT
    places = factor > 0 and factor % ALIGNMENT == 0
    return (0,) * number + (factor,), number if places else -1


def _split(size: Expr) -> tuple[int, Expr]:
    """`size` as a number times an expression; 1 times itself if it is no product."""
    match get_node(size):
        case Const(value):
            return value, as_expr(1)
        case Mul((first, *rest)):
            match get_node(first):
                case Const(value) if value > 0:
                    return value, multiply_all(rest)
    return 1, size
