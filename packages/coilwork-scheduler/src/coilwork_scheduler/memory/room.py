"""How much memory there is at each instruction, and how much there may be, while pools are looked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_scheduler.memory.blocks import Block, Bytes

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


class Room:
    """Bytes alive at each instruction, pools included, and how many there may be; and how many placements may
    be tried.
    """

    def __init__(self, blocks: Sequence[Block], length: int, width: int, slack_bytes: int) -> None:
        self.live = profile(blocks, length, width)
        self.placements = max(FEWEST_PLACEMENTS, PLACEMENTS_EACH * len(blocks))
        largest = _largest(self.live)
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
            if not any(_within(there, peak) for peak in self._most):
                found.append(at)
        return found

    def beside(self, members: Sequence[Block]) -> list[int]:
        """How much a pool for `members`, all of one product, may take at each instruction from the first's
        start to the last's end.

        In multiples of that product.
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
        """`pool` it is."""
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


def _within(one: Bytes, other: Bytes) -> bool:
    """Tell if `one` is at most `other`, whatever the sizes are."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def _largest(totals: Sequence[Bytes]) -> list[Bytes]:
    """Return those that none of the others contains."""
    found: list[Bytes] = []
    for total in sorted(set(totals), reverse=True):
        if not any(_within(total, other) for other in found):
            found.append(total)
    return found[:MOST_PRODUCTS]
