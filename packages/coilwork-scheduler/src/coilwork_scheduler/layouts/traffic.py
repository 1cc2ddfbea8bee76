"""Traffic of a loop through memory under given strides, in bytes that count more where neighbours do not lie together.

A kernel runs along one of its ranges: what lies together along it moves at the full bandwidth, and of what does not, whole sectors move
for one element each. Which range that is, the kernel's tiles decide later; here each loop takes the one that is best for it. Only a
reduction whose result goes back to every element of its row, as a norm's or a softmax's, runs along that row: its kernel keeps rows. Pointwise
kernels have tiles of two directions, and pay less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, extent_of, stride_of, total
from coilwork_ir.loops import Graph, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import bodies, defined, read
from coilwork_ir.scalar import loads, range_symbols
from coilwork_scheduler.sizes import SizeHints
from coilwork_scheduler.stage import Computation

# Bytes that memory moves at least for one element. A norm across rows of f32 takes 94 us on an H200 where along them it takes 13.
SECTOR: Final = 32
# Of a pointwise kernel's tile one direction lies together in each of its buffers: sectors are used up from the cache. A modelled share.
_TILED: Final = 2
# Costs are whole numbers, of bytes in eighths.
SCALE: Final = 8
_NOT_AFFINE: Final = -1
COMPUTATIONS: Final = (Pointwise, Reduce, Scan, Sort, Scatter)
# loops over rows between a reduction and the loop over elements: a division, an addition, a root
_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class Touch:
    """One load or store of a node: `buffer` at `index`, whose placeholders vary along the ranges `looked_up`; it is in memory `root`."""

    root: str
    buffer: Buffer
    index: tuple[Expr, ...]
    looked_up: frozenset[Expr]


def touches_of(
    node: Computation, buffers: Mapping[str, Buffer], roots: Mapping[str, str]
) -> tuple[Touch, ...]:
    """Distinct loads and stores of `node`, loads first."""
    found: dict[Touch, None] = {}
    for access in loads(bodies(node)):
        indirect = range_symbols(access.indirect) if access.indirect else frozenset[Expr]()
        found.setdefault(Touch(roots[access.buffer], buffers[access.buffer], access.index, indirect))
    indirect = frozenset[Expr]()
    index = node.ranges
    if isinstance(node, Scatter):
        index = node.index
        indirect = range_symbols(node.indirect) if node.indirect else indirect
    for buffer in defined(node):
        found.setdefault(Touch(roots[buffer.name], buffer, index, indirect))
    return tuple(found)


class NodeTraffic:
    """The traffic of one loop under any strides of the memory that it touches."""

    def __init__(
        self,
        node: Computation,
        buffers: Mapping[str, Buffer],
        roots: Mapping[str, str],
        sizes: SizeHints,
        *,
        keeps_rows: bool = False,
    ) -> None:
        axes = node.axes if isinstance(node, Reduce) else ()
        extents = {r: sizes.value(extent_of(r)) for r in (*node.ranges, *axes)}
        self.ranges = tuple(r for r, extent in extents.items() if extent > 1)
        self.extents = tuple(extents[r] for r in self.ranges)
        along = [k for k, r in enumerate(self.ranges) if r in axes] if keeps_rows else []
        self._along = along or list(range(len(self.ranges)))
        self.touches = touches_of(node, buffers, roots)
        self._most = _TILED if isinstance(node, Pointwise) else SECTOR
        self._sizes = sizes
        self._weights: dict[tuple[int, tuple[Expr, ...]], tuple[int, ...]] = {}

    def cost(self, strides: Callable[[str, Buffer], tuple[Expr, ...]]) -> int:
        """Eighths of bytes under `strides`, asked by root and buffer."""
        if not self.ranges:
            return 0
        return min(self._by_range(strides))

    def waste(self, strides: Callable[[str, Buffer], tuple[Expr, ...]]) -> int:
        """How much of `cost` would go if everything lay as this loop likes."""
        return self.cost(strides) - SCALE * sum(self.bytes_of(touch) for touch in self.touches)

    def _by_range(self, strides: Callable[[str, Buffer], tuple[Expr, ...]]) -> list[int]:
        sums = [0] * len(self._along)
        for number, touch in enumerate(self.touches):
            for k, weight in enumerate(self._weigh(number, touch, strides(touch.root, touch.buffer))):
                sums[k] += weight
        return sums

    def bytes_of(self, touch: Touch) -> int:
        """Bytes of the elements that `touch` meets, each once."""
        count = touch.buffer.dtype.itemsize
        for symbol, extent in zip(self.ranges, self.extents, strict=True):
            if self._varies(touch, symbol):
                count *= extent
        return count

    def _varies(self, touch: Touch, symbol: Expr) -> bool:
        return symbol in touch.looked_up or any(symbol in place.free_symbols for place in touch.index)

    def _weigh(self, number: int, touch: Touch, strides: tuple[Expr, ...]) -> tuple[int, ...]:
        """Cost of `touch`, for each range along which the kernel may run."""
        key = (number, strides)
        found = self._weights.get(key)
        if found is None:
            offset = total(i * s for i, s in zip(touch.index, strides, strict=True))
            steps = tuple(self._step(touch, offset, symbol) for symbol in self.ranges)
            size, itemsize = self.bytes_of(touch), touch.buffer.dtype.itemsize
            found = tuple(size * self._factor(steps, k, itemsize) for k in self._along)
            self._weights[key] = found
        return found

    def _step(self, touch: Touch, offset: Expr, symbol: Expr) -> int:
        if symbol in touch.looked_up:
            return _NOT_AFFINE
        step = stride_of(offset, symbol)
        return _NOT_AFFINE if step is None else abs(self._sizes.value(step))

    def _factor(self, steps: tuple[int, ...], inner: int, itemsize: int) -> int:
        """How often, in eighths, a byte counts where a kernel runs along range `inner`."""
        most = max(1, min(self._most, SECTOR // itemsize)) * SCALE
        step = steps[inner]
        if step == 0:
            return SCALE
        if step != 1:
            apart = SECTOR // itemsize if step == _NOT_AFFINE else step
            return min(apart * SCALE, most)
        run = self.extents[inner]
        if run * itemsize < SECTOR:
            # short rows that lie side by side are one long one
            onward = [e for s, e in zip(steps, self.extents, strict=True) if s == run]
            run *= max(onward, default=1)
        return min(most, max(SCALE, SCALE * SECTOR // (run * itemsize)))


def list_row_reductions(graph: Graph, sizes: SizeHints) -> frozenset[int]:
    """Positions of the reductions whose result goes back to every element of the reduced rows, maybe through a few loops over rows."""
    readers: dict[str, list[Computation]] = {}
    for node in graph.nodes:
        if isinstance(node, COMPUTATIONS):
            for name in read(node):
                readers.setdefault(name, []).append(node)

    def goes_back(names: Iterable[str], rows: int, points: int, steps: int) -> bool:
        for reader in (r for name in names for r in readers.get(name, ())):
            axes = reader.axes if isinstance(reader, Reduce) else ()
            count = sizes.numel(tuple(extent_of(r) for r in (*reader.ranges, *axes)))
            if count == points and points > rows:
                return True
            onward = count == rows and steps and isinstance(reader, Pointwise)
            if onward and goes_back((b.name for b in defined(reader)), rows, points, steps - 1):
                return True
        return False

    found: set[int] = set()
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Reduce):
            rows = sizes.numel(tuple(extent_of(r) for r in node.ranges))
            points = rows * sizes.numel(tuple(extent_of(r) for r in node.axes))
            if goes_back((b.name for b in defined(node)), rows, points, _STEPS):
                found.add(position)
    return frozenset(found)
