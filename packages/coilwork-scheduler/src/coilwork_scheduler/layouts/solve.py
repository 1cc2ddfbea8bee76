"""Choose one candidate per variable so that a sum of costs over few variables each is least.

Variables are eliminated one by one, those with the smallest tables first: exact, and linear on chains and
trees. Where a table would be too large, a variable that many costs know is held at its first candidate.
Afterwards held variables are tried at their other candidates, with everything else chosen anew, while the
graph is small enough for that, and at last every variable alone. Equal inputs give equal choices, and the
first candidate wins where costs are equal.

Layers of a model are equal. So tables that hold equal costs share a number, and what is left of equal
tables when a variable is gone is computed once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from math import prod
from operator import add
from typing import Final, NamedTuple, TypeAlias

MOST_ENTRIES: Final = 4096
# held variables that are tried at their other candidates, and terms that all trials look at
_TRIED: Final = 8
_TRIED_TERMS: Final = 40_000
_SWEEPS: Final = 8


@dataclass(frozen=True, slots=True)
class Term:
    """A cost of the candidates of the distinct variables `scope`, a whole number: comparison is exact.

    Terms of one `form`, if it is not None, cost the same with the same candidates.
    """

    scope: tuple[int, ...]
    cost: Callable[[tuple[int, ...]], int]
    form: Hashable = None


def compute_total_cost(terms: Sequence[Term], choice: Sequence[int]) -> int:
    """Return the cost of `choice`."""
    return sum(term.cost(tuple(choice[v] for v in term.scope)) for term in terms)


def choose_cheapest(
    counts: Sequence[int], terms: Sequence[Term], *, most_entries: int = MOST_ENTRIES
) -> tuple[int, ...]:
    """Choose one of `counts[v]` candidates for each variable `v`: the cheapest, if none had to be held.

    Args:
        counts: candidates per variable, at least one each.
        terms: the costs.
        most_entries: of one table.
    """
    held: dict[int, int] = {}
    known = _Memo()
    best = _eliminate(counts, terms, held, most_entries, known)
    if not held:
        return best
    least = compute_total_cost(terms, best)
    trials = _TRIED_TERMS // max(1, len(terms))
    for variable in sorted(held)[:_TRIED]:
        for candidate in range(counts[variable]):
            if candidate == held[variable] or trials <= 0:
                continue
            trials -= 1
            trial = {**held, variable: candidate}
            found = _eliminate(counts, terms, trial, most_entries, known)
            cost = compute_total_cost(terms, found)
            if cost < least:
                best, least, held = found, cost, {name: found[name] for name in held}
    return _improve_alone(counts, terms, best)


class _Costs(NamedTuple):
    """Costs in the order of their candidates, the last variable's fastest, and their number in common."""

    number: int
    values: tuple[int, ...]


class _Table(NamedTuple):
    """Costs by the candidates of `scope`, in order."""

    scope: tuple[int, ...]
    costs: _Costs


class _Removal(NamedTuple):
    """Costs by the candidates of a removed variable's neighbours, and its cheapest candidates for them."""

    costs: _Costs
    cheapest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Memo:
    """Results that equal terms and tables share."""

    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    tables: dict[tuple[object, ...], _Costs] = field(default_factory=dict)
    removals: dict[tuple[object, ...], _Removal] = field(default_factory=dict)
    entries: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = field(default_factory=dict)

    def list_entries(self, sizes: tuple[int, ...], where: tuple[int, ...]) -> list[int]:
        """List, for all candidates of variables that have `sizes` of them, the last one's fastest, the entry
        of a table over the variables `where`.
        """
        entries = self.entries.get((sizes, where))
        if entries is None:
            steps = [0] * len(sizes)
            step = 1
            for place in reversed(where):
                steps[place] = step
                step *= sizes[place]
            entries = [0]
            for size, step in zip(sizes, steps, strict=True):
                entries = [e + k * step for e in entries for k in range(size)]
            self.entries[sizes, where] = entries
        return entries

    def number(self, values: tuple[int, ...]) -> _Costs:
        """`values` with their number."""
        return _Costs(self.numbers.setdefault(values, len(self.numbers)), values)


