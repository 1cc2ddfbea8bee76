"""Offsets for pieces of memory: none overlap, and few bytes are lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from random import Random

import pytest

from coilwork_scheduler.memory.blocks import (
    Interval,
    Placement,
    find_peak,
    pack,
    place_best_fit,
    place_by_size,
)


def intervals(seed: int, count: int) -> list[Interval]:
    rng = Random(seed)
    made = []
    for _ in range(count):
        start = rng.randrange(60)
        made.append(Interval(start, start + rng.randrange(1, 12), 64 * rng.choice((1, 2, 3, 8, 40))))
    return made


@pytest.mark.parametrize("method", [place_best_fit, place_by_size, pack])
@pytest.mark.parametrize("seed", range(30))
def test_nothing_overlaps(method: Callable[[list[Interval]], Placement], seed: int) -> None:
    pieces = intervals(seed, 2 + 3 * seed)
    placed = method(pieces)
    for (one, at), (other, beside) in combinations(zip(pieces, placed.offsets, strict=True), 2):
        if one.start < other.end and other.start < one.end:
            assert at + one.size <= beside or beside + other.size <= at
    assert placed.size == max(at + one.size for one, at in zip(pieces, placed.offsets, strict=True))
    assert all(offset % 64 == 0 for offset in placed.offsets)
    assert find_peak(pieces) <= placed.size


def test_little_is_lost() -> None:
    lost = [pack(intervals(seed, 60)).size / find_peak(intervals(seed, 60)) for seed in range(20)]
    assert sum(lost) / len(lost) < 1.08


def test_what_follows_takes_the_same_place() -> None:
    placed = pack([Interval(k, k + 1, 640) for k in range(1000)])
    assert placed.size == 640 and set(placed.offsets) == {0}


def test_a_hole_at_the_end_grows() -> None:
    placed = place_best_fit([Interval(0, 2, 64), Interval(0, 1, 64), Interval(1, 2, 192)])
    assert placed.offsets == (0, 64, 64) and placed.size == 256


def test_of_many_pieces_the_time_is_bounded() -> None:
    placed = pack([Interval(k, k + 7, 64 * (1 + k % 5)) for k in range(20_000)])
    assert placed.size <= 64 * 5 * 7 * 2
