"""Two-level reductions: sums over a matrix of what depends on row statistics are done per row first.

    rows   top[i], total[i] = what the softmax of row i takes
    sum    the sum over i and c of something of x[i, c], top[i] and total[i]

Cut into pieces that fill the device, the sum needs a kernel of its own, which reads the matrix again. Cut
along the rows, its first part reduces what the kernel of the statistics has on chip, and only numbers of rows
go through memory. The divergence of two log-softmaxes, an entropy, and a penalty on normalised values are
examples. The sum of the rows' sums is a reduction like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    find_bounds,
    find_stride,
    get_extent,
    get_extents,
    measure_tree,
    multiply_all,
    substitute,
)
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Load, list_loads
from coilwork_scheduler.cost_model import KernelWork
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion.alignment import make_piece_symbols, refine_extents, split_over
from coilwork_scheduler.kernels.draft_analysis import find_unit_strides
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.settings import Settings
from coilwork_scheduler.splitting.combine_pieces import reduce_in_pieces
from coilwork_scheduler.splitting.pieces import Cut, Pieces, SplitPlan
from coilwork_scheduler.splitting.reduction_cost import ReductionCost, make_reduction_cost

# Buffers looked at behind what a reduction loads.
_STEPS: Final = 32
_ZERO: Final = as_expr(0)

Place = tuple[str, Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowCut:
    """The cut of a reduction along rows whose statistics the node at `position` has."""

    plan: SplitPlan
    position: int


def split_by_rows(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Do reductions over whole matrices row by row, where statistics of the rows are made.

    On GPUs only, and where the cost model says that it pays. Near-linear in the size of the graph.
    """
    options = settings.options
    if not (options.split and options.fuse) or options.batch_invariant or not settings.targets.has_gpu:
        return graph
    cost = make_reduction_cost(facts, settings)
    search = _Search(graph=graph, facts=facts, cost=cost, options=options)
    weigher = _Weigher(cost=cost, remarks=settings.remarks)
    found: dict[int, SplitPlan] = {}
    for position, rows in search.cuts():
        node = graph.nodes[position]
        assert isinstance(node, Reduce)
        if weigher.pays(node, rows, search.find_shared_loads(node, rows)):
            found[position] = rows.plan
    if not found:
        return graph
    namer = facts.fresh_names().close_to
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        cut = found.get(position)
        if cut is None:
            nodes.append(node)
        else:
            assert isinstance(node, Reduce)
            nodes.extend(reduce_in_pieces(cut.apply(node), cut.pieces, namer))
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Finds reductions over whole rows, and the rows."""

    graph: Graph
    facts: Dependence
    cost: ReductionCost
    options: ScheduleOptions
    _places: dict[int, tuple[Place, ...]] = field(default_factory=dict)

    def cuts(self) -> Iterator[tuple[int, _RowCut]]:
        """Positions of reductions that can be cut along rows of a reduction before them, each
        once, and how.
        """
        wholes = [(k, node) for k, node in enumerate(self.graph.nodes) if self._cuttable(node)]
        domains: dict[object, _RowCut] = {}
        found: dict[int, _RowCut] = {}
        for position, node in wholes:
            assert isinstance(node, Reduce)
            rows = self._rows(position, node)
            if rows is not None:
                found[position] = domains[node.ranges, node.axes] = rows
        for position, node in wholes:
            # what reads the same in the same space is cut alike, and shares the kernel
            assert isinstance(node, Reduce)
            rows = domains.get((node.ranges, node.axes))
            if position not in found and rows is not None and position > rows.position:
                if self.find_shared_loads(node, rows) and self._is_computed_per_row(rows.position, position):
                    found[position] = rows
        yield from sorted(found.items())

    def find_shared_loads(self, node: Reduce, rows: _RowCut) -> tuple[Load, ...]:
        """Return what `node` loads of the rows that `rows` has on chip."""
        statistic = self.graph.nodes[rows.position]
        assert isinstance(statistic, Reduce)
        names = {name for access in list_loads((statistic.body,)) for name, _ in self._trace_access(access)}
        return tuple(
            access for access in self._loads(node) if any(n in names for n, _ in self._trace_access(access))
        )

    def _cuttable(self, node: Node) -> bool:
        return (
            isinstance(node, Reduce)
            and node.kind in SELF_COMBINING
            and not node.checks
            and self.cost.target(node).is_gpu
            and all(as_int(get_extent(s)) != 0 for s in (*node.ranges, *node.axes))
        )

    def _loads(self, node: Reduce) -> tuple[Load, ...]:
        """Return what `node` loads at points of its axes."""
        axes = frozenset(node.axes)
        return tuple(
            access
            for access in list_loads((node.body,))
            if not access.indirect and any(not axes.isdisjoint(e.free_symbols) for e in access.index)
        )

    def _rows(self, position: int, node: Reduce) -> _RowCut | None:
        """Return the rows of a reduction that `node`, at `position`, needs the results of."""
        reached = self._trace_places(position, node)
        for name, _ in reached:
            definer = self.facts.definer.get(name)
            statistic = None if definer is None else self.graph.nodes[definer]
            if definer is None or not isinstance(statistic, Reduce):
                continue
            theirs = dict(self._trace_places(definer, statistic))
            for buffer, ours in reached:
                if buffer in theirs:
                    cut = self._match_rows(node, (buffer, ours), statistic, theirs[buffer], definer)
                    if (
                        cut is not None
                        and self._stays(node, cut.plan, statistic)
                        and self._is_computed_per_row(definer, position)
                    ):
                        return cut
        return None

    def _trace_places(self, position: int, node: Reduce) -> tuple[Place, ...]:
        """Return the places behind all loads of `node`, at `position`; kept, since many reductions may
        ask.
        """
        found = self._places.get(position)
        if found is None:
            found = tuple(place for access in self._loads(node) for place in self._trace_access(access))
            self._places[position] = found
        return found

    def _trace_access(self, access: Load) -> tuple[Place, ...]:
        """Return the places that `access` reads, and those that their contents are computed from, point by
        point.

        A place that takes long index arithmetic to say is no row's: it is left out, with what lies behind it.
        """
        found: dict[Place, None] = {}
        todo = [(access.buffer, access.index)]
        while todo and len(found) < _STEPS:
            name, index = todo.pop()
            if any(measure_tree(e).nodes > self.options.weighed_index_size for e in index):
                continue
            place = (name, self.facts.buffers[name].offset_of(index))
            if place in found:
                continue
            found[place] = None
            definer = self.facts.definer.get(name)
            made = None if definer is None else self.graph.nodes[definer]
            if isinstance(made, Pointwise):
                at = dict(zip(made.ranges, index, strict=True))
                todo += [
                    (below.buffer, tuple(substitute(e, at) for e in below.index))
                    for below in list_loads((made.body,))
                    if not below.indirect
                ]
        return tuple(found)

    def _match_rows(
        self, node: Reduce, place: Place, statistic: Reduce, theirs: Expr, position: int
    ) -> _RowCut | None:
        """Return the cut of `node` along the rows of `statistic`, or None.

        Both touch one buffer: `node` at `place`, `statistic` at `theirs`.
        """
        if find_unit_strides(theirs).isdisjoint(statistic.axes):
            return None
        mine = self._order_by_memory(node, place[1])
        others = self._order_by_memory(statistic, theirs)
        common = mine and others and refine_extents(get_extents(mine), get_extents(others))
        if not mine or not others or not common:
            return None
        symbols = make_piece_symbols(mine, common.first, common.pieces, "row")
        own = split_over(mine, common.first, symbols)
        other = split_over(others, common.second, symbols)
        if substitute(place[1], own | _ones(node)) is not substitute(theirs, other | _ones(statistic)):
            return None
        # the pieces of each range of the two
        parts = {s: tuple(symbols[k] for k in made) for s, made in zip(mine, common.first, strict=True)}
        inside = {
            symbols[k]
            for s, made in zip(others, common.second, strict=True)
            if s in statistic.axes
            for k in made
        }
        axes = tuple(part for axis in node.axes for part in parts.get(axis, (axis,)))
        cuts = [s for axis in node.axes for s in parts.get(axis, ()) if s not in inside]
        if not cuts or not inside.issubset(axes):
            return None
        pieces = Pieces(
            axes=axes,
            cuts=tuple(Cut(axis=s, count=get_extent(s), length=as_expr(1), even=True) for s in cuts),
        )
        refined = tuple((axis, own[axis]) for axis in node.axes if len(parts.get(axis, ())) > 1)
        return _RowCut(plan=SplitPlan(pieces=pieces, refined=refined), position=position)

    def _order_by_memory(self, node: Reduce, offset: Expr) -> tuple[Expr, ...] | None:
        """Return the ranges and axes of `node`, outermost in memory first; `None` unless `offset` tells their
        points apart.
        """
        steps: dict[Expr, int] = {}
        for s in (*node.ranges, *node.axes):
            if as_int(get_extent(s)) != 1:
                step = find_stride(offset, s)
                steps[s] = 0 if step is None else self.cost.sizes.value(step)
        return tuple(sorted(steps, key=lambda s: -steps[s])) if all(v > 0 for v in steps.values()) else None

    def _stays(self, node: Reduce, cut: SplitPlan, statistic: Reduce) -> bool:
        """Tell if a program keeps what `node`, `cut` along the rows of `statistic`, and that read
        of a row.
        """
        longest = find_bounds(multiply_all(get_extent(axis) for axis in statistic.axes)).hi
        along = frozenset(cut.pieces.inner)
        values = {
            access.buffer
            for access in list_loads((cut.apply(node).body,))
            if any(not along.isdisjoint(e.free_symbols) for e in access.index)
        }
        values.update(access.buffer for access in self._loads(statistic))
        return longest is not None and self.cost.rows(node).keeps(longest, values=len(values))

    def _is_computed_per_row(self, first: int, last: int) -> bool:
        """Tell if all that is computed from the node at `first` for that at `last` is computed for each of
        its rows, or points.
        """
        statistic = self.graph.nodes[first]
        assert isinstance(statistic, Reduce)
        rows = multiply_all(get_extent(r) for r in statistic.ranges)
        before: dict[int, tuple[int, ...]] = {}
        todo = [last]
        while todo:
            position = todo.pop()
            if position in before:
                continue
            if len(before) > self.options.search_limit:
                return False
            before[position] = tuple(p for p in self.facts.before[position] if p >= first)
            todo += [p for p in before[position] if p > first]
        reaching = {first}
        for position in sorted(before):
            if reaching.isdisjoint(before[position]) or position == last:
                continue
            reaching.add(position)
            node = self.graph.nodes[position]
            if isinstance(node, Reduce):
                if multiply_all(get_extent(r) for r in node.ranges) is not rows:
                    return False
            elif not isinstance(node, Pointwise):
                return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weigher:
    """Says whether rows' sums, in the kernel of the rows' statistics, and their sum cost less than a kernel
    that reads all again.
    """

    cost: ReductionCost
    remarks: Remarks

    def pays(self, node: Reduce, rows: _RowCut, shared: Sequence[Load]) -> bool:
        """Tell if `node` is cut into `rows`; records why."""
        model = self.cost.model
        results = max(self.cost.sizes.numel(get_extents(node.ranges)), 1)
        count = max(self.cost.sizes.value(rows.plan.pieces.count), 1)
        length = max(self.cost.length(rows.plan.pieces.inner), 1)
        read = sum(self.cost.access_bytes(access) for access in dict.fromkeys(list_loads((node.body,))))
        on_chip = sum(self.cost.access_bytes(access) for access in dict.fromkeys(shared))
        moved = results * count * node.body.dtype.compute.itemsize
        alone = KernelWork(
            read_bytes=on_chip,
            write_bytes=0,
            operations=0,
            rows=results * count,
            row_length=length,
            programs=results * count,
        )
        beside = replace(alone, read_bytes=max(read, on_chip), write_bytes=moved)
        rows_us = model.kernel_us(beside) - model.kernel_us(alone)
        rows_us += self._reduce_us(moved, results, count)
        apart_us = self._reduce_us(read, results, count * length)
        pays = rows_us < self.cost.target(node).machine.reductions.clear_win * apart_us
        self.remarks.note(
            "split-rows",
            tuple(b.name for b in node.outputs if b is not None),
            pays,
            "what is on chip for statistics of rows is reduced there"
            if pays
            else "the results of rows cost more than a second reading",
            rows=count,
            shared_read_bytes=on_chip,
            apart_us=round(apart_us, 3),
            rows_us=round(rows_us, 3),
        )
        return pays

    def _reduce_us(self, read: int, results: int, length: int) -> float:
        """Time to reduce `length` points for each of `results`, in one kernel or in pieces that fill the
        device and another.
        """
        model = self.cost.model
        whole = KernelWork(
            read_bytes=read, write_bytes=0, operations=0, rows=results, row_length=length, programs=results
        )
        filled = replace(whole, programs=max(results, length))
        last = replace(whole, read_bytes=0)
        return min(model.kernel_us(whole), model.kernel_us(filled) + model.kernel_us(last))


def _ones(node: Reduce) -> dict[Expr, Expr]:
    """Ranges of one point, all at that point."""
    return {s: _ZERO for s in (*node.ranges, *node.axes) if as_int(get_extent(s)) == 1}
