"""Pair column reductions with row reductions of one matrix, and split the columns for a common kernel.

    rows     sum_1[i] = sum over c of x[i, c] * w[c]
    columns  sum_2[c] = sum over i of x[i, c]

One program can reduce the rows of a piece of the matrix and sum its columns from one read, if there are as
many pieces as programs. So the columns have to be split for it before fusion. `RowReductions` finds the
partners, by what both read, or by what follows from the rows' results and is read by the columns. Fusion
decides later whether the two do share a kernel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.index import Expr, find_bounds, get_extent, multiply_all, substitute
from coilwork_ir.loops import Graph, Pointwise, Reduce
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Load, list_loads
from coilwork_scheduler.cost_model import KernelWork
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion.alignment import make_piece_symbols, refine_extents, split_over
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.splitting.pieces import SplitPlan, cut_axes
from coilwork_scheduler.splitting.reduction_cost import ReductionCost, ReductionGroup, list_row_loads

# ---- Partners ----


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
        """Find a reduction of rows that touches what `columns`, a node of the graph, loads by `access`."""
        position = next(self.facts.definer[b.name] for b in columns.outputs if b is not None)
        readers = self.readers.get(access.buffer, ())
        near = bisect_left(readers, position, key=lambda reader: reader[0])
        for place, known in readers[max(0, near - _WINDOW) : near + _WINDOW]:
            rows = self.graph.nodes[place]
            if (
                isinstance(rows, Reduce)
                and place != position
                and _is_transposed(columns, self._offset(access), rows.ranges, rows.axes, self._offset(known))
                and not self._has_foreign_path(position, place)
            ):
                return rows
        return self._maker(columns, position, access)

    def _offset(self, access: Load) -> Expr:
        return self.facts.buffers[access.buffer].offset_of(access.index)

    def _maker(self, columns: Reduce, position: int, access: Load) -> Reduce | None:
        """Return a reduction of rows from whose results the buffer of `access` is computed, point by
        point.
        """
        definer = self.facts.definer.get(access.buffer)
        if definer is None or not isinstance(made := self.graph.nodes[definer], Pointwise):
            return None
        buffer = self.facts.buffers[access.buffer]
        for place, index in self._find_source_reductions(definer):
            rows = self.graph.nodes[place]
            along = tuple(s for s in made.ranges if any(s in e.free_symbols for e in index))
            across = tuple(s for s in made.ranges if s not in along)
            if (
                isinstance(rows, Reduce)
                and multiply_all(get_extent(s) for s in rows.axes)
                is multiply_all(get_extent(s) for s in across)
                and _is_transposed(
                    columns, self._offset(access), along, across, buffer.offset_of(made.ranges)
                )
                and not self._has_foreign_path(position, place)
            ):
                return rows
        return None

    def _find_source_reductions(self, position: int) -> Iterator[tuple[int, tuple[Expr, ...]]]:
        """Reductions whose results the pointwise node at `position` reads, or what is computed from them, and
        where it reads that.
        """
        node = self.graph.nodes[position]
        assert isinstance(node, Pointwise)
        for access in list_loads((node.body,)):
            names = {access.buffer}
            for _ in range(_STEPS):
                places = {self.facts.definer[name] for name in names if name in self.facts.definer}
                steps = [(place, self.graph.nodes[place]) for place in sorted(places)]
                yield from ((place, access.index) for place, step in steps if isinstance(step, Reduce))
                # what is computed for each row alone
                bodies = [step.body for _, step in steps if isinstance(step, Pointwise)]
                names = {below.buffer for below in list_loads(bodies)}

    def _has_foreign_path(self, one: int, other: int) -> bool:
        """Tell if a path between the two leads through a node that generated kernels do not compute, or
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


def index_row_reductions(graph: Graph, facts: Dependence, limit: int) -> RowReductions:
    """Return the table for `graph`; at most `limit` nodes are visited to show that two of them depend on each
    other directly.
    """
    readers: dict[str, list[tuple[int, Load]]] = {}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Reduce):
            axes = frozenset(node.axes)
            for access in list_loads((node.body,)):
                if any(not axes.isdisjoint(e.free_symbols) for e in access.index):
                    readers.setdefault(access.buffer, []).append((position, access))
    return RowReductions(graph=graph, facts=facts, readers=readers, limit=limit)


def _is_transposed(
    columns: Reduce, ours: Expr, along: Sequence[Expr], across: Sequence[Expr], theirs: Expr
) -> bool:
    """Tell if what `columns` reduces is what `along` goes through, and its results what `across` does, in the
    same order.

    Both touch one buffer, at the flat offsets `ours` and `theirs`.
    """
    maps: tuple[dict[Expr, Expr], dict[Expr, Expr]] = ({}, {})
    for name, one, other in (("p", columns.axes, along), ("q", columns.ranges, across)):
        extents = tuple(tuple(get_extent(s) for s in side) for side in (one, other))
        common = refine_extents(*extents)
        if common is None:
            return False
        symbols = make_piece_symbols((), (), common.pieces, name)
        maps[0].update(split_over(tuple(one), common.first, symbols))
        maps[1].update(split_over(tuple(other), common.second, symbols))
    return substitute(ours, maps[0]) is substitute(theirs, maps[1])


