"""Split long reductions with few results: reduce pieces first, then the results of the pieces.

A GPU kernel has a program per result, or per block of neighbouring results. Where these are far fewer than
fill the device, as for the statistics of a batch norm or the gradient of a bias, memory idles however long
the rows are. What is inlined into the reduction moves into the first of the two.

Reductions of one domain that read the same are a group: judged together and split alike, so that fusion can
still give them one kernel. `SplitChooser` asks four strategies and takes the first that pays: columns summed
in a kernel that reduces rows (`row_column_pairing.py`), and the three of `split_strategies.py`.

The maximum and the sum of exponentials of a softmax over rows that are split, or too long to be kept on chip,
become one reduction first (`online_softmax.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from coilwork_ir.index import find_bounds, get_extent, provably_positive
from coilwork_ir.loops import Graph, Node, Reduce
from coilwork_ir.scalar import Load
from coilwork_scheduler.contractions.sum_of_products import match_contraction_node
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.settings import Settings
from coilwork_scheduler.splitting.combine_pieces import reduce_in_pieces
from coilwork_scheduler.splitting.online_softmax import merge_softmax_pairs
from coilwork_scheduler.splitting.pieces import SplitPlan
from coilwork_scheduler.splitting.reduction_cost import (
    POSITIONS,
    ReductionCost,
    ReductionGroup,
    group_of_one,
    list_row_loads,
    make_reduction_cost,
)
from coilwork_scheduler.splitting.row_column_pairing import (
    RowLoopSplit,
    RowReductions,
    find_row_loop_split,
    index_row_reductions,
)
from coilwork_scheduler.splitting.split_strategies import (
    MixedLayoutSplit,
    OccupancySplit,
    ShortRunSplit,
    find_mixed_layout_split,
    find_occupancy_split,
    find_short_run_split,
)

# ---- Choosing a split ----


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChooser:
    """Decides whether a group is split, and how. `rows` are reductions that it may share a kernel with."""

    cost: ReductionCost
    options: ScheduleOptions
    remarks: Remarks
    rows: RowReductions

    def is_candidate(self, node: Reduce) -> bool:
        """Tell if `node` has so few results that one kernel for them might leave the device idle."""
        extents = tuple(get_extent(r) for r in (*node.ranges, *node.axes))
        if node.checks or not all(provably_positive(e) for e in extents):
            return False
        target, can = self.cost.target(node), self.cost.capabilities(node)
        if can.cuts_rows:
            return False
        if match_contraction_node(node) is not None:
            # in pieces already, where that pays
            return False
        results = self.cost.sizes.numel(extents[: len(node.ranges)])
        reductions = target.machine.reductions
        fewest = can.rows.count_programs(results, across=True)
        return (
            fewest < target.multiprocessors * reductions.programs
            and self.cost.length(node.axes) >= 2 * reductions.least_across
        )

    def choose(self, group: ReductionGroup) -> SplitPlan | None:
        """Choose how the axes of `group` are cut; `None` if one kernel for each result does as well."""
        filling = self._find_occupancy_split(group)
        plan = self._accept(group, self._find_row_loop_split(group, filling))
        if plan is None:
            plan = self._accept(group, self._find_short_run_split(group))
        if plan is None:
            plan = self._accept(group, find_mixed_layout_split(self.cost, group, filling))
        if plan is None:
            plan = self._accept(group, filling)
        return plan

    def is_split(self, group: ReductionGroup) -> bool:
        """Tell if `group` is cut even without rows that it could share a kernel with; records nothing."""
        filling = self._find_occupancy_split(group)
        ways = (
            filling,
            self._find_short_run_split(group),
            find_mixed_layout_split(self.cost, group, filling),
        )
        return any(way is not None and way.pays for way in ways)

    def _accept(
        self,
        group: ReductionGroup,
        way: RowLoopSplit | ShortRunSplit | MixedLayoutSplit | OccupancySplit | None,
    ) -> SplitPlan | None:
        """Return the plan of `group` in this way, if there is one that pays; records whether it does."""
        if way is None:
            return None
        way.note(self.remarks, group)
        return way.plan if way.pays else None

    def _find_occupancy_split(self, group: ReductionGroup) -> OccupancySplit | None:
        return find_occupancy_split(self.cost, group)

    def _find_short_run_split(self, group: ReductionGroup) -> ShortRunSplit | None:
        """Return the split that first reduces across short runs of memory, if there are such runs."""
        shape = self.cost.shape(group)
        if shape.across:
            return None
        kept = self.cost.rows(group.members[0]).keeps(shape.length)
        return find_short_run_split(self.cost, group, on_chip=kept)

    def _find_row_loop_split(
        self, group: ReductionGroup, filling: OccupancySplit | None
    ) -> RowLoopSplit | None:
        """Pieces for a kernel that reduces rows of what `group` reads, where kernels may be shared."""
        if not (self.options.fuse and self.options.horizontal):
            return None
        otherwise_us = None if filling is None else filling.split_us
        return find_row_loop_split(self.cost, group, self.rows, otherwise_us=otherwise_us)

    def reads_again(self, node: Reduce) -> bool:
        """Tell if two reductions over the rows of `node`, one of which needs the other's result, read them
        twice.

        They do unless a program keeps its row on chip; rows of unknown length it does not keep.
        """
        if not self.cost.target(node).is_gpu:
            return False
        if self.is_candidate(node) and self.is_split(group_of_one(node)):
            return True
        longest = 1
        for axis in node.axes:
            top = find_bounds(get_extent(axis)).hi
            if top is None:
                return True
            longest *= top
        return not self.cost.rows(node).keeps(longest, across=self.is_column_reduction(node))

    def is_column_reduction(self, node: Reduce) -> bool:
        """Tell if the results of `node`, rather than the points that it reduces, lie side by side
        in memory.
        """
        return self.cost.shape(group_of_one(node)).across

    def direction(self, node: Reduce, access: Load) -> str | None:
        """Return how `access`, which `node` reduces, lies beside the results of `node`."""
        return self.cost.direction(access, frozenset(node.ranges), frozenset(node.axes))


# ---- The pass ----


def split_reductions(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Split long reductions with few results, where the cost model says that it pays.

    Graphs for generators that cut rows themselves stay as they are. The time is linear in the graph's size.
    """
    options = settings.options
    if not options.split or options.batch_invariant or not settings.targets.have_whole_rows:
        return graph
    chooser = SplitChooser(
        cost=make_reduction_cost(facts, settings),
        options=options,
        remarks=settings.remarks,
        rows=index_row_reductions(graph, facts, options.search_limit),
    )
    if options.numerics == "fast":
        graph = merge_softmax_pairs(graph, lambda pair: chooser.reads_again(pair.both))
    found: dict[int, SplitPlan] = {}
    for group in _find_groups(graph, chooser):
        plan = chooser.choose(group)
        if plan is not None:
            found.update(dict.fromkeys(group.positions, plan))
    if not found:
        return graph
    name = partial(facts.fresh_names().close_to, second=2)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        plan = found.get(position)
        if plan is None:
            nodes.append(node)
        else:
            assert isinstance(node, Reduce)
            nodes.extend(reduce_in_pieces(plan.apply(node), plan.pieces, name, apart=plan.apart))
    return replace(graph, nodes=tuple(nodes))


