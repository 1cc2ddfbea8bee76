"""Offsets for pieces of memory that are alive at different times, in as few bytes as a fast method finds.

Two methods, the better result of which counts: best fit in the order of time, as allocators work, and greedy
by size (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020), which is
quadratic and so is tried for few pieces only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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
    """Offsets such that no two pieces that are alive at once overlap. Sums of sizes are offsets, so alignment
    is kept.
    """
    in_time = best_fit(intervals)
    if len(intervals) > MOST_BY_SIZE or in_time.size == most_alive(intervals):
        return in_time
    by_size = greedy_by_size(intervals)
    return by_size if by_size.size < in_time.size else in_time


def most_alive(intervals: Sequence[Interval]) -> int:
    """The largest sum of sizes at a time, which no placement can undercut."""
    changes = sorted(
        [(one.end, -one.size) for one in intervals] + [(one.start, one.size) for one in intervals]
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def pack_below(limit: int, intervals: Sequence[Interval]) -> dict[int, int]:
    """As `pack`, in `limit` units: offsets by number, of as many units as possible. What is missing found no
    place.
    """
    in_time = best_fit_below(limit, intervals)
    if len(intervals) > MOST_BY_SIZE_BELOW or len(in_time) == len(intervals):
        return in_time
    by_size = greedy_by_size_below(limit, intervals)
    return max(in_time, by_size, key=lambda placed: sum(intervals[k].size for k in placed))


def best_fit(intervals: Sequence[Interval]) -> Placement:
    """Each piece, when it comes to life, into the smallest hole that takes it; at the end if none does."""
    return _whole(intervals, best_fit_below(sum(one.size for one in intervals), intervals))


def _whole(intervals: Sequence[Interval], offsets: Mapping[int, int]) -> Placement:
    size = max((offset + intervals[k].size for k, offset in offsets.items()), default=0)
    return Placement(offsets=tuple(offsets[k] for k in range(len(intervals))), size=size)


def best_fit_below(limit: int, intervals: Sequence[Interval]) -> dict[int, int]:
    """`best_fit` in `limit` units: offsets by number, without the pieces that found no place when they came
    to life.
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


def greedy_by_size(intervals: Sequence[Interval]) -> Placement:
    """Large pieces first, each into the smallest gap between those that are alive at the same time."""
    return _whole(intervals, greedy_by_size_below(sum(one.size for one in intervals), intervals))


def greedy_by_size_below(limit: int, intervals: Sequence[Interval]) -> dict[int, int]:
    """`greedy_by_size` in `limit` units: offsets by number, without the pieces that found no place."""
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