class _Elimination:
    """The tables that are left while variables are removed one by one."""

    def __init__(
        self, counts: Sequence[int], tables: Sequence[_Table], held: Mapping[int, int], known: _Memo
    ) -> None:
        self.counts = counts
        self.tables = dict(enumerate(tables))
        self.known = known
        self.next = len(self.tables)
        self.tables_of: dict[int, set[int]] = {v: set() for v in range(len(counts)) if v not in held}
        for number, table in self.tables.items():
            for variable in table.scope:
                self.tables_of[variable].add(number)

    def neighbours(self, variable: int) -> tuple[int, ...]:
        """Variables that share a table with `variable`, in order."""
        known: set[int] = set()
        for number in self.tables_of[variable]:
            known.update(self.tables[number].scope)
        known.discard(variable)
        return tuple(sorted(known))

    def size(self, variable: int) -> int:
        """Entries of the table that replaces those of `variable`, itself counted."""
        counts = self.counts
        return counts[variable] * prod([counts[v] for v in self.neighbours(variable)])

    def hold(self, variable: int, candidate: int) -> tuple[int, ...]:
        """Give `variable` a candidate: its neighbours, whose tables are smaller now."""
        scope = self.neighbours(variable)
        for number in sorted(self.tables_of.pop(variable)):
            table = self.tables[number]
            place = table.scope.index(variable)
            inner = prod([self.counts[v] for v in table.scope[place + 1 :]])
            count, values = self.counts[variable], table.costs.values
            kept = [
                values[start : start + inner]
                for start in range(candidate * inner, len(values), count * inner)
            ]
            rest = (*table.scope[:place], *table.scope[place + 1 :])
            self.tables[number] = _Table(rest, self.known.number(tuple(chain.from_iterable(kept))))
        return scope

    def remove(self, variable: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Eliminate `variable`: its neighbours, and its cheapest candidates for each of theirs."""
        scope = self.neighbours(variable)
        numbers = sorted(self.tables_of.pop(variable))
        gone = [self.tables.pop(number) for number in numbers]
        places = {v: k for k, v in enumerate((*scope, variable))}
        parts = tuple([(tuple([places[v] for v in table.scope]), table.costs) for table in gone])
        sizes = tuple([self.counts[v] for v in places])
        key = (sizes, tuple([(where, costs.number) for where, costs in parts]))
        left = self.known.removals.get(key)
        if left is None:
            left = self.known.removals[key] = _remove_last(sizes, parts, self.known)
        for number, table in zip(numbers, gone, strict=True):
            for other in table.scope:
                if other != variable:
                    self.tables_of[other].discard(number)
        self.tables[self.next] = _Table(scope, left.costs)
        for other in scope:
            self.tables_of[other].add(self.next)
        self.next += 1
        return scope, left.cheapest


def _remove_last(
    sizes: tuple[int, ...], parts: Sequence[tuple[tuple[int, ...], _Costs]], known: _Memo
) -> _Removal:
    """Return what is left of the tables `parts` without the last of the variables that have `sizes`
    candidates.
    """
    sums: Sequence[int] = [0] * prod(sizes)
    for where, costs in parts:
        if len(where) == len(sizes) and where == tuple(range(len(sizes))):
            spread: Iterable[int] = costs.values
        else:
            spread = map(costs.values.__getitem__, known.list_entries(sizes, where))
        sums = list(map(add, sums, spread))
    count = sizes[-1]
    if count == 1:
        return _Removal(known.number(tuple(sums)), (0,) * len(sums))
    rows = list(zip(*(sums[k::count] for k in range(count)), strict=True))
    least = tuple(map(min, rows))
    cheapest = tuple(map(tuple.index, rows, least))
    return _Removal(known.number(least), cheapest)


def _eliminate(
    counts: Sequence[int], terms: Sequence[Term], held: dict[int, int], most_entries: int, known: _Memo
) -> tuple[int, ...]:
    """Return the cheapest candidates beside those of `held`, to which variables that have to be held are
    added.
    """
    known_by = [0] * len(counts)
    for term in terms:
        for variable in term.scope:
            known_by[variable] += 1
    for term in terms:
        _hold_some(term, counts, known_by, held, most_entries)
    tables = [_tabulate(term, counts, held, known) for term in terms]
    work = _Elimination(counts, tables, held, known)
    return _substitute_back(_remove_all(work, held, most_entries), counts, held)


_Order: TypeAlias = list[tuple[int, tuple[int, ...], tuple[int, ...]]]


def _remove_all(work: _Elimination, held: dict[int, int], most_entries: int) -> _Order:
    """Return the variables in the order in which they were eliminated, with what `remove` says.

    Where every table would be too large, a variable is held at its first candidate and added to `held`. What
    was eliminated before is known for each of its candidates.
    """
    heap = [(work.size(v), v) for v in work.tables_of]
    heapq.heapify(heap)
    order: _Order = []
    while heap:
        size, variable = heapq.heappop(heap)
        if variable not in work.tables_of:
            continue
        actual = work.size(variable)
        if actual != size:
            heapq.heappush(heap, (actual, variable))
            continue
        if size > most_entries:
            # of those around the smallest table, one that most others know parts them best
            around = (variable, *work.neighbours(variable))
            chosen = max(around, key=lambda v: (len(work.neighbours(v)), -v))
            held[chosen] = 0
            others = work.hold(chosen, 0)
            heapq.heappush(heap, (size, variable))
        else:
            others, cheapest = work.remove(variable)
            order.append((variable, others, cheapest))
        for other in others:
            heapq.heappush(heap, (work.size(other), other))
    return order


def _substitute_back(order: _Order, counts: Sequence[int], held: Mapping[int, int]) -> tuple[int, ...]:
    choice = dict(held)
    for variable, others, cheapest in reversed(order):
        entry = 0
        for other in others:
            entry = entry * counts[other] + choice[other]
        choice[variable] = cheapest[entry]
    return tuple(choice[v] for v in range(len(counts)))


def _hold_some(
    term: Term, counts: Sequence[int], known_by: Sequence[int], held: dict[int, int], most_entries: int
) -> None:
    """Hold variables of `term` until what is left of it fits in a table."""
    free = [v for v in term.scope if v not in held]
    while prod([counts[v] for v in free]) > most_entries:
        variable = max(free, key=lambda v: (known_by[v], -v))
        held[variable] = 0
        free.remove(variable)


def _tabulate(term: Term, counts: Sequence[int], held: Mapping[int, int], known: _Memo) -> _Table:
    scope = tuple(sorted([v for v in term.scope if v not in held]))
    given = tuple([(held.get(v, -1), counts[v], scope.index(v) if v in scope else -1) for v in term.scope])
    key = (term.form, given)
    found = None if term.form is None else known.tables.get(key)
    if found is None:
        values: list[int] = []
        for others in product(*(range(counts[v]) for v in scope)):
            choice = {**held, **dict(zip(scope, others, strict=True))}
            values.append(term.cost(tuple(choice[v] for v in term.scope)))
        found = known.number(tuple(values))
        if term.form is not None:
            known.tables[key] = found
    return _Table(scope, found)


def _improve_alone(counts: Sequence[int], terms: Sequence[Term], start: Sequence[int]) -> tuple[int, ...]:
    """`start` with each variable at the candidate that is cheapest beside the others, until none changes."""
    choice = list(start)
    terms_of: list[list[Term]] = [[] for _ in counts]
    for term in terms:
        for variable in term.scope:
            terms_of[variable].append(term)
    for _ in range(_SWEEPS):
        before = tuple(choice)
        for variable, count in enumerate(counts):
            costs = []
            for candidate in range(count):
                trial = choice.copy()
                trial[variable] = candidate
                costs.append(compute_total_cost(terms_of[variable], trial))
            if costs[choice[variable]] > min(costs):
                choice[variable] = costs.index(min(costs))
        if before == tuple(choice):
            break
    return tuple(choice)