def _find_groups(graph: Graph, chooser: SplitChooser) -> Iterator[ReductionGroup]:
    """Groups of the reductions worth judging, by their first members."""
    rows: dict[int, tuple[Load, ...]] = {}
    parent: dict[int, int] = {}

    def find(position: int) -> int:
        while parent[position] != position:
            position = parent[position]
        return position

    first: dict[object, int] = {}
    for position, node in enumerate(graph.nodes):
        if not isinstance(node, Reduce) or not chooser.is_candidate(node):
            continue
        rows[position] = list_row_loads(node)
        parent[position] = position
        # the pieces of positions of extremes follow the axes, not memory; rows and columns of a square have
        # equal extents
        domain = (node.ranges, node.axes, node.kind in POSITIONS)
        for access in rows[position]:
            lies = chooser.direction(node, access)
            known = find(first.setdefault((domain, access.buffer, lies), position))
            low, high = sorted((known, find(position)))
            parent[high] = low
    members: dict[int, list[int]] = {}
    for position in parent:
        members.setdefault(find(position), []).append(position)
    for positions in members.values():
        nodes = [graph.nodes[position] for position in positions]
        yield ReductionGroup(
            positions=tuple(positions),
            members=tuple(node for node in nodes if isinstance(node, Reduce)),
            rows=tuple(dict.fromkeys(access for position in positions for access in rows[position])),
        )
