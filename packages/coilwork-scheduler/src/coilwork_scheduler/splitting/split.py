"""Splitting: a long reduction to few results becomes a reduction of pieces and one of their results.

A GPU kernel has a program per result, or per block of neighbouring results. Where these are far fewer than fill the
device, as for the statistics of a batch norm or the gradient of a bias, memory idles however long the rows are. What is
inlined into the reduction moves along into the first of the two.

Reductions of one domain that read the same are a family: judged together and cut alike, so that fusion can still give
them one kernel. The two of a softmax, one of which needs the other, become one first: `online.py`. So they do where the
row is not split, but is too long to be kept on chip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, bounds, provably_positive, stride_of
from coilwork_ir.loops import Graph, Node, Reduce
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Load, Op, loads, postorder
from coilwork_ir.target import Target
from coilwork_scheduler.cost import CostModel, KernelWork
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.occupancy import LONGEST_COLUMN, programs_of, unit_stride
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints
from coilwork_scheduler.splitting.combine import combined
from coilwork_scheduler.splitting.online import merged
from coilwork_scheduler.splitting.pieces import Pieces, cut_axes
from coilwork_scheduler.stage import extent_of

# Programs per multiprocessor to aim at: looped ones have a few kilobytes of loads in flight each.
PROGRAMS: Final = 8
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
_POSITIONS: Final = ("argmin", "argmax")


def split_reductions(
    graph: Graph,
    facts: Dependence,
    *,
    target: Target,
    model: CostModel,
    sizes: SizeHints,
    options: ScheduleOptions,
    journal: Journal,
) -> Graph:
    """`graph` with long reductions to few results cut in pieces, where `model` says that it pays; on GPUs only.

    Linear in the size of the graph.
    """
    if not options.split or not target.is_gpu:
        return graph
    judge = _Judge(facts=facts, target=target, model=model, sizes=sizes, options=options, journal=journal)
    if options.numerics == "fast":
        graph = merged(graph, lambda pair: judge.reads_again(pair.both))
    found: dict[int, Pieces] = {}
    for family in _families(graph, judge):
        pieces = judge.pieces_of(family)
        if pieces is not None:
            found.update(dict.fromkeys(family.positions, pieces))
    if not found:
        return graph
    name = _namer(facts)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        pieces = found.get(position)
        if pieces is None:
            nodes.append(node)
        else:
            assert isinstance(node, Reduce)
            nodes.extend(combined(node, pieces, name))
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Reductions over the same ranges and axes; `rows` are what they load at points of the axes, each once."""

    positions: tuple[int, ...]
    members: tuple[Reduce, ...]
    rows: tuple[Load, ...]

    @property
    def ranges(self) -> tuple[Expr, ...]:
        return self.members[0].ranges

    @property
    def axes(self) -> tuple[Expr, ...]:
        return self.members[0].axes

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return tuple(b for member in self.members for b in member.outputs if b is not None)


def _families(graph: Graph, judge: _Judge) -> Iterator[_Family]:
    """Families of the reductions worth judging, by their first members."""
    rows: dict[int, tuple[Load, ...]] = {}
    parent: dict[int, int] = {}

    def find(position: int) -> int:
        while parent[position] != position:
            position = parent[position]
        return position

    first: dict[object, int] = {}
    for position, node in enumerate(graph.nodes):
        if not isinstance(node, Reduce) or not judge.candidate(node):
            continue
        rows[position] = _rows(node)
        parent[position] = position
        # the pieces of positions of extremes follow the axes, not memory
        domain = (node.ranges, node.axes, node.kind in _POSITIONS)
        for access in rows[position]:
            known = find(first.setdefault((domain, access.buffer), position))
            low, high = sorted((known, find(position)))
            parent[high] = low
    members: dict[int, list[int]] = {}
    for position in parent:
        members.setdefault(find(position), []).append(position)
    for positions in members.values():
        nodes = [graph.nodes[position] for position in positions]
        yield _Family(
            positions=tuple(positions),
            members=tuple(node for node in nodes if isinstance(node, Reduce)),
            rows=tuple(dict.fromkeys(access for position in positions for access in rows[position])),
        )


