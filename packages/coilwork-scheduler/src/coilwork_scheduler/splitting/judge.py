"""Whether a family of reductions is cut in pieces, and into which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, bounds, product, provably_positive, stride_of
from coilwork_ir.loops import Reduce
from coilwork_ir.loops.access import defined
from coilwork_ir.ops import SCALAR_OPS, SELF_COMBINING
from coilwork_ir.scalar import Load, Op, loads, postorder, substitute_ranges
from coilwork_ir.target import Target, Targets
from coilwork_scheduler.contractions.known import contraction_of_node
from coilwork_scheduler.cost import FULL_PROGRAMS, CostModel, KernelWork
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion.space import refine, split_over, symbols_over
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.occupancy import LONGEST_COLUMN, programs_of, row_stays, unit_stride
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints
from coilwork_scheduler.splitting.beside_rows import RowReductions
from coilwork_scheduler.splitting.pieces import Pieces, cut_axes
from coilwork_scheduler.stage import extent_of

# Programs per multiprocessor to aim at: looped ones have a few kilobytes of loads in flight each. Where they read along memory more of
# them, with less each, leave less of the device idle at the end: on an H200 the sum of 64M numbers takes 69.5 us instead of 71.3.
PROGRAMS: Final = 8
PROGRAMS_ALONG: Final = 32
# Neighbouring results that a program of a column reduction computes where there are enough of them.
BLOCK: Final = 64
# Points of a piece, at least: along memory, and across it where each point is a block of neighbours.
LEAST_ALONG: Final = 2048
LEAST_ACROSS: Final = 64
# Points of a piece that stays in registers: a running mean costs a division per point, two sums do not.
RESIDENT_ALONG: Final = 8192
RESIDENT_ACROSS: Final = 512
# Pieces per result, at most: the second reduction has one program for all of them.
MOST_PIECES: Final = 8192
# The two kernels must together take less than this share of the one's time: the estimate is rough, and the one might
# have fused with more of what surrounds it.
CLEAR_WIN: Final = 0.8
# Neighbouring results that a program of a short second reduction computes at least, where they lie together: 32 bytes.
SECTOR: Final = 8
# Columns beside rows get a piece per program; by this factor fewer programs are better than masks for uneven pieces.
WALKED_MISS: Final = 1.15
POSITIONS: Final = ("argmin", "argmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Reductions over the same ranges and axes; `rows` are what they load at points of the axes, each once."""

    positions: tuple[int, ...]
    members: tuple[Reduce, ...]
    rows: tuple[Load, ...]

    @property
    def ranges(self) -> tuple[Expr, ...]:
        """Ranges of the results."""
        return self.members[0].ranges

    @property
    def axes(self) -> tuple[Expr, ...]:
        """What is reduced."""
        return self.members[0].axes

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """All results."""
        return tuple(b for member in self.members for b in member.outputs if b is not None)


def rows_of(node: Reduce) -> tuple[Load, ...]:
    """What `node` loads at points of its axes, each once."""
    axes = frozenset(node.axes)
    return tuple(
        access
        for access in loads((node.body,))
        if any(not axes.isdisjoint(e.free_symbols) for e in access.index)
    )


