"""What a kernel made of a cluster would read, write and compute: the figures that cost models judge by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, extent_of, stride_of
from coilwork_ir.machine.model import Memory
from coilwork_ir.target import RowWalks, Targets
from coilwork_scheduler.cost import KernelWork
from coilwork_scheduler.fusion.cluster import Cluster, Touch, depths
from coilwork_scheduler.kernels.accesses import unit_stride
from coilwork_scheduler.sizes import SizeHints


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
