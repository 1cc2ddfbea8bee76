"""Groups of reductions that are split together, and estimates of their cost, whole and in pieces.

`ReductionCost` says what a group reads, on how many programs, and how long that takes, from likely sizes and
a model of what kernels cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, find_stride, get_extent, substitute
from coilwork_ir.loops import Reduce
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Load, Op, iterate_postorder, list_loads
from coilwork_ir.target import Capabilities, RowWalks, Target, Targets
from coilwork_scheduler.cost_model import CostModel, KernelWork, SizeHints
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.kernels.draft_analysis import find_nearest
from coilwork_scheduler.settings import Settings

# ---- Groups ----


# Kinds whose results are positions along the axes, in the order of these.
POSITIONS: Final = ("argmin", "argmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionGroup:
    """Reductions over the same ranges and axes; `rows` are what they load at points of the axes,
    each once.
    """

    positions: tuple[int, ...]
    members: tuple[Reduce, ...]
    rows: tuple[Load, ...]

    @property
    def ranges(self) -> tuple[Expr, ...]:
        """Ranges of the results."""
        return self.members[0].ranges

    @property
    def axes(self) -> tuple[Expr, ...]:
        """Return what is reduced."""
        return self.members[0].axes

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """All results."""
        return tuple(b for member in self.members for b in member.outputs if b is not None)


def list_row_loads(node: Reduce) -> tuple[Load, ...]:
    """Return what `node` loads at points of its axes, each once."""
    axes = frozenset(node.axes)
    return tuple(
        access
        for access in list_loads((node.body,))
        if any(not axes.isdisjoint(e.free_symbols) for e in access.index)
    )


def group_of_one(node: Reduce) -> ReductionGroup:
    """Return the group of `node` alone, which is no node of the graph yet."""
    return ReductionGroup(positions=(), members=(node,), rows=list_row_loads(node))


# ---- Cost ----


@dataclass(frozen=True, slots=True)
class ReductionShape:
    """A group's likely cost: results, points per result, programs of one kernel for all, bytes read.

    Results are `across` if neighbours in memory are of different ones, and `crossed` if enough of what is
    read lies along them.
    """

    results: int
    length: int
    across: bool
    crossed: bool
    programs: int
    read_bytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """Two axes of a reduction, along each of which some operands have their neighbours: the `inner` one is
    the innermost in memory of what is read most of. `elements` are read of what lies along the `outer` one.
    """

    outer: Expr
    inner: Expr
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionCost:
    """Estimates of groups, by sizes as they likely are and a model of what kernels cost."""

    facts: Dependence
    targets: Targets
    model: CostModel
    sizes: SizeHints

    def shape(self, group: ReductionGroup) -> ReductionShape:
        """Return the cost of `group` as one kernel."""
        results = max(self.sizes.numel(tuple(get_extent(r) for r in group.ranges)), 1)
        length = max(self.length(group.axes), 1)
        parallel, reduced = frozenset(group.ranges), frozenset(group.axes)
        read_bytes = along_bytes = across_bytes = crossed_bytes = 0
        for access in group.rows:
            touched = self.access_bytes(access)
            read_bytes += touched
            match self.direction(access, parallel, reduced):
                case "along":
                    along_bytes += touched
                    # what all results share, a block reads once
                    varies = any(not parallel.isdisjoint(e.free_symbols) for e in access.index)
                    crossed_bytes += touched if varies else 0
                case "across":
                    across_bytes += touched
        operations = sum(
            SCALAR_OPS[scalar.op].cost
            for scalar in iterate_postorder(tuple(member.body for member in group.members))
            if isinstance(scalar, Op)
        )
        rows = self.rows(group.members[0])
        across = rows.are_across(across=across_bytes, along=along_bytes)
        return ReductionShape(
            results=results,
            length=length,
            across=across,
            crossed=across and rows.are_across(across=crossed_bytes, along=across_bytes),
            programs=rows.count_programs(results, across=across),
            read_bytes=read_bytes,
            operations=(operations + len(group.members)) * results * length,
        )

    def direction(
        self, access: Load, parallel: frozenset[Expr], reduced: frozenset[Expr]
    ) -> Literal["along", "across"] | None:
        """Return whether neighbours in memory belong to one result (`along`) or to several (`across`).

        `None` if both do, or neither does.
        """
        near = self.nearest_ranges(access)
        if bool(near & parallel) == bool(near & reduced):
            return None
        return "across" if near & parallel else "along"

    def nearest_ranges(self, access: Load, over: Mapping[Expr, Expr] | None = None) -> frozenset[Expr]:
        """Return the ranges, of those that ranges are `over`, of the nearest neighbours that `access` reads.

        There are none if a sector of memory does not have several of them.
        """
        buffer = self.facts.buffers[access.buffer]
        fetched = self.targets.of(buffer.device).machine.memory.fetched_bytes
        offset = buffer.offset_of(access.index)
        most = fetched // 2 // buffer.dtype.itemsize
        return find_nearest(substitute(offset, over) if over else offset, most)

    def find_crossing(
        self, group: ReductionGroup, order: Sequence[Expr], over: Mapping[Expr, Expr]
    ) -> Crossing | None:
        """Return the axis of `order`, outermost first, that crosses the innermost one; `None` if none does.

        The axes of `group` are `over` these. Rows reduced side by side are worth it from a share of the
        bytes on; as much has to lie along each of the two.
        """
        share = self.rows(group.members[0]).crossed_share
        if share is None or len(order) < 2:
            return None
        near, elements = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
        for access in group.rows:
            for axis in self.nearest_ranges(access, over).intersection(order):
                near[axis] += self.access_bytes(access)
                elements[axis] += (
                    self.access_bytes(access) // self.facts.buffers[access.buffer].dtype.itemsize
                )
        *rest, inner = order
        outer = max(rest, key=lambda axis: near[axis])
        crosses = min(near[outer], near[inner]) > share * sum(near.values())
        return Crossing(outer, inner, elements[outer]) if crosses else None

    def is_narrow(self, group: ReductionGroup, axis: Expr) -> bool:
        """Tell if the points of `axis` are fewer than those of 16 bits in a sector of memory."""
        sector = self.target(group.members[0]).machine.memory.fetched_bytes // DType.BF16.itemsize
        return self.sizes.value(get_extent(axis)) < sector

    def count_pieces(self, group: ReductionGroup, shape: ReductionShape) -> float:
        """Pieces per result that fill the device, none of them too short to be worth a program."""
        target = self.target(group.members[0])
        units, reductions = target.multiprocessors, target.machine.reductions
        blocks = max(shape.results / reductions.block_results, 1) if shape.across else shape.results
        wanted = units * (reductions.programs if shape.across else reductions.programs_along) / blocks
        stays = not shape.across or shape.results <= reductions.few_columns
        if stays and any(member.kind == "welford" for member in group.members):
            wanted = max(
                wanted,
                shape.length / (reductions.resident_across if shape.across else reductions.resident_along),
            )
        least = reductions.least_across if shape.across else reductions.least_along
        return min(wanted, shape.length / least, reductions.most_pieces)

    def reduce_us(self, shape: ReductionShape, pieces: int) -> float:
        """Time of a kernel that reduces `pieces` of each result."""
        return self.model.kernel_us(
            KernelWork(
                read_bytes=shape.read_bytes,
                write_bytes=0,
                operations=shape.operations,
                rows=shape.results * pieces,
                row_length=max(shape.length // pieces, 1),
                programs=shape.programs * pieces,
            )
        )

    def target(self, node: Reduce) -> Target:
        """Return what `node` is computed on."""
        return self.targets.of(list_defined_buffers(node)[0].device)

    def capabilities(self, node: Reduce) -> Capabilities:
        """Return what the generator of the kernel of `node` can do."""
        return self.targets.capabilities_of(list_defined_buffers(node)[0].device)

    def rows(self, node: Reduce) -> RowWalks:
        """Return the ways in which kernels walk the rows that `node` reduces."""
        return self.capabilities(node).rows

    def partial_bytes(self, group: ReductionGroup, shape: ReductionShape, pieces: int) -> int:
        """Bytes of the results of pieces."""
        return sum(b.dtype.compute.itemsize for b in group.outputs) * shape.results * pieces

    def second_us(
        self, group: ReductionGroup, shape: ReductionShape, pieces: int, *, across: bool = False
    ) -> float:
        """Time of the kernel that reduces the results of pieces, which the first one also has to write.

        The pieces of a result lie together, or with `across` the results of a piece.
        """
        moved = self.partial_bytes(group, shape, pieces)
        together = self.target(group.members[0]).machine.reductions.results_together
        return self.model.kernel_us(
            KernelWork(
                read_bytes=moved,
                write_bytes=moved,
                operations=shape.results * pieces * len(group.outputs),
                rows=shape.results,
                row_length=pieces,
                programs=max(1, shape.results // together) if across else shape.results,
            )
        )

    def order_axes(self, group: ReductionGroup) -> tuple[Expr, ...]:
        """Return the axes, outermost in memory first, by the largest of the loads that tells them apart."""
        for access in sorted(group.rows, key=self.access_bytes, reverse=True):
            offset = self.facts.buffers[access.buffer].offset_of(access.index)
            steps = [find_stride(offset, axis) for axis in group.axes]
            strides = [0 if step is None else abs(self.sizes.value(step)) for step in steps]
            if all(strides):
                places = sorted(range(len(strides)), key=lambda k: (-strides[k], k))
                return tuple(group.axes[k] for k in places)
        return group.axes

    def offsets(self, group: ReductionGroup) -> tuple[Expr, ...]:
        """Return where in memory `group` reads what it reduces."""
        return tuple(self.facts.buffers[access.buffer].offset_of(access.index) for access in group.rows)

    def access_bytes(self, access: Load) -> int:
        """Likely bytes that a kernel moves for `access`: its points, but each element of the buffer once."""
        free = frozenset().union(*(e.free_symbols for e in access.index))
        points = max(self.sizes.numel(tuple(s.extent for s in free if s.extent is not None)), 1)
        buffer = self.facts.buffers[access.buffer]
        return min(points * buffer.dtype.itemsize, self.sizes.size_bytes(buffer))

    def length(self, axes: Sequence[Expr]) -> int:
        """Points of `axes`."""
        return self.sizes.numel(tuple(get_extent(axis) for axis in axes))


def make_reduction_cost(facts: Dependence, settings: Settings) -> ReductionCost:
    """Estimates of groups of the graph that `facts` are about."""
    return ReductionCost(facts=facts, targets=settings.targets, model=settings.model, sizes=settings.sizes)