# ---- Splitting for row loops ----


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoopSplit:
    """`count` pieces, bytes that the rows' kernel has read already, and microseconds that a kernel of its own
    and a share of that take.

    Pieces pay if they take less than the share `clear_win` of the other's time.
    """

    plan: SplitPlan
    count: int
    shared_read_bytes: int
    apart_us: float
    row_loop_us: float
    clear_win: float

    @property
    def pays(self) -> bool:
        """Tell if the reading saved outweighs the pieces' results."""
        return self.row_loop_us < self.clear_win * self.apart_us

    def note(self, remarks: Remarks, group: ReductionGroup) -> None:
        """Record whether `group` is cut so, and why."""
        remarks.note(
            "split-row-column",
            tuple(b.name for b in group.outputs),
            self.pays,
            "columns are summed where rows are reduced"
            if self.pays
            else "pieces cost more than a second reading",
            pieces=self.count,
            shared_read_bytes=self.shared_read_bytes,
            apart_us=round(self.apart_us, 3),
            row_loop_us=round(self.row_loop_us, 3),
        )


def find_row_loop_split(
    cost: ReductionCost, group: ReductionGroup, rows: RowReductions, *, otherwise_us: float | None
) -> RowLoopSplit | None:
    """Pieces of `group` for a kernel of `rows` that reads the same; `None` if none has room for its sums.

    In pieces that fill the device it takes `otherwise_us`, if it can be cut so.
    """
    shape = cost.shape(group)
    if (
        not shape.across
        or shape.crossed
        or any(member.kind not in SELF_COMBINING for member in group.members)
    ):
        return None
    if not cost.rows(group.members[0]).keeps_beside_sums(1, sums=len(group.outputs), reads=1):
        return None
    owners = {access: member for member in group.members for access in list_row_loads(member)}
    partners = {access: _partner(cost, group, rows, owners[access], access) for access in group.rows}
    beside = [access for access, found in partners.items() if found is not None]
    if not beside:
        return None
    axes, refined = _refine_axes(group.axes, [found for found in partners.values() if found is not None])
    target = cost.target(group.members[0])
    pieces = cut_axes(
        axes,
        axes,
        {axis: cost.sizes.value(get_extent(axis)) for axis in axes},
        wanted=target.multiprocessors * target.machine.launches.full_programs,
        skip=False,
        miss=target.machine.reductions.row_loop_miss,
    )
    if pieces is None:
        return None
    count = max(cost.sizes.value(pieces.count), 1)
    shared = sum(cost.access_bytes(access) for access in beside)
    apart_us = cost.reduce_us(shape, 1)
    return RowLoopSplit(
        plan=SplitPlan(pieces=pieces, refined=tuple(refined.items()), apart=True),
        count=count,
        shared_read_bytes=shared,
        apart_us=apart_us if otherwise_us is None else min(apart_us, otherwise_us),
        row_loop_us=_row_loop_us(cost, group, count, shared),
        clear_win=target.machine.reductions.clear_win,
    )


def _row_loop_us(cost: ReductionCost, group: ReductionGroup, count: int, shared: int) -> float:
    """Return what `count` pieces add to the time of a kernel that reads `shared` bytes of them anyhow, and
    the time to reduce their results.
    """
    shape = cost.shape(group)
    alone = KernelWork(
        read_bytes=shared,
        write_bytes=0,
        operations=0,
        rows=shape.length,
        row_length=shape.results,
        programs=count,
    )
    moved = cost.partial_bytes(group, shape, count)
    more = replace(alone, read_bytes=max(shape.read_bytes, shared), write_bytes=moved)
    added_us = cost.model.kernel_us(more) - cost.model.kernel_us(alone)
    return added_us + cost.second_us(group, shape, count, across=True)


def _partner(
    cost: ReductionCost, group: ReductionGroup, rows: RowReductions, member: Reduce, access: Load
) -> Reduce | None:
    """Return a reduction of rows of what `member` loads by `access` whose kernel has room for the sums
    of `group`.
    """
    found = rows.partner(member, access)
    if found is None:
        return None
    longest = find_bounds(multiply_all(get_extent(axis) for axis in found.axes)).hi
    reads = {load.buffer for load in (*group.rows, *list_row_loads(found))}
    if longest is None:
        return None
    walks = cost.rows(found)
    return found if walks.keeps_beside_sums(longest, sums=len(group.outputs), reads=len(reads)) else None


def _refine_axes(
    axes: tuple[Expr, ...], partners: Sequence[Reduce]
) -> tuple[tuple[Expr, ...], Mapping[Expr, Expr]]:
    """`axes` in as many parts as some of `partners` goes through rows with, and what they are over the parts.

    So that all that joins one kernel is cut alike, though it sums `[batch * tokens]` here and `[batch,
    tokens]` there.
    """
    extents = tuple(get_extent(axis) for axis in axes)
    best: tuple[tuple[Expr, ...], Mapping[Expr, Expr]] = (axes, {})
    for rows in partners:
        common = refine_extents(extents, tuple(get_extent(r) for r in rows.ranges))
        if common is not None and len(common.pieces) > len(best[0]):
            parts = make_piece_symbols(axes, common.first, common.pieces, "row")
            best = (parts, split_over(axes, common.first, parts))
    return best
