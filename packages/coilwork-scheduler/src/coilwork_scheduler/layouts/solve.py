"""Choose one candidate per variable so that a sum of costs over few variables each is least.

Variables are eliminated one by one, those with the smallest tables first: exact, and linear on chains and trees. Where a table would be
too large, a variable that many costs know is held at one candidate; afterwards each held variable is tried at its other candidates, with
everything else chosen anew, and at last every variable alone. Equal inputs give equal choices, and the first candidate wins where costs are equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

MOST_ENTRIES: Final = 4096
# held variables that are tried at their other candidates
_TRIED: Final = 8
_SWEEPS: Final = 8


@dataclass(frozen=True, slots=True)
class Term:
    """A cost of the candidates of the variables `scope`, which are distinct: a whole number for exact comparison."""

    scope: tuple[int, ...]
    cost: Callable[[tuple[int, ...]], int]


def total_cost(terms: Sequence[Term], choice: Sequence[int]) -> int:
    """The cost of `choice`."""
    return sum(term.cost(tuple(choice[v] for v in term.scope)) for term in terms)


def choose_cheapest(
    counts: Sequence[int], terms: Sequence[Term], *, most_entries: int = MOST_ENTRIES
) -> tuple[int, ...]:
    """One candidate for each variable, of which variable `v` has `counts[v]`: the cheapest ones if no variable had to be held.

    Args:
        counts: candidates per variable, at least one each.
        terms: the costs.
        most_entries: of one table.
    """
    held: dict[int, int] = {}
    best = _eliminate(counts, terms, held, most_entries)
    if not held:
        return best
    least = total_cost(terms, best)
    for variable in sorted(held)[:_TRIED]:
        for candidate in range(counts[variable]):
            if candidate == held[variable]:
                continue
            trial = {**held, variable: candidate}
            found = _eliminate(counts, terms, trial, most_entries)
            cost = total_cost(terms, found)
            if cost < least:
                best, least, held = found, cost, {name: found[name] for name in held}
    return _improve_alone(counts, terms, best)


@dataclass(frozen=True, slots=True)
class _Table:
    """Costs by the candidates of `scope`, in order."""

    scope: tuple[int, ...]
    costs: Mapping[tuple[int, ...], int]


class _Elimination:
    """Tables that are left, and for each variable that is gone the tables that knew it."""

    def __init__(self, counts: Sequence[int], tables: Sequence[_Table], held: Mapping[int, int]) -> None:
        self.counts = counts
        self.tables = dict(enumerate(tables))
        self.held = held
        self.next = len(self.tables)
        self.of: dict[int, set[int]] = {v: set() for v in range(len(counts)) if v not in held}
        for number, table in self.tables.items():
            for variable in table.scope:
                self.of[variable].add(number)

    def neighbours(self, variable: int) -> tuple[int, ...]:
        """Variables that share a table with `variable`, in order."""
        known = {other for number in self.of[variable] for other in self.tables[number].scope}
        return tuple(sorted(known - {variable}))

    def size(self, variable: int) -> int:
        """Entries of the table that replaces those of `variable`, itself counted."""
        return prod(self.counts[v] for v in (variable, *self.neighbours(variable)))

    def remove(self, variable: int) -> tuple[int, list[_Table]]:
        """Eliminate `variable`: the variable, and the tables that it was in."""
        numbers = sorted(self.of.pop(variable))
        gone = [self.tables[number] for number in numbers]
        scope = tuple(sorted({v for table in gone for v in table.scope} - {variable}))
        costs: dict[tuple[int, ...], int] = {}
        for others in product(*(range(self.counts[v]) for v in scope)):
            chosen = dict(zip(scope, others, strict=True))
            costs[others] = min(
                _sum_tables(gone, {**chosen, variable: candidate})
                for candidate in range(self.counts[variable])
            )
        for number, table in zip(numbers, gone, strict=True):
            del self.tables[number]
            for other in table.scope:
                if other != variable:
                    self.of[other].discard(number)
        self.tables[self.next] = _Table(scope, costs)
        for other in scope:
            self.of[other].add(self.next)
        self.next += 1
        return variable, gone


def _eliminate(
    counts: Sequence[int], terms: Sequence[Term], held: dict[int, int], most_entries: int
) -> tuple[int, ...]:
    """The cheapest candidates, those of `held` given; variables that have to be held as well are added to it."""
    known_by = [0] * len(counts)
    for term in terms:
        for variable in term.scope:
            known_by[variable] += 1
    while True:
        for term in terms:
            _hold_some(term, counts, known_by, held, most_entries)
        work = _Elimination(counts, [_tabulate(term, counts, held) for term in terms], held)
        order = _remove_all(work, most_entries)
        if order is not None:
            return _substitute_back(order, len(counts), counts, held)
        # one that most terms know parts them best
        variable = max(work.of, key=lambda v: (len(work.neighbours(v)), -v))
        held[variable] = 0


def _remove_all(work: _Elimination, most_entries: int) -> list[tuple[int, list[_Table]]] | None:
    """The variables in the order in which they were eliminated, with their tables; None if a table would be too large."""
    heap = [(work.size(v), v) for v in work.of]
    heapq.heapify(heap)
    order: list[tuple[int, list[_Table]]] = []
    while heap:
        size, variable = heapq.heappop(heap)
        if variable not in work.of:
            continue
        actual = work.size(variable)
        if actual != size:
            heapq.heappush(heap, (actual, variable))
            continue
        if size > most_entries:
            return None
        others = work.neighbours(variable)
        order.append(work.remove(variable))
        for other in others:
            heapq.heappush(heap, (work.size(other), other))
    return order


def _substitute_back(
    order: Sequence[tuple[int, list[_Table]]], count: int, counts: Sequence[int], held: Mapping[int, int]
) -> tuple[int, ...]:
    choice = dict(held)
    for variable, tables in reversed(order):
        costs = [_sum_tables(tables, {**choice, variable: c}) for c in range(counts[variable])]
        choice[variable] = costs.index(min(costs))
    return tuple(choice[v] for v in range(count))


def _sum_tables(tables: Sequence[_Table], choice: Mapping[int, int]) -> int:
    return sum(table.costs[tuple(choice[v] for v in table.scope)] for table in tables)


def _hold_some(
    term: Term, counts: Sequence[int], known_by: Sequence[int], held: dict[int, int], most_entries: int
) -> None:
    """Hold variables of `term` until what is left of it fits in a table."""
    free = [v for v in term.scope if v not in held]
    while prod(counts[v] for v in free) > most_entries:
        variable = max(free, key=lambda v: (known_by[v], -v))
        held[variable] = 0
        free.remove(variable)


def _tabulate(term: Term, counts: Sequence[int], held: Mapping[int, int]) -> _Table:
    scope = tuple(sorted(v for v in term.scope if v not in held))
    costs: dict[tuple[int, ...], int] = {}
    for others in product(*(range(counts[v]) for v in scope)):
        choice = {**held, **dict(zip(scope, others, strict=True))}
        costs[others] = term.cost(tuple(choice[v] for v in term.scope))
    return _Table(scope, costs)


def _improve_alone(counts: Sequence[int], terms: Sequence[Term], start: Sequence[int]) -> tuple[int, ...]:
    """`start` with each variable at the candidate that is cheapest beside the others, until none changes."""
    choice = list(start)
    of: list[list[Term]] = [[] for _ in counts]
    for term in terms:
        for variable in term.scope:
            of[variable].append(term)
    for _ in range(_SWEEPS):
        before = tuple(choice)
        for variable, count in enumerate(counts):
            costs = []
            for candidate in range(count):
                trial = choice.copy()
                trial[variable] = candidate
                costs.append(total_cost(of[variable], trial))
            if costs[choice[variable]] > min(costs):
                choice[variable] = costs.index(min(costs))
        if before == tuple(choice):
            break
    return tuple(choice)
