"""Reductions of columns beside reductions of rows of the same matrix: may they share a kernel?

    rows     sum_1[i] = sum over c of x[i, c] * w[c]
    columns  sum_2[c] = sum over i of x[i, c]

One program can reduce the rows of a piece of the matrix and sum its columns from one read, if pieces are as
many as programs: so the columns have to be cut for it before fusion. Here their partners are found, by what
both read, or by what follows from the rows' results and the columns read. Whether they do share a kernel is
fusion's to say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, extent_of, product, substitute
from coilwork_ir.loops import Graph, Pointwise, Reduce
from coilwork_ir.scalar import Load, loads
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion.alignment import refine, split_over, symbols_over

# Steps from a result of a reduction to what is computed from it along the row.
_STEPS: Final = 3
# Reductions that read the same buffer and are looked at, on each side of the columns.
_WINDOW: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReductions:
    """The reductions of `graph` by the buffers that they read along their axes."""

    graph: Graph
    facts: Dependence
    readers: Mapping[str, Sequence[tuple[int, Load]]]
    limit: int

    def partner(self, columns: Reduce, access: Load) -> Reduce | None:
        """A reduction of rows that touches what `columns`, a node of the graph, loads by `access`; `None` if
        there is none.
        """
        position = next(self.facts.definer[b.name] for b in columns.outputs if b is not None)
        readers = self.readers.get(access.buffer, ())
        near = bisect_left(readers, position, key=lambda reader: reader[0])
        for place, known in readers[max(0, near - _WINDOW) : near + _WINDOW]:
            rows = self.graph.nodes[place]
            if (
                isinstance(rows, Reduce)
                and place != position
                and _crossed(columns, self._offset(access), rows.ranges, rows.axes, self._offset(known))
                and not self._through_others(position, place)
            ):
                return rows
        return self._maker(columns, position, access)

    def _offset(self, access: Load) -> Expr:
        return self.facts.buffers[access.buffer].offset_of(access.index)

    def _maker(self, columns: Reduce, position: int, access: Load) -> Reduce | None:
        """A reduction of rows from whose results the buffer of `access` is computed, point by point."""
        definer = self.facts.definer.get(access.buffer)
        if definer is None or not isinstance(made := self.graph.nodes[definer], Pointwise):
            return None
        buffer = self.facts.buffers[access.buffer]
        for place, index in self._behind(definer):
            rows = self.graph.nodes[place]
            along = tuple(s for s in made.ranges if any(s in e.free_symbols for e in index))
            across = tuple(s for s in made.ranges if s not in along)
            if (
                isinstance(rows, Reduce)
                and product(extent_of(s) for s in rows.axes) is product(extent_of(s) for s in across)
                and _crossed(columns, self._offset(access), along, across, buffer.offset_of(made.ranges))
                and not self._through_others(position, place)
            ):
                return rows
        return None

    def _behind(self, position: int) -> Iterator[tuple[int, tuple[Expr, ...]]]:
        """Reductions whose results the pointwise node at `position` reads, or what is computed from them, and
        where it reads that.
        """
        node = self.graph.nodes[position]
        assert isinstance(node, Pointwise)
        for access in loads((node.body,)):
            names = {access.buffer}
            for _ in range(_STEPS):
                places = {self.facts.definer[name] for name in names if name in self.facts.definer}
                steps = [(place, self.graph.nodes[place]) for place in sorted(places)]
                yield from ((place, access.index) for place, step in steps if isinstance(step, Reduce))
                # what is computed for each row alone
                bodies = [step.body for _, step in steps if isinstance(step, Pointwise)]
                names = {below.buffer for below in loads(bodies)}

    def _through_others(self, one: int, other: int) -> bool:
        """True if a path between the two leads through a node that generated kernels do not compute, or
        might.
        """
        first, last = sorted((one, other))
        stack, seen = [(last, False)], {(last, False)}
        while stack:
            node, through = stack.pop()
            for before in self.facts.before[node]:
                if before < first or (before == first and not through):
                    continue
                if before == first or len(seen) > self.limit:
                    return True
                known = isinstance(self.graph.nodes[before], Pointwise | Reduce)
                state = (before, through or not known)
                if state not in seen:
                    seen.add(state)
                    stack.append(state)
        return False


def row_reductions(graph: Graph, facts: Dependence, limit: int) -> RowReductions:
    """The table for `graph`; at most `limit` nodes are visited to show that two of them depend on each other
    directly.
    """
    readers: dict[str, list[tuple[int, Load]]] = {}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Reduce):
            axes = frozenset(node.axes)
            for access in loads((node.body,)):
                if any(not axes.isdisjoint(e.free_symbols) for e in access.index):
                    readers.setdefault(access.buffer, []).append((position, access))
    return RowReductions(graph=graph, facts=facts, readers=readers, limit=limit)


def _crossed(
    columns: Reduce, ours: Expr, along: Sequence[Expr], across: Sequence[Expr], theirs: Expr
) -> bool:
    """True if what `columns` reduces is what `along` goes through, and its results what `across` does, in the
    same order.

    Both touch one buffer, at the flat offsets `ours` and `theirs`.
    """
    maps: tuple[dict[Expr, Expr], dict[Expr, Expr]] = ({}, {})
    for name, one, other in (("p", columns.axes, along), ("q", columns.ranges, across)):
        extents = tuple(tuple(extent_of(s) for s in side) for side in (one, other))
        common = refine(*extents)
        if common is None:
            return False
        symbols = symbols_over((), (), common.pieces, name)
        maps[0].update(split_over(tuple(one), common.first, symbols))
        maps[1].update(split_over(tuple(other), common.second, symbols))
    return substitute(ours, maps[0]) is substitute(theirs, maps[1])
