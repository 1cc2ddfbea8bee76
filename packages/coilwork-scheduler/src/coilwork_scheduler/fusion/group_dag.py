"""The graph of groups under merging: keeps a topological order, refuses cycles.

Source: the bounded two-way search of Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed
Acyclic Graphs", JEA 2006, applied to contraction: merging two groups is legal if no path leads from one to
the other through a third, and only what lies between them in the order has to move.
"""

from __future__ import annotations

from collections.abc import Sequence


class GroupDag:
    """Groups by number; a merged group goes by the number of its first part."""

    def __init__(self, before: Sequence[Sequence[int]], limit: int) -> None:
        self._before: list[set[int]] = [set(b) for b in before]
        self._after: list[set[int]] = [set() for _ in before]
        for node, earlier in enumerate(before):
            for other in earlier:
                self._after[other].add(node)
        self._order = list(range(len(before)))
        self._parent = list(range(len(before)))
        self._limit = limit

    def find(self, node: int) -> int:
        """The group that `node` is part of."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def order(self, group: int) -> int:
        """Its place in the order kept."""
        return self._order[group]

    def mergeable(self, one: int, other: int) -> bool:
        """False if merging the two would make a cycle, or might."""
        first, second = sorted((one, other), key=self._order.__getitem__)
        return self._between(first, second) is not None

    def merge(self, one: int, other: int) -> int | None:
        """Merge two groups and return the number of the result; `None` if that makes a cycle, or might."""
        first, second = sorted((one, other), key=self._order.__getitem__)
        between = self._between(first, second)
        if between is None:
            return None
        later, earlier = between
        slots = sorted(self._order[n] for n in (first, second, *later, *earlier))
        sequence = [*sorted(earlier, key=self._order.__getitem__), min(first, second)]
        sequence += sorted(later, key=self._order.__getitem__)
        kept, gone = min(first, second), max(first, second)
        for slot, node in zip(slots, sequence, strict=False):
            self._order[node] = slot
        self._parent[gone] = kept
        for table in (self._before, self._after):
            if len(table[gone]) > len(table[kept]):
                table[kept], table[gone] = table[gone], table[kept]
            table[kept] |= table[gone]
            table[gone] = set()
            table[kept] -= {kept, gone}
        return kept

    def _between(self, first: int, second: int) -> tuple[set[int], set[int]] | None:
        """Groups that must move behind and before the merged one; `None` if there is a path through a third
        group.
        """
        later = self._reach(first, second, self._after, forward=True)
        if later is None:
            return None
        earlier = self._reach(second, first, self._before, forward=False)
        return None if earlier is None else (later, earlier)

    def _reach(self, start: int, goal: int, edges: list[set[int]], *, forward: bool) -> set[int] | None:
        """Groups between `start` and `goal` that a path from `start` leads to; `None` if one leads on to
        `goal`.
        """
        bound = self._order[goal]
        seen: set[int] = set()
        stack = [start]
        while stack:
            node = stack.pop()
            # the direction of the search decides nothing but which nodes are met first: sets may be iterated
            for raw in edges[node]:
                other = self.find(raw)
                if other in (start, node) or other in seen:
                    continue
                if other == goal:
                    if node != start:
                        return None
                    continue
                place = self._order[other]
                if place > bound if forward else place < bound:
                    continue
                if len(seen) >= self._limit:
                    return None
                seen.add(other)
                stack.append(other)
        return seen