def _rows(node: Reduce) -> tuple[Load, ...]:
    axes = frozenset(node.axes)
    return tuple(
        access
        for access in loads((node.body,))
        if any(not axes.isdisjoint(e.free_symbols) for e in access.index)
    )


def _alone(node: Reduce) -> _Family:
    return _Family(positions=(), members=(node,), rows=_rows(node))


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
class _Judge:
    """Decides whether a family is cut, and into what."""

    facts: Dependence
    target: Target
    model: CostModel
    sizes: SizeHints
    options: ScheduleOptions
    journal: Journal

    def candidate(self, node: Reduce) -> bool:
        """True if `node` has so few results that one kernel for them might leave the device idle."""
        extents = tuple(extent_of(r) for r in (*node.ranges, *node.axes))
        if node.checks or not all(provably_positive(e) for e in extents):
            return False
        results = self.sizes.numel(extents[: len(node.ranges)])
        fewest = programs_of(results, across=True)
        return fewest < self.target.multiprocessors * PROGRAMS and self._length(node.axes) >= 2 * LEAST_ACROSS

    def pieces_of(self, family: _Family) -> Pieces | None:
        """How to cut the axes of `family`; `None` if one kernel for each result does as well."""
        found = self._weighed(family)
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
        return found.pieces if found.pays else None

    def splits(self, family: _Family) -> bool:
        """Whether `pieces_of` cuts `family`; records nothing."""
        found = self._weighed(family)
        return found is not None and found.pays

    def reads_again(self, node: Reduce) -> bool:
        """Whether two reductions over the rows of `node`, one of which needs the other's result, read them twice.

        They do unless a program keeps its row on chip; rows of unknown length it does not keep.
        """
        if self.candidate(node) and self.splits(_alone(node)):
            return True
        longest = 1
        for axis in node.axes:
            top = bounds(extent_of(axis)).hi
            if top is None:
                return True
            longest *= top
        across = self._shape(_alone(node)).across
        return longest > LONGEST_COLUMN if across else 4 * longest > self.options.persistent_bytes

    def _weighed(self, family: _Family) -> _Weighed | None:
        shape = self._shape(family)
        wanted = self._wanted(family, shape)
        if wanted < 2 or (not shape.across and 4 * shape.length <= self.options.persistent_bytes):
            # a row that stays on chip is read once for all that needs it
            return None
        ordered = family.members[0].kind in _POSITIONS
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

    def _shape(self, family: _Family) -> _Shape:
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

    def _wanted(self, family: _Family, shape: _Shape) -> float:
        """Pieces per result that fill the device, none of them too short to be worth a program."""
        blocks = max(shape.results / BLOCK, 1) if shape.across else shape.results
        wanted = self.target.multiprocessors * PROGRAMS / blocks
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

    def _second_us(self, family: _Family, shape: _Shape, pieces: int) -> float:
        """Time of the kernel that reduces the results of pieces, which the first one also has to write."""
        moved = sum(b.dtype.compute.itemsize for b in family.outputs) * shape.results * pieces
        return self.model.kernel_us(
            KernelWork(
                read_bytes=moved,
                write_bytes=moved,
                operations=shape.results * pieces * len(family.outputs),
                rows=shape.results,
                row_length=pieces,
                programs=shape.results,
            )
        )

    def _by_memory(self, family: _Family) -> tuple[Expr, ...]:
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


def _namer(facts: Dependence) -> Callable[[str], str]:
    taken = set(facts.buffers)

    def name(wanted: str) -> str:
        found, number = wanted, 1
        while found in taken:
            number += 1
            found = f"{wanted}_{number}"
        taken.add(found)
        return found

    return name
