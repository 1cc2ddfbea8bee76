"""The likely figures of families of reductions, whole and in pieces: what they read, on how many programs, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.capabilities import Capabilities, RowWalks
from coilwork_ir.index import Expr, extent_of, stride_of
from coilwork_ir.loops import Reduce
from coilwork_ir.loops.access import defined
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Load, Op, postorder
from coilwork_ir.target import Target, Targets
from coilwork_scheduler.cost import CostModel, KernelWork
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.kernels.accesses import unit_stride
from coilwork_scheduler.sizes import SizeHints
from coilwork_scheduler.splitting.families import Family

# Programs per multiprocessor to aim at: looped ones have a few kilobytes of loads in flight each. Where they read along memory more of
# them, with less each, leave less of the device idle at the end: on an H200 the sum of 64M numbers takes 69.5 us instead of 71.3.
PROGRAMS: Final = 8
PROGRAMS_ALONG: Final = 32
# Neighbouring results that a program of a column reduction computes where there are enough of them.
BLOCK: Final = 64
# Points of a piece, at least: along memory, and across it where each point is a block of neighbours.
LEAST_ALONG: Final = 2048
LEAST_ACROSS: Final = 64
# Points of a piece that stays in registers, for a mean and what is off it. Of many columns across memory later rows are loaded ahead instead:
# var_mean of 32,768 by 4,096 in bf16 97 us and 81, but batch norm's statistics of 802,816 by 64, the whole forward, 87 and 93.
RESIDENT_ALONG: Final = 8192
RESIDENT_ACROSS: Final = 512
FEW_COLUMNS: Final = 512
# Pieces per result, at most: the second reduction has one program for all of them.
MOST_PIECES: Final = 8192
# Pieces and the reduction of their results must together take less than this share of the one kernel's time: the estimate is rough, and
# the one might have fused with more of what surrounds it.
CLEAR_WIN: Final = 0.8
# Neighbouring results that a program of a short second reduction computes at least, where they lie together: 32 bytes.
SECTOR: Final = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """A family's likely figures: results, points per result, programs of one kernel for all, bytes read."""

    results: int
    length: int
    across: bool
    programs: int
    read_bytes: int
    operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Estimates of families, by sizes as they likely are and a model of what kernels cost."""

    facts: Dependence
    targets: Targets
    model: CostModel
    sizes: SizeHints

    def shape(self, family: Family) -> Shape:
        """The figures of `family` as one kernel."""
        results = max(self.sizes.numel(tuple(extent_of(r) for r in family.ranges)), 1)
        length = max(self.length(family.axes), 1)
        parallel, reduced = frozenset(family.ranges), frozenset(family.axes)
        read_bytes = balance = 0
        for access in family.rows:
            touched = self.touched(access)
            unit = unit_stride(self.facts.buffers[access.buffer].offset_of(access.index))
            read_bytes += touched
            balance += touched * (bool(unit & parallel) - bool(unit & reduced))
        operations = sum(
            SCALAR_OPS[scalar.op].cost
            for scalar in postorder(tuple(member.body for member in family.members))
            if isinstance(scalar, Op)
        )
        return Shape(
            results=results,
            length=length,
            across=balance > 0,
            programs=self.rows(family.members[0]).count_programs(results, across=balance > 0),
            read_bytes=read_bytes,
            operations=(operations + len(family.members)) * results * length,
        )

    def wanted(self, family: Family, shape: Shape) -> float:
        """Pieces per result that fill the device, none of them too short to be worth a program."""
        blocks = max(shape.results / BLOCK, 1) if shape.across else shape.results
        units = self.target(family.members[0]).multiprocessors
        wanted = units * (PROGRAMS if shape.across else PROGRAMS_ALONG) / blocks
        stays = not shape.across or shape.results <= FEW_COLUMNS
        if stays and any(member.kind == "welford" for member in family.members):
            wanted = max(wanted, shape.length / (RESIDENT_ACROSS if shape.across else RESIDENT_ALONG))
        least = LEAST_ACROSS if shape.across else LEAST_ALONG
        return min(wanted, shape.length / least, MOST_PIECES)

    def reduce_us(self, shape: Shape, pieces: int) -> float:
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
        """What `node` is computed on."""
        return self.targets.of(defined(node)[0].device)

    def capabilities(self, node: Reduce) -> Capabilities:
        """What the generator of the kernel of `node` can do."""
        return self.targets.capabilities_of(defined(node)[0].device)

    def rows(self, node: Reduce) -> RowWalks:
        """How kernels go through the rows that `node` reduces."""
        return self.capabilities(node).rows

    def moved(self, family: Family, shape: Shape, pieces: int) -> int:
        """Bytes of the results of pieces."""
        return sum(b.dtype.compute.itemsize for b in family.outputs) * shape.results * pieces

    def second_us(self, family: Family, shape: Shape, pieces: int, *, across: bool = False) -> float:
        """Time of the kernel that reduces the results of pieces, which the first one also has to write.

        The pieces of a result lie together, or with `across` the results of a piece.
        """
        moved = self.moved(family, shape, pieces)
        return self.model.kernel_us(
            KernelWork(
                read_bytes=moved,
                write_bytes=moved,
                operations=shape.results * pieces * len(family.outputs),
                rows=shape.results,
                row_length=pieces,
                programs=max(1, shape.results // SECTOR) if across else shape.results,
            )
        )

    def by_memory(self, family: Family) -> tuple[Expr, ...]:
        """The axes, outermost in memory first, by the largest of the loads that tells them apart."""
        for access in sorted(family.rows, key=self.touched, reverse=True):
            offset = self.facts.buffers[access.buffer].offset_of(access.index)
            steps = [stride_of(offset, axis) for axis in family.axes]
            strides = [0 if step is None else abs(self.sizes.value(step)) for step in steps]
            if all(strides):
                places = sorted(range(len(strides)), key=lambda k: (-strides[k], k))
                return tuple(family.axes[k] for k in places)
        return family.axes

    def offsets(self, family: Family) -> tuple[Expr, ...]:
        """Where in memory `family` reads what it reduces."""
        return tuple(self.facts.buffers[access.buffer].offset_of(access.index) for access in family.rows)

    def touched(self, access: Load) -> int:
        """Likely bytes that a kernel moves for `access`: its points, but each element of the buffer once."""
        free = frozenset().union(*(e.free_symbols for e in access.index))
        points = max(self.sizes.numel(tuple(s.extent for s in free if s.extent is not None)), 1)
        buffer = self.facts.buffers[access.buffer]
        return min(points * buffer.dtype.itemsize, self.sizes.size_bytes(buffer))

    def length(self, axes: Sequence[Expr]) -> int:
        """Points of `axes`."""
        return self.sizes.numel(tuple(extent_of(axis) for axis in axes))
