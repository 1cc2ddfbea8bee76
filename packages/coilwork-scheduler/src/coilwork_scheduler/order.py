"""Order the steps of a schedule: dependences first, then low peak memory.

Greedy list scheduling: of the ready steps the one that frees most beyond what it allocates goes first, and
otherwise the one that comes first in the graph. Waiting for an operator counts as freeing nothing. A view
goes before all, so that what reads it may run. Inputs that the caller gives away count as memory that can be
freed. The result is kept only if its peak is lower than that of the graph's own order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

# Less than what any step frees.
_AT_ONCE: Final = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingUnit:
    """One step to come.

    Attributes:
        position: place in the graph.
        before: indices of units that must run earlier.
        allocates: roots of fresh memory it defines, with their bytes.
        touches: roots of memory of ours, or given to us, that it reads or writes.
        begins: other units fill the rest of what it allocates; all of it is needed from the first of them on.
        is_view: it is a view of memory, which neither takes nor frees any.
        waits: it waits for an operator that runs meanwhile, so it goes before nothing that stands before it
            in the graph.
        in_place: pairs of a root that it allocates and one whose memory that can be, should nobody need it
            any more.
    """

    position: int
    before: tuple[int, ...]
    allocates: tuple[tuple[str, int], ...]
    touches: tuple[str, ...]
    begins: bool = False
    is_view: bool = False
    waits: bool = False
    in_place: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalMemory:
    """Memory that lives before the first unit or after the last.

    Attributes:
        kept: roots that are never freed.
        given: roots that are there from the beginning and freed when nobody needs them any more, with their
            bytes.
    """

    kept: frozenset[str] = frozenset()
    given: Mapping[str, int] = field(default_factory=dict)


def order_units(units: Sequence[SchedulingUnit], external: ExternalMemory) -> tuple[int, ...]:
    """Indices of `units` in the order to run them."""
    sizes = _sizes(units, external)
    plain = _list_schedule(units, sizes, external.kept, greedy=False)
    greedy = _list_schedule(units, sizes, external.kept, greedy=True)
    return greedy if _peak(units, greedy, external) < _peak(units, plain, external) else plain


def _peak(units: Sequence[SchedulingUnit], sequence: Sequence[int], external: ExternalMemory) -> int:
    return max(count_live_bytes(units, sequence, external), default=0)


def _sizes(units: Sequence[SchedulingUnit], external: ExternalMemory) -> dict[str, int]:
    return {**external.given, **{root: size for unit in units for root, size in unit.allocates}}


def _users(units: Sequence[SchedulingUnit], sizes: Mapping[str, int]) -> dict[str, list[int]]:
    users: dict[str, list[int]] = {root: [] for root in sizes}
    for index, unit in enumerate(units):
        for root in unit.touches:
            if root in users:
                users[root].append(index)
    return users


def _list_schedule(
    units: Sequence[SchedulingUnit], sizes: Mapping[str, int], kept: frozenset[str], *, greedy: bool
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
        if greedy and unit.is_view:
            return _AT_ONCE
        if unit.waits:
            return 0
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


def count_live_bytes(
    units: Sequence[SchedulingUnit], sequence: Sequence[int], external: ExternalMemory
) -> list[int]:
    """Return the bytes alive at each step of `sequence`, with what the step allocates and what dies in it.

    What it allocates in the place of the latter counts once.
    """
    sizes = _sizes(units, external)
    open_users = {root: len(found) for root, found in _users(units, sizes).items()}
    found: list[int] = []
    live = sum(external.given.values())
    for index in sequence:
        unit = units[index]
        live += sum(size for _, size in unit.allocates)
        over: dict[str, str] = {}
        for new, old in unit.in_place:
            dies = open_users.get(old) == 1 and old not in external.kept and old not in over.values()
            if dies and new not in over and sizes.get(new) == sizes[old]:
                over[new] = old
        found.append(live - sum(sizes[new] for new in over))
        for root in unit.touches:
            if root in open_users:
                open_users[root] -= 1
                if open_users[root] == 0 and root not in external.kept:
                    live -= sizes[root]
    return found
