"""Estimate how large and how costly a computation becomes when producers are inlined into it.

Views of views, gathers of gathers and concatenations of concatenations compose: each step puts an index
expression or a condition into another one, and a value that is read at two places is there twice. In memory,
where equal parts are one, the graph stays small. Written out it doubles at each step, and so does the time to
print it, prove something about it or run it. So there is a bound on the written size, and below that a size
from which on a value is stored if that costs less.

Most graphs are far below both: the models of the benchmark have at most 27 nodes in an index expression, and
654 in a body. An estimate shows that without any substitution. Only where it does not, the substitution is
made and measured, since much in it may cancel: `x.t().t()` composes to `x`. The result is then substituted as
it is, so that a chain takes time once per node.

`read_bytes` counts what a stored value costs a reader that goes through it several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from coilwork_ir.index import Expr, TreeSize, get_extent, measure_tree
from coilwork_ir.loops import Graph, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import list_bodies
from coilwork_ir.scalar import IndexValue, Load, Scalar, find_index_symbols, iterate_postorder, list_loads
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.options import ScheduleOptions

# ---- Sizes ----


Computation: TypeAlias = Pointwise | Reduce | Scan | Sort | Scatter
"""Nodes that generated loops compute."""

_PLAIN: Final = TreeSize(1, 1)
# Weighted operations per node of an index expression: about half of them are operations, divisions take
# several instructions each, and CPUs do them for one point at a time.
_COST: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BodySize:
    """The size of what a node computes.

    Attributes:
        scalars: nodes of its scalar graphs, equal ones once.
        longest: of its index expressions, the longest.
        written: all of its index expressions together, but for plain symbols and numbers.
    """

    scalars: int
    longest: TreeSize
    written: TreeSize

    @property
    def total(self) -> int:
        """Nodes of the scalar graphs, and of the index expressions written out."""
        return self.scalars + self.written.nodes

    def plus(self, producer: BodySize, most: TreeSize) -> BodySize:
        """Return a bound on the size with `producer` substituted for a load whose coordinates have at most
        the size `most`.
        """
        moved = producer.written.bound_substitution(most)
        return BodySize(
            scalars=self.scalars + producer.scalars,
            longest=_choose_larger(self.longest, producer.longest.bound_substitution(most)),
            written=TreeSize(self.written.nodes + moved.nodes, self.written.symbols + moved.symbols),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The cost of storing a producer's value: bytes read and written, its points, those of its consumer."""

    read_bytes: float
    write_bytes: float
    points: int
    consumer_points: int


class Growth:
    """Estimates how large the nodes of `graph` grow; `us` estimates a kernel from bytes and operations."""

    def __init__(
        self, graph: Graph, options: ScheduleOptions, us: Callable[[float, float, float], float]
    ) -> None:
        self._graph = graph
        self._options = options
        self._us = us
        self._own: dict[int, BodySize] = {}
        # of each load of a buffer by a node: the size of the longest coordinate
        self._places: dict[int, dict[str, list[TreeSize]]] = {}

    def get_own_size(self, position: int) -> BodySize:
        """Return the size of what the node at `position` computes, with nothing substituted."""
        if position not in self._own:
            values = tuple(iterate_postorder(list_bodies(self._graph.nodes[position])))
            self._own[position] = _size(values)
            places = self._places[position] = {}
            for value in values:
                if isinstance(value, Load):
                    most = _PLAIN
                    for expr in value.index:
                        most = _choose_larger(most, measure_tree(expr))
                    places.setdefault(value.buffer, []).append(most)
        return self._own[position]

    def estimate_size(self, position: int, before: BodySize, name: str, producer: BodySize) -> BodySize:
        """Return a bound on the size of the node at `position`, now `before`, with `producer` substituted for
        its loads of `name`.
        """
        size = before
        for most in self._places[position].get(name, ()):
            size = size.plus(producer, most)
        return size

    def is_small(self, size: BodySize) -> bool:
        """Tell whether `size`, or a bound on it, raises no question."""
        options = self._options
        return size.longest.nodes <= options.weighed_index_size and size.total <= options.max_body_size

    def drawback(self, before: BodySize, after: BodySize, producer: BodySize, copy: Copy) -> str | None:
        """Say why the result of `producer` should be stored; None if it may be inlined.

        `before` and `after` are the sizes of the consumer without and with it.
        """
        options = self._options
        if after.longest.nodes > options.max_index_size:
            return "stored: its consumer's index arithmetic would be too long"
        if after.total > options.max_body_size:
            return "stored: its consumer's conditions and index arithmetic would be too long"
        if after.longest.nodes <= options.weighed_index_size:
            return None
        # what else the consumer reads and writes is the same both ways
        inlined = self._us(copy.read_bytes, 0, _COST * after.written.nodes * copy.consumer_points)
        stored = self._us(
            copy.read_bytes, copy.write_bytes, _COST * producer.written.nodes * copy.points
        ) + self._us(copy.write_bytes, 0, _COST * before.written.nodes * copy.consumer_points)
        return "stored: its consumer's index arithmetic would cost more" if stored < inlined else None


