"""The order of steps: dependences first, then low peak memory.

Greedy list scheduling: among the steps that may run, one that frees more than it allocates goes first, the best such
one; otherwise the one that comes first in the graph. The result is kept only if its peak is lower than that of the
graph's own order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One step to come.

    Attributes:
        position: place in the graph.
        before: indices of units that must run earlier.
        allocates: roots of fresh memory it defines, with their bytes.
        touches: roots of memory of ours that it reads or writes.
        begins: what it allocates, others go on to fill. They need all of it, whichever comes first.
    """

    position: int
    before: tuple[int, ...]
    allocates: tuple[tuple[str, int], ...]
    touches: tuple[str, ...]
    begins: bool = False


def order(units: Sequence[Unit], kept: frozenset[str]) -> tuple[int, ...]:
    """Indices of `units` in the order to run them; memory of the roots in `kept` is never freed."""
    sizes = {root: size for unit in units for root, size in unit.allocates}
    plain = _list_schedule(units, sizes, kept, greedy=False)
    greedy = _list_schedule(units, sizes, kept, greedy=True)
    return greedy if _peak(units, greedy, kept) < _peak(units, plain, kept) else plain


def _peak(units: Sequence[Unit], sequence: Sequence[int], kept: frozenset[str]) -> int:
    return max(live_bytes(units, sequence, kept), default=0)


def _users(units: Sequence[Unit], sizes: Mapping[str, int]) -> dict[str, list[int]]:
    users: dict[str, list[int]] = {root: [] for root in sizes}
    for index, unit in enumerate(units):
        for root in unit.touches:
            if root in users:
                users[root].append(index)
    return users


def _list_schedule(
    units: Sequence[Unit], sizes: Mapping[str, int], kept: frozenset[str], *, greedy: bool
) -> tuple[int, ...]:
    users = _users(units, sizes)
    open_users = {root: len(found) for root, found in users.items()}
    after: list[list[int]] = [[] for _ in units]
    missing = [len(unit.before) for unit in units]
    for index, unit in enumerate(units):
        for earlier in unit.before:
            after[earlier].append(index)

    def growth(index: int) -> int:
        unit = units[index]
        freed = sum(sizes[r] for r in unit.touches if open_users.get(r) == 1 and r not in kept)
        grown = 0 if unit.begins else sum(size for _, size in unit.allocates)
        return min(grown - freed, 0) if greedy else 0

    heap: list[tuple[int, int, int]] = []
    ready = [count == 0 for count in missing]
    done = [False] * len(units)
    for index, unit in enumerate(units):
        if ready[index]:
            heappush(heap, (growth(index), unit.position, index))
    result: list[int] = []
    while heap:
        _, _, index = heappop(heap)
        if done[index]:
            continue
        done[index] = True
        result.append(index)
        for root in units[index].touches:
            if root not in open_users:
                continue
            open_users[root] -= 1
            if greedy and open_users[root] == 1 and root not in kept:
                # its last user has become cheaper; the older entry in the heap is skipped when it comes up
                for other in users[root]:
                    if ready[other] and not done[other]:
                        heappush(heap, (growth(other), units[other].position, other))
        for later in after[index]:
            missing[later] -= 1
            if missing[later] == 0:
                ready[later] = True
                heappush(heap, (growth(later), units[later].position, later))
    return tuple(result)


def live_bytes(units: Sequence[Unit], sequence: Sequence[int], kept: frozenset[str]) -> list[int]:
    """Bytes of ours that are alive at each step of `sequence`, what the step allocates and what it is last to need included."""
    sizes = {root: size for unit in units for root, size in unit.allocates}
    open_users = {root: len(found) for root, found in _users(units, sizes).items()}
    found: list[int] = []
    live = 0
    for index in sequence:
        unit = units[index]
        live += sum(size for _, size in unit.allocates)
        found.append(live)
        for root in unit.touches:
            if root in open_users:
                open_users[root] -= 1
                if open_users[root] == 0 and root not in kept:
                    live -= sizes[root]
    return found