def alone(node: Reduce) -> Family:
    """The family of `node` alone, which is no node of the graph yet."""
    return Family(positions=(), members=(node,), rows=rows_of(node))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """Pieces of a family.

    Its axes are `refined` first, into the axes of the pieces, where that says something. Pieces are `apart` in memory, each with
    all of its results, where a program has all of these.
    """

    pieces: Pieces
    refined: tuple[tuple[Expr, Expr], ...] = ()
    apart: bool = False

    def along(self, node: Reduce) -> Reduce:
        """`node`, of the family, along the axes of the pieces."""
        if not self.refined:
            return node
        (body,) = substitute_ranges((node.body,), dict(self.refined))
        return replace(node, axes=self.pieces.axes, body=body)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A family's likely figures: results, points per result, programs of one kernel for all, bytes read."""

    results: int
    length: int
    across: bool
    programs: int
    read_bytes: int
    operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """A way to cut a family, and what that takes."""

    pieces: Pieces
    count: int
    programs: int
    whole_us: float
    split_us: float

    @property
    def pays(self) -> bool:
        return self.split_us < CLEAR_WIN * self.whole_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Decides whether a family is cut, and into what. `rows` are the reductions that it may share a kernel with."""

    facts: Dependence
    targets: Targets
    model: CostModel
    sizes: SizeHints
    options: ScheduleOptions
    journal: Journal
    rows: RowReductions

    def candidate(self, node: Reduce) -> bool:
        """True if `node` has so few results that one kernel for them might leave the device idle."""
        extents = tuple(extent_of(r) for r in (*node.ranges, *node.axes))
        if node.checks or not all(provably_positive(e) for e in extents):
            return False
        target = self._target(node)
        if not target.is_gpu:
            return False
        if contraction_of_node(node) is not None:
            # in pieces already, where that pays
            return False
        results = self.sizes.numel(extents[: len(node.ranges)])
        fewest = programs_of(results, across=True)
        return fewest < target.multiprocessors * PROGRAMS and self._length(node.axes) >= 2 * LEAST_ACROSS

    def pieces_of(self, family: Family) -> Cutting | None:
        """How to cut the axes of `family`; `None` if one kernel for each result does as well."""
        found = self._weighed(family)
        walked = self._walked(family, found)
        if walked is not None:
            return walked
        if found is None:
            return None
        self.journal.note(
            "split",
            tuple(b.name for b in family.outputs),
            found.pays,
            "pieces fill the device" if found.pays else "a second kernel costs more than idle programs do",
            pieces=found.count,
            programs=found.programs,
            whole_us=round(found.whole_us, 3),
            split_us=round(found.split_us, 3),
        )
        return Cutting(pieces=found.pieces) if found.pays else None

    def splits(self, family: Family) -> bool:
        """Whether `pieces_of` cuts `family`; records nothing."""
        found = self._weighed(family)
        return found is not None and found.pays

    def reads_again(self, node: Reduce) -> bool:
        """Whether two reductions over the rows of `node`, one of which needs the other's result, read them twice.

        They do unless a program keeps its row on chip; rows of unknown length it does not keep.
        """
        if not self._target(node).is_gpu:
            return False
        if self.candidate(node) and self.splits(alone(node)):
            return True
        longest = 1
        for axis in node.axes:
            top = bounds(extent_of(axis)).hi
            if top is None:
                return True
            longest *= top
        return longest > LONGEST_COLUMN if self.across(node) else 4 * longest > self.options.persistent_bytes

    def across(self, node: Reduce) -> bool:
        """Whether the results of `node`, rather than the points that it reduces, lie side by side in memory."""
        return self._shape(alone(node)).across

    def _weighed(self, family: Family) -> _Weighed | None:
        shape = self._shape(family)
        wanted = self._wanted(family, shape)
        if wanted < 2 or (not shape.across and 4 * shape.length <= self.options.persistent_bytes):
            # a row that stays on chip is read once for all that needs it
            return None
        ordered = family.members[0].kind in POSITIONS
        pieces = cut_axes(
            family.axes,
            family.axes if ordered else self._by_memory(family),
            {axis: self.sizes.value(extent_of(axis)) for axis in family.axes},
            wanted=wanted,
            skip=not ordered,
        )
        if pieces is None:
            return None
        count = max(self.sizes.value(pieces.count), 1)
        return _Weighed(
            pieces=pieces,
            count=count,
            programs=shape.programs,
            whole_us=self._us(shape, 1),
            split_us=self._us(shape, count) + self._second_us(family, shape, count),
        )

    def _walked(self, family: Family, otherwise: _Weighed | None) -> Cutting | None:
        """Pieces for a kernel that reduces rows of what `family` reads, if that saves enough of its reading."""
        if not (self.options.fuse and self.options.horizontal):
            return None
        shape = self._shape(family)
        if not shape.across or any(member.kind not in SELF_COMBINING for member in family.members):
            return None
        if not row_stays(1, sums=len(family.outputs), reads=1):
            return None
        owners = {access: member for member in family.members for access in rows_of(member)}
        partners = {access: self._partner(family, owners[access], access) for access in family.rows}
        beside = [access for access, rows in partners.items() if rows is not None]
        if not beside:
            return None
        axes, refined = _refined(family.axes, [rows for rows in partners.values() if rows is not None])
        pieces = cut_axes(
            axes,
            axes,
            {axis: self.sizes.value(extent_of(axis)) for axis in axes},
            wanted=self._target(family.members[0]).multiprocessors * FULL_PROGRAMS,
            skip=False,
            miss=WALKED_MISS,
        )
        if pieces is None:
            return None
        count = max(self.sizes.value(pieces.count), 1)
        shared = sum(self._touched(access) for access in beside)
        apart_us = self._us(shape, 1)
        if otherwise is not None:
            apart_us = min(apart_us, otherwise.split_us)
        moved = self._moved(family, shape, count)
        alone = KernelWork(
            read_bytes=shared,
            write_bytes=0,
            operations=0,
            rows=shape.length,
            row_length=shape.results,
            programs=count,
        )
        more = replace(alone, read_bytes=max(shape.read_bytes, shared), write_bytes=moved)
        walked_us = self.model.kernel_us(more) - self.model.kernel_us(alone)
        walked_us += self._second_us(family, shape, count, across=True)
        pays = walked_us < CLEAR_WIN * apart_us
        self.journal.note(
            "split-walked",
            tuple(b.name for b in family.outputs),
            pays,
            "columns are summed where rows are reduced" if pays else "pieces cost more than a second reading",
            pieces=count,
            shared_read_bytes=shared,
            apart_us=round(apart_us, 3),
            walked_us=round(walked_us, 3),
        )
        return Cutting(pieces=pieces, refined=tuple(refined.items()), apart=True) if pays else None

    def _partner(self, family: Family, member: Reduce, access: Load) -> Reduce | None:
        """A reduction of rows of what `member` loads by `access` whose kernel has room for the sums of `family`."""
        rows = self.rows.partner(member, access)
        if rows is None:
            return None
        longest = bounds(product(extent_of(axis) for axis in rows.axes)).hi
        reads = {load.buffer for load in (*family.rows, *rows_of(rows))}
        fits = longest is not None and row_stays(longest, sums=len(family.outputs), reads=len(reads))
        return rows if fits else None

    def _shape(self, family: Family) -> _Shape:
        results = max(self.sizes.numel(tuple(extent_of(r) for r in family.ranges)), 1)
        length = max(self._length(family.axes), 1)
        parallel, reduced = frozenset(family.ranges), frozenset(family.axes)
        read_bytes = balance = 0
        for access in family.rows:
            touched = self._touched(access)
            unit = unit_stride(self.facts.buffers[access.buffer].offset_of(access.index))
            read_bytes += touched
            balance += touched * (bool(unit & parallel) - bool(unit & reduced))
        operations = sum(
            SCALAR_OPS[scalar.op].cost
            for scalar in postorder(tuple(member.body for member in family.members))
            if isinstance(scalar, Op)
        )
        return _Shape(
            results=results,
            length=length,
            across=balance > 0,
            programs=programs_of(results, across=balance > 0),
            read_bytes=read_bytes,
            operations=(operations + len(family.members)) * results * length,
        )

    def _wanted(self, family: Family, shape: _Shape) -> float:
        """Pieces per result that fill the device, none of them too short to be worth a program."""
        blocks = max(shape.results / BLOCK, 1) if shape.across else shape.results
        units = self._target(family.members[0]).multiprocessors
        wanted = units * (PROGRAMS if shape.across else PROGRAMS_ALONG) / blocks
        if any(member.kind == "welford" for member in family.members):
            resident = RESIDENT_ACROSS if shape.across else RESIDENT_ALONG
            wanted = max(wanted, shape.length / resident)
        least = LEAST_ACROSS if shape.across else LEAST_ALONG
        return min(wanted, shape.length / least, MOST_PIECES)

    def _us(self, shape: _Shape, pieces: int) -> float:
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

    def _target(self, node: Reduce) -> Target:
        """What `node` is computed on."""
        return self.targets.of(defined(node)[0].device)

    def _moved(self, family: Family, shape: _Shape, pieces: int) -> int:
        """Bytes of the results of pieces."""
        return sum(b.dtype.compute.itemsize for b in family.outputs) * shape.results * pieces

    def _second_us(self, family: Family, shape: _Shape, pieces: int, *, across: bool = False) -> float:
        """Time of the kernel that reduces the results of pieces, which the first one also has to write.

        The pieces of a result lie together, or with `across` the results of a piece.
        """
        moved = self._moved(family, shape, pieces)
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

    def _by_memory(self, family: Family) -> tuple[Expr, ...]:
        """The axes, outermost in memory first, by the largest of the loads that tells them apart."""
        for access in sorted(family.rows, key=self._touched, reverse=True):
            offset = self.facts.buffers[access.buffer].offset_of(access.index)
            steps = [stride_of(offset, axis) for axis in family.axes]
            strides = [0 if step is None else abs(self.sizes.value(step)) for step in steps]
            if all(strides):
                places = sorted(range(len(strides)), key=lambda k: (-strides[k], k))
                return tuple(family.axes[k] for k in places)
        return family.axes

    def _touched(self, access: Load) -> int:
        """Likely bytes that a kernel moves for `access`: its points, but each element of the buffer once."""
        free = frozenset().union(*(e.free_symbols for e in access.index))
        points = max(self.sizes.numel(tuple(s.extent for s in free if s.extent is not None)), 1)
        buffer = self.facts.buffers[access.buffer]
        return min(points * buffer.dtype.itemsize, self.sizes.size_bytes(buffer))

    def _length(self, axes: Sequence[Expr]) -> int:
        return self.sizes.numel(tuple(extent_of(axis) for axis in axes))


def _refined(
    axes: tuple[Expr, ...], partners: Sequence[Reduce]
) -> tuple[tuple[Expr, ...], Mapping[Expr, Expr]]:
    """`axes` in as many parts as some of `partners` goes through rows with, and what they are over the parts.

    So that all that joins one kernel is cut alike, though it sums `[batch * tokens]` here and `[batch, tokens]` there.
    """
    extents = tuple(extent_of(axis) for axis in axes)
    best: tuple[tuple[Expr, ...], Mapping[Expr, Expr]] = (axes, {})
    for rows in partners:
        common = refine(extents, tuple(extent_of(r) for r in rows.ranges))
        if common is not None and len(common.pieces) > len(best[0]):
            parts = symbols_over(axes, common.first, common.pieces, "row")
            best = (parts, split_over(axes, common.first, parts))
    return best