def measure_bodies(roots: Iterable[Scalar]) -> BodySize:
    """Return the size of scalar graphs."""
    return _size(iterate_postorder(roots))


def _size(values: Iterable[Scalar]) -> BodySize:
    count = nodes = symbols = 0
    longest = TreeSize(0, 0)
    for value in values:
        count += 1
        if isinstance(value, Load):
            exprs = value.index
        elif isinstance(value, IndexValue):
            exprs = (value.expr,)
        else:
            continue
        for expr in exprs:
            size = measure_tree(expr)
            longest = _choose_larger(longest, size)
            if size.nodes > 1:
                nodes += size.nodes
            symbols += size.symbols
    return BodySize(scalars=count, longest=longest, written=TreeSize(nodes, symbols))


def _choose_larger(a: TreeSize, b: TreeSize) -> TreeSize:
    return TreeSize(max(a.nodes, b.nodes), max(a.symbols, b.symbols))


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinedComputation:
    """A computation with everything inlined into it that will be.

    Attributes:
        inlined: buffers whose loads in its own body are replaced.
        closure: nodes it computes, itself included.
        ops, cost: operations per point, plain and weighted, repeated evaluations included.
        leaves: buffers it reads in the end.
        mutable: roots among the leaves' memory that some node overwrites.
        size: of what it computes per point, at most.
        composed: its producers are substituted into it before it is into its consumers, as all at once is too
            much.
        has_copies: it computes a value at several places.
    """

    inlined: frozenset[str]
    closure: frozenset[int]
    ops: int
    cost: int
    leaves: frozenset[str]
    mutable: frozenset[str]
    size: BodySize
    composed: bool
    has_copies: bool


# ---- Rereads ----


def read_bytes(reader: Computation, name: str, size: int, sizes: SizeHints, resident: int) -> int:
    """Bytes of the buffer `name`, which has `size` of them, that `reader` takes from memory.

    What lies inside of a range along which it is the same is read again for each of its points, unless the
    `resident` bytes of a cache hold it.
    """
    ranges: tuple[Expr, ...] = reader.ranges + (reader.axes if isinstance(reader, Reduce) else ())
    most = size
    if size <= resident:
        return size
    for access in list_loads(list_bodies(reader)):
        if access.buffer != name:
            continue
        used = find_index_symbols((access,))
        points = max(sizes.numel(tuple(get_extent(r) for r in ranges if r in used)), 1)
        share = size / points
        inside, times = share, 1
        for r in reversed(ranges):
            count = max(sizes.value(get_extent(r)), 1)
            if r in used:
                inside *= count
            elif inside > resident:
                times *= count
        most = max(most, round(inside) * times)
    return most
