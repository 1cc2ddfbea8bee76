"""Whether a family of reductions is cut in pieces, and into which.

There are four ways, each in a room of its own: `walked.py`, where a kernel that reduces rows of the same
matrix sums columns on the way; `short_runs.py`, where memory has neighbours along results and short runs
together; `crossed.py`, where operands have theirs along different axes; `filling.py`, where results are too
few to fill the device. The first that pays is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.index import bounds, extent_of, provably_positive
from coilwork_ir.loops import Reduce
from coilwork_ir.scalar import Load
from coilwork_scheduler.contractions.sum_of_products import contraction_of_node
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.splitting.beside_rows import RowReductions
from coilwork_scheduler.splitting.crossed import Crossed, crossed_of
from coilwork_scheduler.splitting.filling import Filling, filling_of
from coilwork_scheduler.splitting.pieces import Cutting
from coilwork_scheduler.splitting.reduction_cost import Family, Figures, alone
from coilwork_scheduler.splitting.short_runs import Runs, runs_of
from coilwork_scheduler.splitting.walked import Walked, walked_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Decides whether a family is cut, and into what. `rows` are the reductions that it may share a kernel
    with.
    """

    figures: Figures
    options: ScheduleOptions
    journal: Journal
    rows: RowReductions

    def candidate(self, node: Reduce) -> bool:
        """True if `node` has so few results that one kernel for them might leave the device idle."""
        extents = tuple(extent_of(r) for r in (*node.ranges, *node.axes))
        if node.checks or not all(provably_positive(e) for e in extents):
            return False
        target, can = self.figures.target(node), self.figures.capabilities(node)
        if can.cuts_rows:
            return False
        if contraction_of_node(node) is not None:
            # in pieces already, where that pays
            return False
        results = self.figures.sizes.numel(extents[: len(node.ranges)])
        reductions = target.machine.reductions
        fewest = can.rows.count_programs(results, across=True)
        return (
            fewest < target.multiprocessors * reductions.programs
            and self.figures.length(node.axes) >= 2 * reductions.least_across
        )

    def pieces_of(self, family: Family) -> Cutting | None:
        """How to cut the axes of `family`; `None` if one kernel for each result does as well."""
        filling = self._filling(family)
        cutting = self._taken(family, self._walked(family, filling))
        if cutting is None:
            cutting = self._taken(family, self._runs(family))
        if cutting is None:
            cutting = self._taken(family, crossed_of(self.figures, family, filling))
        if cutting is None:
            cutting = self._taken(family, filling)
        return cutting

    def splits(self, family: Family) -> bool:
        """Tell if `family` is cut even without rows that it could share a kernel with; records nothing."""
        filling = self._filling(family)
        ways = (filling, self._runs(family), crossed_of(self.figures, family, filling))
        return any(way is not None and way.pays for way in ways)

    def _taken(self, family: Family, way: Walked | Runs | Crossed | Filling | None) -> Cutting | None:
        """The cutting of `family` in this way, if there is one that pays; records whether it does."""
        if way is None:
            return None
        way.note(self.journal, family)
        return way.cutting if way.pays else None

    def _filling(self, family: Family) -> Filling | None:
        return filling_of(self.figures, family)

    def _runs(self, family: Family) -> Runs | None:
        """How to reduce across short runs of memory first, if it has them."""
        shape = self.figures.shape(family)
        if shape.across:
            return None
        kept = self.figures.rows(family.members[0]).keeps(shape.length)
        return runs_of(self.figures, family, on_chip=kept)

    def _walked(self, family: Family, filling: Filling | None) -> Walked | None:
        """Pieces for a kernel that reduces rows of what `family` reads, where kernels may be shared."""
        if not (self.options.fuse and self.options.horizontal):
            return None
        otherwise_us = None if filling is None else filling.split_us
        return walked_of(self.figures, family, self.rows, otherwise_us=otherwise_us)

    def reads_again(self, node: Reduce) -> bool:
        """Tell if two reductions over the rows of `node`, one of which needs the other's result, read them
        twice.

        They do unless a program keeps its row on chip; rows of unknown length it does not keep.
        """
        if not self.figures.target(node).is_gpu:
            return False
        if self.candidate(node) and self.splits(alone(node)):
            return True
        longest = 1
        for axis in node.axes:
            top = bounds(extent_of(axis)).hi
            if top is None:
                return True
            longest *= top
        return not self.figures.rows(node).keeps(longest, across=self.across(node))

    def across(self, node: Reduce) -> bool:
        """Tell if the results of `node`, rather than the points that it reduces, lie side by side
        in memory.
        """
        return self.figures.shape(alone(node)).across

    def direction(self, node: Reduce, access: Load) -> str | None:
        """How `access`, which `node` reduces, lies beside the results of `node`."""
        return self.figures.direction(access, frozenset(node.ranges), frozenset(node.axes))
