"""What a kernel made of a cluster would read, write and compute: the figures that cost models judge by.

Whether a fused cluster may be one kernel, and whether it should: limits, order, overwritten
memory, costs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coilwork_ir.buffers import Buffer
from coilwork_ir.capabilities import RowWalks
from coilwork_ir.index import Expr, extent_of, stride_of
from coilwork_ir.loops import Graph
from coilwork_ir.machine.model import Memory
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Op, Reduce, postorder
from coilwork_ir.target import Targets
from coilwork_scheduler.cost_model import KernelWork, SizeHints
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion.fusion_candidate import (
    MOST_STAGES,
    Cluster,
    Touch,
    broken_scan,
    broken_sort,
    check_behind_reduction,
    depths,
    overwriting_hazard,
    reads_what_it_writes,
)
from coilwork_scheduler.fusion.row_column_fusion import fits_registers
from coilwork_scheduler.kernels.compose import Draft, compose
from coilwork_scheduler.kernels.draft_analysis import is_contraction, scalars_of, time_draft, unit_stride
from coilwork_scheduler.options import may_share_kernel
from coilwork_scheduler.settings import Settings

# ---- What a kernel made of a cluster would read, write and compute: the figures that cost model ----


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Estimates work; remembers sizes it has estimated. Lives for one fusion of one graph."""

    buffers: Mapping[str, Buffer]
    sizes: SizeHints
    targets: Targets
    _bytes: dict[str, int] = field(default_factory=dict)
    _unit: dict[Touch, frozenset[Expr]] = field(default_factory=dict)
    _points: dict[tuple[Expr, ...], int] = field(default_factory=dict)

    def size(self, name: str) -> int:
        """Likely bytes of buffer `name`."""
        found = self._bytes.get(name)
        if found is None:
            found = self._bytes[name] = self.sizes.size_bytes(self.buffers[name])
        return found

    def shared_bytes(self, one: Cluster, two: Cluster) -> int:
        """Likely bytes of the buffers that both read."""
        return sum(self.size(name) for name in one.read_names & two.read_names)

    def read(self, cluster: Cluster) -> int:
        """Likely bytes of the elements that `cluster` reads, those that it computes left out."""
        return sum(self._touched(touch) for touch in cluster.read if touch.buffer not in cluster.written)

    def work(self, cluster: Cluster, stored: Collection[str]) -> KernelWork:
        """The work of a kernel that computes `cluster` and leaves its buffers `stored` in memory."""
        sizes, target = self.sizes, self.targets.of(cluster.device)
        groups = max(sizes.numel(tuple(extent_of(s) for s in cluster.parallel)), 1)
        rows = groups * max(sizes.numel(tuple(extent_of(s) for s in cluster.walked)), 1)
        length = max(sizes.numel(tuple(extent_of(s) for s in cluster.reduced)), 1)
        written = cluster.written
        writes = sum(self._touched(written[name]) for name in stored)
        if cluster.reduced:
            resident = self._rows(cluster).keeps(length)
            operations, reads = self._row_work(cluster, rows, length, resident=resident)
            if target.is_gpu and resident:
                reads += self._fetched_in_vain(cluster, length)
            if target.is_gpu and len(cluster.reduced) > 1:
                vain_reads, vain_writes = self._torn(cluster, stored, resident=resident)
                reads += vain_reads
                writes += vain_writes
        else:
            operations = rows * sum(part.cost for part in cluster.parts)
            reads = sum(self._touched(touch) for touch in cluster.read if touch.buffer not in written)
        return KernelWork(
            read_bytes=reads,
            write_bytes=writes,
            operations=operations,
            rows=rows,
            row_length=length if cluster.reduced else 1,
            programs=groups if cluster.walked else self._programs(cluster, rows),
        )

    def _programs(self, cluster: Cluster, rows: int) -> int:
        if not cluster.reduced:
            return rows
        shared = max(part.stage.split for part in cluster.parts)
        return self._rows(cluster).count_programs(rows, across=self.across(cluster)) * shared

    def _rows(self, cluster: Cluster) -> RowWalks:
        return self.targets.capabilities_of(cluster.device).rows

    def across(self, cluster: Cluster) -> bool:
        """True if most of what a kernel with reductions reads is contiguous along its parallel ranges."""
        parallel, reduced = frozenset(cluster.parallel), frozenset(cluster.reduced)
        balance = 0
        for touch in cluster.read:
            if touch.buffer in cluster.written:
                continue
            unit = self._contiguous(touch)
            balance += self._touched(touch) * (bool(unit & parallel) - bool(unit & reduced))
        return balance > 0

    def _contiguous(self, touch: Touch) -> frozenset[Expr]:
        """Ranges along which `touch` is contiguous."""
        unit = self._unit.get(touch)
        if unit is None:
            offset = self.buffers[touch.buffer].offset_of(touch.index)
            unit = self._unit[touch] = unit_stride(offset)
        return unit

    def _fetched_in_vain(self, cluster: Cluster, length: int) -> int:
        """Bytes beside those asked for, where blocks of whole rows read what lies across them: as many rows
        as a block has at a time take their part of each sector, and the next blocks fetch it again.
        """
        if self.across(cluster):
            return 0
        parallel, reduced = frozenset(cluster.parallel), frozenset(cluster.reduced)
        rows, vain = max(self._memory(cluster).tile_elements // length, 1), 0
        for touch in cluster.read:
            unit = self._contiguous(touch)
            free = frozenset().union(*(e.free_symbols for e in touch.index))
            if touch.buffer in cluster.written or unit & reduced or not unit & parallel or not free & reduced:
                continue
            vain += self._lost(cluster, touch, rows)
        return vain

    def _lost(self, cluster: Cluster, touch: Touch, together: int) -> int:
        """Bytes of the sectors of `touch` that are fetched in vain where a block has so many neighbours at a
        time.
        """
        fetched = self._memory(cluster).fetched_bytes
        used = min(together * self.buffers[touch.buffer].dtype.itemsize, fetched)
        return self._touched(touch) * fetched // used - self._touched(touch)

    def _memory(self, cluster: Cluster) -> Memory:
        return self.targets.of(cluster.device).machine.memory

    def _torn(self, cluster: Cluster, stored: Collection[str], *, resident: bool) -> tuple[int, int]:
        """Bytes read, and written, beside those asked for, where rows of several ranges are touched in
        different orders of memory.

        A row is walked in the order of the largest of what it touches. Of what lies in another, neighbouring
        threads touch a sector each, of which they use as many elements as a block has along the range where
        these are contiguous.
        """
        reduced = frozenset(cluster.reduced)
        written = [cluster.written[name] for name in stored]
        passes = {
            touch: 1 if resident else depth + 1
            for part, depth in zip(cluster.parts, depths(cluster), strict=True)
            for touch in part.reads
            if touch.buffer not in cluster.written
        }
        rows = sorted(
            (t for t in (*written, *passes) if self._contiguous(t) & reduced), key=self._touched, reverse=True
        )
        if not rows:
            return 0, 0
        order = self._steps(rows[0], cluster.reduced)
        vain = [0, 0]
        for touch in rows:
            (unit, *_) = self._contiguous(touch) & reduced
            free = frozenset().union(*(e.free_symbols for e in touch.index))
            # what is walked before the next of the elements that are contiguous in `touch`
            inside = [s for s in reduced & free if 0 < order[s] < order[unit]]
            if inside:
                apart = max(self.sizes.numel(tuple(extent_of(s) for s in inside)), 1)
                lost = self._lost(cluster, touch, max(self._memory(cluster).tile_elements // apart, 1))
                vain[touch.buffer in cluster.written] += lost * passes.get(touch, 1)
        return vain[0], vain[1]

    def _steps(self, touch: Touch, ranges: Sequence[Expr]) -> dict[Expr, int]:
        """Elements of memory from one point of each range to the next; 0 where that is no one number."""
        offset = self.buffers[touch.buffer].offset_of(touch.index)
        steps = {s: stride_of(offset, s) for s in ranges}
        return {s: 0 if step is None else self.sizes.value(step) for s, step in steps.items()}

    def _row_work(self, cluster: Cluster, rows: int, length: int, *, resident: bool) -> tuple[int, int]:
        """Operations and bytes read by a kernel with reductions: once per pass where a row does not stay on
        chip.
        """
        reduced = frozenset(cluster.reduced)
        operations = reads = 0
        target = self.targets.of(cluster.device)
        counted: set[tuple[Touch, int]] = set()
        for part, depth in zip(cluster.parts, depths(cluster), strict=True):
            # a ragged row is taken to have one point
            walks = any(not reduced.isdisjoint(e.free_symbols) for e in part.mapping.values())
            operations += (
                part.cost
                * rows
                * (length if walks and not part.ragged else 1)
                // (target.machine.arithmetic.matrix_rate if part.contracted else 1)
            )
            again = 0 if resident or not walks else depth
            for touch in part.reads:
                if touch.buffer not in cluster.written and (touch, again) not in counted:
                    counted.add((touch, again))
                    reads += self._touched(touch)
        return operations, reads

    def _touched(self, touch: Touch) -> int:
        """Likely bytes that a kernel moves for `touch`: its points, but each element of the buffer once."""
        points = self._points.get(touch.index)
        if points is None:
            free = frozenset().union(*(e.free_symbols for e in touch.index))
            extents = tuple(s.extent for s in free if s.extent is not None)
            points = self._points[touch.index] = max(self.sizes.numel(extents), 1)
        return min(points * self.buffers[touch.buffer].dtype.itemsize, self.size(touch.buffer))


# ---- Whether a fused cluster may be one kernel, and whether it should: limits, order, overwritt ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What fusion knows besides the stages."""

    graph: Graph
    facts: Dependence
    settings: Settings


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of looking at one pair: the fused cluster, or why not."""

    cluster: Cluster | None
    rule: str
    reason: str
    numbers: tuple[tuple[str, float], ...] = ()
    work: KernelWork | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigher:
    """Judges clusters of one graph.

    Attributes:
        around: what fusion knows besides the stages.
        traffic: what kernels read, write and compute.
        partners: readers of each buffer among the clusters' stages.
        wanted: buffers that some other step, or the caller, needs in memory.
        links: buffers that link at least two stages.
    """

    around: Surroundings
    traffic: Traffic
    partners: Mapping[str, Sequence[int]]
    wanted: frozenset[str]
    links: frozenset[str]

    def limits(self, one: Cluster, two: Cluster) -> Verdict | None:
        """Why the two are too large for one kernel; `None` if they are not."""
        options = self.around.settings.options
        if one.device != two.device:
            return Verdict(None, "", "")
        if options.apart and not may_share_kernel(one.origins, two.origins, options.apart):
            return Verdict(None, "reject-apart", "a call that shares no kernel with others")
        if one.ops + two.ops > 2 * options.max_ops or len(one.parts) + len(two.parts) > MOST_STAGES:
            return Verdict(
                None, "reject-size", "the kernel would grow too large", (("operations", one.ops + two.ops),)
            )
        names = one.names | two.names
        if len(names) > options.max_args:
            needed = names - set(one.written) - set(two.written) | self._stored_of((one, two))
            if len(needed) > options.max_args:
                return Verdict(
                    None, "reject-args", "too many tensor arguments", (("arguments", len(needed)),)
                )
        if one.reductions + two.reductions > options.max_reductions:
            return Verdict(None, "reject-size", "too many reductions for one kernel")
        return None

    def weigh(
        self, one: Cluster, two: Cluster, both: Cluster, *, flows: bool, works: Sequence[KernelWork]
    ) -> Verdict:
        """`both`, made of the two, or why it is not to be; `works` are those of the two, and `flows` says
        that one reads what the other writes.
        """
        refused = self._refused(both)
        if refused is not None:
            return refused
        shared = self.traffic.shared_bytes(one, two)
        least = min(work.read_bytes + work.write_bytes for work in works)
        if (not flows and shared * 5 < least) or self._across_each_other(one, two, both, least):
            if not (one.reduced and two.reduced and all(self._launch_bound(one, work) for work in works)):
                return Verdict(None, "", "")
        work = self.work(both)
        if both.walked:
            # what rows and columns compute alike is most of it: counted once
            works = [self._distinct(one, works[0]), self._distinct(two, works[1])]
            work = self._distinct(both, work)
        model = self.around.settings.model
        apart = sum(model.kernel_us(work) for work in works)
        together = model.kernel_us(work)
        numbers = (
            ("apart_us", round(apart, 3)),
            ("fused_us", round(together, 3)),
            ("shared_read_bytes", float(shared)),
        )
        if together >= apart:
            times = together / apart if apart else 1.0
            return Verdict(None, "reject-bytes", f"fused would take {times:.1f}x as long", numbers)
        kind = "fuse-walked" if both.walked else "fuse-vertical" if flows else "fuse-horizontal"
        return Verdict(
            both,
            kind,
            "fused moves fewer bytes in less time",
            numbers,
            work,
        )

    def _refused(self, both: Cluster) -> Verdict | None:
        """Why `both` cannot be a kernel, or would keep too many values, whatever it saves."""
        scan = broken_scan(both)
        if scan is not None:
            return Verdict(
                None, "reject-scan", f"%{scan} is scanned along another axis than what is beside it"
            )
        row = broken_sort(both)
        if row is not None:
            return Verdict(None, "reject-sort", f"%{row} is the result of a sort of other rows")
        if any(part.contracted for part in both.parts) and not is_contraction(self._draft(both)):
            return Verdict(
                None, "reject-contraction", "a sum of products shares a kernel with pointwise operations only"
            )
        torn = reads_what_it_writes(both)
        if torn is not None:
            return Verdict(
                None, "reject-order", f"%{torn} is read at other points than those that compute it"
            )
        checked = check_behind_reduction(both)
        if checked is not None:
            return Verdict(
                None, "reject-check", f"a check reads %{checked}, which comes of a reduction in the kernel"
            )
        hazard = overwriting_hazard(both, self.around.facts.root)
        if hazard is not None or not self._overwrites_in_time(both):
            return Verdict(None, "reject-overwrite", f"memory of %{hazard} is overwritten while it is needed")
        if both.reduced:
            reduced = frozenset(both.reduced)
            rows = [
                touch
                for touch in both.read
                if touch.buffer not in both.written
                and any(not reduced.isdisjoint(e.free_symbols) for e in touch.index)
            ]
            if len(rows) > self.around.settings.options.max_row_reads:
                return Verdict(
                    None, "reject-registers", "too many values per row to keep", (("values", len(rows)),)
                )
        if both.walked and not fits_registers(
            both, self.around.settings.targets.capabilities_of(both.device).rows
        ):
            return Verdict(None, "reject-registers", "rows and sums of columns are too many values to keep")
        return None

    def _across_each_other(self, one: Cluster, two: Cluster, both: Cluster, least: float) -> bool:
        """True if one of the two reduces rows, the other columns, and they touch hardly an element at the
        same points.

        Rows and columns of one square matrix have a common space: in it, one of the two goes through memory
        across its lanes.
        """
        traffic = self.traffic
        if not (one.reduced and two.reduced) or both.walked or traffic.across(one) == traffic.across(two):
            return False
        return 5 * (traffic.read(one) + traffic.read(two) - traffic.read(both)) < least

    def _launch_bound(self, cluster: Cluster, work: KernelWork) -> bool:
        """True if a kernel of a GPU's, where `cluster` is, that does `work` hardly takes longer than its
        launch.
        """
        target = self.around.settings.targets.of(cluster.device)
        if not target.is_gpu:
            return False
        return self.around.settings.model.kernel_us(work) < target.machine.launches.bound * target.launch_us

    def _distinct(self, cluster: Cluster, work: KernelWork) -> KernelWork:
        """`work` with the operations of `cluster` as its kernel has them, each value computed
        once per point.
        """
        draft = self._draft(cluster)
        points = work.rows * work.row_length
        cost = sum(
            SCALAR_OPS[node.op].cost if isinstance(node, Op) else isinstance(node, Reduce)
            for node in postorder(scalars_of(draft))
        )
        return replace(work, operations=cost * points)

    def _draft(self, cluster: Cluster) -> Draft:
        return compose(
            cluster.group,
            self._stored(cluster),
            self.around.facts.buffers,
            self.around.settings.options.numerics,
        )

    def _overwrites_in_time(self, both: Cluster) -> bool:
        """With several passes over a row, nothing may be overwritten before the pass that reads it last."""
        into = both.into
        if not into or not both.reduced:
            return True
        draft = self._draft(both)
        timing = time_draft(draft)
        return all(
            timing.can_overwrite(store.buffer, store) for store in draft.stores if store.buffer in into
        )

    def _stored(self, cluster: Cluster) -> set[str]:
        return self._stored_of((cluster,))

    def _stored_of(self, clusters: tuple[Cluster, ...]) -> set[str]:
        """Buffers of the clusters, taken as one kernel, that must be in memory afterwards."""
        inside = {part.stage.position for cluster in clusters for part in cluster.parts}
        stored: set[str] = set()
        for cluster in clusters:
            stored |= self.wanted.intersection(cluster.written)
            stored |= cluster.into.keys()
            for name in self.links.intersection(cluster.written):
                readers = self.partners[name]
                # readers are distinct: of more than the stages inside, one is outside
                if len(readers) > len(inside) or not inside.issuperset(readers):
                    stored.add(name)
        return stored

    def work(self, cluster: Cluster) -> KernelWork:
        """The work of a kernel made of `cluster`."""
        return self.traffic.work(cluster, self._stored(cluster))
