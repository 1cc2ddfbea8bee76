"""Decide if fusing two candidates is legal and pays: limits, hazards, traffic and cost.

`Traffic` estimates what a kernel made of a candidate would read, write and compute. `Weigher` compares the
cost of a merged candidate with that of its parts, and gives a `Verdict` with a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, find_stride, get_extent
from coilwork_ir.loops import Graph
from coilwork_ir.machine.model import Memory
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Op, Reduce, iterate_postorder
from coilwork_ir.target import RowWalks, Targets
from coilwork_scheduler.chunking.chunk_barrier import NO_BARRIER, ChunkBarrier
from coilwork_scheduler.cost_model import KernelWork, SizeHints
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion.fusion_candidate import (
    MOST_STAGES,
    FusionCandidate,
    Touch,
    compute_reduction_depths,
    find_late_check,
    find_misplaced_scan,
    find_misplaced_sort,
    find_overwrite_hazard,
    find_shifted_read,
)
from coilwork_scheduler.fusion.row_column_fusion import can_stay_in_registers
from coilwork_scheduler.kernels.compose import Draft, compose
from coilwork_scheduler.kernels.draft_analysis import (
    find_unit_strides,
    is_contraction,
    list_scalars,
    time_draft,
)
from coilwork_scheduler.options import may_share_kernel
from coilwork_scheduler.settings import Settings

# ---- Traffic ----


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Estimates the work of kernels. Remembers sizes, and lives for one fusion of one graph."""

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

    def common_bytes(self, one: FusionCandidate, two: FusionCandidate) -> int:
        """Likely bytes of the buffers that both read."""
        return sum(self.size(name) for name in one.read_names & two.read_names)

    def read(self, candidate: FusionCandidate) -> int:
        """Likely bytes of the elements that `candidate` reads, those that it computes left out."""
        return sum(
            self._access_bytes(touch) for touch in candidate.read if touch.buffer not in candidate.written
        )

    def work(self, candidate: FusionCandidate, stored: Collection[str]) -> KernelWork:
        """Return the work of a kernel that computes `candidate` and leaves its buffers `stored` in memory."""
        sizes, target = self.sizes, self.targets.of(candidate.device)
        groups = max(sizes.numel(tuple(get_extent(s) for s in candidate.parallel)), 1)
        rows = groups * max(sizes.numel(tuple(get_extent(s) for s in candidate.sequential)), 1)
        length = max(sizes.numel(tuple(get_extent(s) for s in candidate.reduced)), 1)
        written = candidate.written
        writes = sum(self._access_bytes(written[name]) for name in stored)
        if candidate.reduced:
            resident = self._rows(candidate).keeps(length)
            operations, reads = self._row_work(candidate, rows, length, resident=resident)
            if target.is_gpu and resident:
                reads += self._count_sector_waste(candidate, length)
                vain_reads, vain_writes = self._count_run_waste(candidate, stored, length)
                reads += vain_reads
                writes += vain_writes
            if target.is_gpu:
                writes += self._count_crossed_writes(candidate, stored, length)
            if target.is_gpu and len(candidate.reduced) > 1:
                vain_reads, vain_writes = self._count_reordered_bytes(candidate, stored, resident=resident)
                reads += vain_reads
                writes += vain_writes
        else:
            operations = rows * sum(part.cost for part in candidate.parts)
            reads = sum(self._access_bytes(touch) for touch in candidate.read if touch.buffer not in written)
        return KernelWork(
            read_bytes=reads,
            write_bytes=writes,
            operations=operations,
            rows=rows,
            row_length=length if candidate.reduced else 1,
            programs=groups if candidate.sequential else self._programs(candidate, rows),
        )

    def _programs(self, candidate: FusionCandidate, rows: int) -> int:
        if not candidate.reduced:
            return rows
        shared = max(part.stage.split for part in candidate.parts)
        return self._rows(candidate).count_programs(rows, across=self.is_column_reduction(candidate)) * shared

    def _rows(self, candidate: FusionCandidate) -> RowWalks:
        return self.targets.capabilities_of(candidate.device).rows

    def is_column_reduction(self, candidate: FusionCandidate) -> bool:
        """Tell if most of what a kernel with reductions reads is contiguous along its parallel ranges."""
        parallel, reduced = frozenset(candidate.parallel), frozenset(candidate.reduced)
        balance = 0
        for touch in candidate.read:
            if touch.buffer in candidate.written:
                continue
            unit = self._contiguous(touch)
            balance += self._access_bytes(touch) * (bool(unit & parallel) - bool(unit & reduced))
        return balance > 0

    def _contiguous(self, touch: Touch) -> frozenset[Expr]:
        """Ranges along which `touch` is contiguous."""
        unit = self._unit.get(touch)
        if unit is None:
            offset = self.buffers[touch.buffer].offset_of(touch.index)
            unit = self._unit[touch] = find_unit_strides(offset)
        return unit

    def _count_sector_waste(self, candidate: FusionCandidate, length: int) -> int:
        """Bytes beside those asked for, where blocks of whole rows read what lies across them: as many rows
        as a block has at a time take their part of each sector, and the next blocks fetch it again.
        """
        if self.is_column_reduction(candidate):
            return 0
        parallel, reduced = frozenset(candidate.parallel), frozenset(candidate.reduced)
        rows, vain = max(self._memory(candidate).tile_elements // length, 1), 0
        for touch in candidate.read:
            unit = self._contiguous(touch)
            free = frozenset().union(*(e.free_symbols for e in touch.index))
            if (
                touch.buffer in candidate.written
                or unit & reduced
                or not unit & parallel
                or not free & reduced
            ):
                continue
            vain += self._count_waste(candidate, touch, rows)
        return vain

    def _count_crossed_writes(self, candidate: FusionCandidate, stored: Collection[str], length: int) -> int:
        """Bytes written beside those asked for, where a kernel that goes along rows stores points of a row
        apart from each other, and neighbours of other rows between them.
        """
        if self.is_column_reduction(candidate):
            return 0
        parallel, reduced = frozenset(candidate.parallel), frozenset(candidate.reduced)
        rows, vain = max(self._memory(candidate).tile_elements // length, 1), 0
        for touch in (candidate.written[name] for name in stored):
            unit = self._contiguous(touch)
            free = frozenset().union(*(e.free_symbols for e in touch.index))
            if unit & parallel and not unit & reduced and free & reduced:
                vain += self._count_waste(candidate, touch, rows)
        return vain

    def _count_run_waste(
        self, candidate: FusionCandidate, stored: Collection[str], length: int
    ) -> tuple[int, int]:
        """Bytes read, and written, beside those asked for, where rows lie in short runs between runs of other
        rows, as the channels of a group do in channels-last.
        """
        reduced = frozenset(candidate.reduced)
        rows = max(self._memory(candidate).tile_elements // length, 1)
        vain = [0, 0]
        written = [candidate.written[name] for name in stored]
        for touch in dict.fromkeys((*candidate.read, *written)):
            if touch.buffer in candidate.written and touch not in written:
                continue
            steps = self._steps(touch, (*candidate.parallel, *candidate.reduced))
            run = 1
            while (
                onward := [s for s in reduced if steps[s] == run and self._extent(s) > 1]
            ) and run < length:
                run *= self._extent(onward[0])
            is_between = any(steps[s] == run and self._extent(s) > 1 for s in candidate.parallel)
            if run > 1 and is_between:
                vain[touch in written] += self._count_waste(candidate, touch, run * rows)
        return vain[0], vain[1]

    def _extent(self, symbol: Expr) -> int:
        return self.sizes.value(get_extent(symbol))

    def _count_waste(self, candidate: FusionCandidate, touch: Touch, together: int) -> int:
        """Bytes of the sectors of `touch` that are fetched in vain where a block has so many neighbours at a
        time.
        """
        fetched = self._memory(candidate).fetched_bytes
        used = min(together * self.buffers[touch.buffer].dtype.itemsize, fetched)
        return self._access_bytes(touch) * fetched // used - self._access_bytes(touch)

    def _memory(self, candidate: FusionCandidate) -> Memory:
        return self.targets.of(candidate.device).machine.memory

    def _count_reordered_bytes(
        self, candidate: FusionCandidate, stored: Collection[str], *, resident: bool
    ) -> tuple[int, int]:
        """Bytes read, and written, beside those asked for, where rows of several ranges are touched in
        different orders of memory.

        A row is walked in the order of the largest of what it touches. Of what lies in another, neighbouring
        threads touch a sector each, of which they use as many elements as a block has along the range where
        these are contiguous.
        """
        reduced = frozenset(candidate.reduced)
        written = [candidate.written[name] for name in stored]
        passes = {
            touch: 1 if resident else depth + 1
            for part, depth in zip(candidate.parts, compute_reduction_depths(candidate), strict=True)
            for touch in part.reads
            if touch.buffer not in candidate.written
        }
        rows = sorted(
            (t for t in (*written, *passes) if self._contiguous(t) & reduced),
            key=self._access_bytes,
            reverse=True,
        )
        if not rows:
            return 0, 0
        order = self._steps(rows[0], candidate.reduced)
        vain = [0, 0]
        for touch in rows:
            (unit, *_) = self._contiguous(touch) & reduced
            free = frozenset().union(*(e.free_symbols for e in touch.index))
            # what is walked before the next of the elements that are contiguous in `touch`
            inside = [s for s in reduced & free if 0 < order[s] < order[unit]]
            if inside:
                apart = max(self.sizes.numel(tuple(get_extent(s) for s in inside)), 1)
                lost = self._count_waste(
                    candidate, touch, max(self._memory(candidate).tile_elements // apart, 1)
                )
                vain[touch.buffer in candidate.written] += lost * passes.get(touch, 1)
        return vain[0], vain[1]

    def _steps(self, touch: Touch, ranges: Sequence[Expr]) -> dict[Expr, int]:
        """Elements of memory from one point of each range to the next; 0 where that is no one number."""
        offset = self.buffers[touch.buffer].offset_of(touch.index)
        steps = {s: find_stride(offset, s) for s in ranges}
        return {s: 0 if step is None else self.sizes.value(step) for s, step in steps.items()}

    def _row_work(
        self, candidate: FusionCandidate, rows: int, length: int, *, resident: bool
    ) -> tuple[int, int]:
        """Operations and bytes read by a kernel with reductions: once per pass where a row does not stay on
        chip.
        """
        reduced = frozenset(candidate.reduced)
        operations = reads = 0
        target = self.targets.of(candidate.device)
        counted: set[tuple[Touch, int]] = set()
        for part, depth in zip(candidate.parts, compute_reduction_depths(candidate), strict=True):
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
                if touch.buffer not in candidate.written and (touch, again) not in counted:
                    counted.add((touch, again))
                    reads += self._access_bytes(touch)
        return operations, reads

    def _access_bytes(self, touch: Touch) -> int:
        """Likely bytes that a kernel moves for `touch`: its points, but each element of the buffer once."""
        points = self._points.get(touch.index)
        if points is None:
            free = frozenset().union(*(e.free_symbols for e in touch.index))
            extents = tuple(s.extent for s in free if s.extent is not None)
            points = self._points[touch.index] = max(self.sizes.numel(extents), 1)
        return min(points * self.buffers[touch.buffer].dtype.itemsize, self.size(touch.buffer))


# ---- Verdicts ----


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionContext:
    """Facts that fusion reads besides the stages.

    `chunks` are the numbers of the chunks that buffers belong to. No kernel is about several chunks, or makes
    what they wait for and what waits for them, which is in `chunk_barrier`.
    """

    graph: Graph
    facts: Dependence
    settings: Settings
    chunks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    chunk_barrier: ChunkBarrier = NO_BARRIER


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging one pair: the fused candidate, or why not."""

    fused: FusionCandidate | None
    rule: str
    reason: str
    numbers: tuple[tuple[str, float], ...] = ()
    work: KernelWork | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigher:
    """Judges whether candidates of one graph may and should be fused.

    Attributes:
        context: what fusion knows besides the stages.
        traffic: what kernels read, write and compute.
        partners: readers of each buffer among the candidates' stages.
        wanted: buffers that some other step, or the caller, needs in memory.
        links: buffers that link at least two stages.
    """

    context: FusionContext
    traffic: Traffic
    partners: Mapping[str, Sequence[int]]
    wanted: frozenset[str]
    links: frozenset[str]

    def limits(self, one: FusionCandidate, two: FusionCandidate) -> Verdict | None:
        """Return why the two are too large for one kernel; `None` if they are not."""
        options = self.context.settings.options
        if one.device != two.device:
            return Verdict(None, "", "")
        if options.apart and not may_share_kernel(one.origins, two.origins, options.apart):
            return Verdict(None, "reject-apart", "a call that shares no kernel with others")
        chunks = self.context.chunks
        if chunks and len({chunks[name] for name in one.names | two.names if name in chunks}) > 1:
            return Verdict(None, "reject-chunks", "both chunks would be in memory at once")
        if chunks and self.context.chunk_barrier.forbids(frozenset((*one.written, *two.written))):
            return Verdict(None, "reject-chunks", "the first chunk would wait for the last one")
        if one.ops + two.ops > 2 * options.max_ops or len(one.parts) + len(two.parts) > MOST_STAGES:
            return Verdict(
                None, "reject-size", "the kernel would grow too large", (("operations", one.ops + two.ops),)
            )
        names = one.names | two.names
        if len(names) > options.max_args:
            needed = names - set(one.written) - set(two.written) | self._live_out_of((one, two))
            if len(needed) > options.max_args:
                return Verdict(
                    None, "reject-args", "too many tensor arguments", (("arguments", len(needed)),)
                )
        if one.reductions + two.reductions > options.max_reductions:
            return Verdict(None, "reject-size", "too many reductions for one kernel")
        return None

    def weigh(
        self,
        one: FusionCandidate,
        two: FusionCandidate,
        both: FusionCandidate,
        *,
        flows: bool,
        works: Sequence[KernelWork],
    ) -> Verdict:
        """Judge `both`, the merged candidate of `one` and `two`.

        `works` are those of the two. `flows` says that one reads what the other writes.
        """
        refused = self._find_obstacle(both)
        if refused is not None:
            return refused
        if not flows and all(any(part.contracted for part in c.parts) for c in (one, two)):
            # blocks of several sums are smaller; one that gates the other saves what it would store
            return Verdict(None, "reject-contraction", "sums of products that nothing joins stay apart")
        shared = self.traffic.common_bytes(one, two)
        least = min(work.read_bytes + work.write_bytes for work in works)
        if (not flows and shared * 5 < least) or self._is_transposed_pair(one, two, both, least):
            if not (one.reduced and two.reduced and all(self._is_launch_bound(one, work) for work in works)):
                return Verdict(None, "", "")
        work = self.work(both)
        if both.sequential:
            # what rows and columns compute alike is most of it: counted once
            works = [self._distinct(one, works[0]), self._distinct(two, works[1])]
            work = self._distinct(both, work)
        model = self.context.settings.model
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
        kind = "fuse-row-column" if both.sequential else "fuse-vertical" if flows else "fuse-horizontal"
        return Verdict(
            both,
            kind,
            "fused moves fewer bytes in less time",
            numbers,
            work,
        )

    def _find_obstacle(self, both: FusionCandidate) -> Verdict | None:
        """Return why `both` cannot be a kernel, or would keep too many values, whatever it saves."""
        scan = find_misplaced_scan(both)
        if scan is not None:
            return Verdict(
                None, "reject-scan", f"%{scan} is scanned along another axis than what is beside it"
            )
        row = find_misplaced_sort(both)
        if row is not None:
            return Verdict(None, "reject-sort", f"%{row} is the result of a sort of other rows")
        if any(part.contracted for part in both.parts) and not is_contraction(self._draft(both)):
            return Verdict(
                None, "reject-contraction", "a sum of products shares a kernel with pointwise operations only"
            )
        torn = find_shifted_read(both)
        if torn is not None:
            return Verdict(
                None, "reject-order", f"%{torn} is read at other points than those that compute it"
            )
        checked = find_late_check(both)
        if checked is not None:
            return Verdict(
                None, "reject-check", f"a check reads %{checked}, which comes of a reduction in the kernel"
            )
        hazard = find_overwrite_hazard(both, self.context.facts.root)
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
            if len(rows) > self.context.settings.options.max_row_reads:
                return Verdict(
                    None, "reject-registers", "too many values per row to keep", (("values", len(rows)),)
                )
        if both.sequential and not can_stay_in_registers(
            both, self.context.settings.targets.capabilities_of(both.device).rows
        ):
            return Verdict(None, "reject-registers", "rows and sums of columns are too many values to keep")
        return None

    def _is_transposed_pair(
        self, one: FusionCandidate, two: FusionCandidate, both: FusionCandidate, least: float
    ) -> bool:
        """Tell if one of the two reduces rows, the other columns, and they touch hardly an element at the
        same points.

        Rows and columns of one square matrix have a common space: in it, one of the two goes through memory
        across its lanes.
        """
        traffic = self.traffic
        if (
            not (one.reduced and two.reduced)
            or both.sequential
            or traffic.is_column_reduction(one) == traffic.is_column_reduction(two)
        ):
            return False
        return 5 * (traffic.read(one) + traffic.read(two) - traffic.read(both)) < least

    def _is_launch_bound(self, candidate: FusionCandidate, work: KernelWork) -> bool:
        """Tell if a kernel of a GPU's, where `candidate` is, that does `work` hardly takes longer than its
        launch.
        """
        target = self.context.settings.targets.of(candidate.device)
        if not target.is_gpu:
            return False
        return self.context.settings.model.kernel_us(work) < target.machine.launches.bound * target.launch_us

    def _distinct(self, candidate: FusionCandidate, work: KernelWork) -> KernelWork:
        """`work` with the operations of `candidate` as its kernel has them, each value computed
        once per point.
        """
        draft = self._draft(candidate)
        points = work.rows * work.row_length
        cost = sum(
            SCALAR_OPS[node.op].cost if isinstance(node, Op) else isinstance(node, Reduce)
            for node in iterate_postorder(list_scalars(draft))
        )
        return replace(work, operations=cost * points)

    def _draft(self, candidate: FusionCandidate) -> Draft:
        return compose(
            candidate.group,
            self._live_out(candidate),
            self.context.facts.buffers,
            self.context.settings.options.numerics,
        )

    def _overwrites_in_time(self, both: FusionCandidate) -> bool:
        """Tell if no pass over a row overwrites what a later pass reads."""
        into = both.into
        if not into or not both.reduced:
            return True
        draft = self._draft(both)
        timing = time_draft(draft)
        return all(
            timing.can_overwrite(store.buffer, store) for store in draft.stores if store.buffer in into
        )

    def _live_out(self, candidate: FusionCandidate) -> set[str]:
        return self._live_out_of((candidate,))

    def _live_out_of(self, candidates: tuple[FusionCandidate, ...]) -> set[str]:
        """Buffers of the candidates, taken as one kernel, that must be in memory afterwards."""
        inside = {part.stage.position for candidate in candidates for part in candidate.parts}
        stored: set[str] = set()
        for candidate in candidates:
            stored |= self.wanted.intersection(candidate.written)
            stored |= candidate.into.keys()
            for name in self.links.intersection(candidate.written):
                readers = self.partners[name]
                # readers are distinct: of more than the stages inside, one is outside
                if len(readers) > len(inside) or not inside.issuperset(readers):
                    stored.add(name)
        return stored

    def work(self, candidate: FusionCandidate) -> KernelWork:
        """Return the work of a kernel made of `candidate`."""
        return self.traffic.work(candidate, self._live_out(candidate))
