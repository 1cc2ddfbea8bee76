"""The traffic of a loop through memory under given strides, in bytes weighted by locality.

A kernel runs along one of its ranges. What lies together along it moves at the full bandwidth; of the rest, a
whole sector moves for each element. Tiling decides later which range that is; here each loop takes the best
one. Only a reduction whose result goes back to every element of its row, as a norm's or a softmax's, runs
along that row: its kernel keeps rows. Pointwise kernels have tiles of two directions, and pay less.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, add_all, as_expr, as_int, find_run_stride, get_extent, substitute
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import list_bodies, list_defined_buffers
from coilwork_ir.loops.layouts import Strides, find_dense_order, make_nested_strides
from coilwork_ir.scalar import find_index_symbols, list_loads
from coilwork_ir.target import Targets
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion_group import Computation
from coilwork_scheduler.layouts.constraints import (
    IMPOSSIBLE,
    SCALE,
    Choice,
    Copy,
    LayoutContext,
    LayoutOf,
    Site,
)

# Of a pointwise kernel's tile one direction lies together in each of its buffers: sectors are used up from
# the cache. A modelled share.
TILED: Final = 2
_NOT_AFFINE: Final = -1
_NONE: Final = as_expr(0)
COMPUTATIONS: Final = (Pointwise, Reduce, Scan, Sort, Scatter)
# loops over rows between a reduction and the loop over elements: a division, an addition, a root
_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class Touch:
    """One load or store of a node: `buffer` at `index`, whose placeholders vary along the ranges `looked_up`;
    it is in memory `root`. Of a window it is the first of `taps` loads.
    """

    root: str
    buffer: Buffer
    index: tuple[Expr, ...]
    looked_up: frozenset[Expr]
    taps: int = 1


def list_touches(
    node: Computation, buffers: Mapping[str, Buffer], roots: Mapping[str, str]
) -> tuple[Touch, ...]:
    """Distinct loads and stores of `node`, loads first. Loads that differ by a distance, as the taps of a
    window, are one.
    """
    found: dict[Touch, None] = {}
    windows: dict[Hashable, dict[Touch, None]] = {}
    for access in list_loads(list_bodies(node)):
        indirect = find_index_symbols(access.indirect) if access.indirect else frozenset[Expr]()
        touch = Touch(roots[access.buffer], buffers[access.buffer], access.index, indirect)
        windows.setdefault((access.buffer, _steps_along(access.index), indirect), {}).setdefault(touch)
    for taps in windows.values():
        found.setdefault(replace(next(iter(taps)), taps=len(taps)))
    indirect = frozenset[Expr]()
    index = node.ranges
    if isinstance(node, Scatter):
        index = node.index
        indirect = find_index_symbols(node.indirect) if node.indirect else indirect
    for buffer in list_defined_buffers(node):
        found.setdefault(Touch(roots[buffer.name], buffer, index, indirect))
    return tuple(found)


def _steps_along(index: Sequence[Expr]) -> Hashable:
    """How `index` moves along each of its ranges; `index` itself where one of them has no step."""
    steps: list[Hashable] = []
    for place in index:
        moved = {symbol: find_run_stride(place, symbol) for symbol in place.free_symbols}
        if any(step is None for step in moved.values()):
            return tuple(index)
        steps.append(frozenset(moved.items()))
    return tuple(steps)


class NodeTraffic:
    """The traffic of one loop under any strides of the memory that it touches."""

    def __init__(
        self, node: Computation, reads: Iterable[str], context: LayoutContext, *, keeps_rows: bool = False
    ) -> None:
        sizes, roots = context.sizes, context.roots
        names = [*reads, *[buffer.name for buffer in list_defined_buffers(node)]]
        self.memory = tuple(dict.fromkeys([roots[name] for name in names]))
        """Memory that it reads and writes."""
        axes = node.axes if isinstance(node, Reduce) else ()
        extents = {r: sizes.value(get_extent(r)) for r in (*node.ranges, *axes)}
        self.ranges = tuple(r for r, extent in extents.items() if extent > 1)
        self.extents = tuple(extents[r] for r in self.ranges)
        along = [k for k, r in enumerate(self.ranges) if r in axes] if keeps_rows else []
        self._along = along or list(range(len(self.ranges)))
        self._sector = context.targets.of(list_defined_buffers(node)[0].device).machine.memory.strided_bytes
        self._most = TILED if isinstance(node, Pointwise) else self._sector
        self._node = node
        self._context = context
        self._sizes = sizes
        self._known = context.known
        self._touches: tuple[Touch, ...] | None = None
        self._forms: list[int] = []

    @property
    def touches(self) -> tuple[Touch, ...]:
        """Its distinct loads and stores, found when they are first asked for: many loops touch nothing that
        is free.
        """
        found = self._touches
        if found is None:
            found = self._touches = list_touches(self._node, self._context.buffers, self._context.roots)
            forms, shared = self._known.forms, (self.ranges, tuple(self._along), self._most)
            for touch in found:
                form = (*shared, touch.index, touch.looked_up, touch.taps, touch.buffer.dtype.itemsize)
                self._forms.append(forms.setdefault(form, len(forms)))
        return found

    @property
    def obliges(self) -> tuple[str, ...]:
        """Nothing: a loop reads memory as it lies."""
        return ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """None beside layouts."""
        return ()

    def list_copies(self, layout: LayoutOf) -> tuple[Copy, ...]:
        """None: a copy costs at least the loop that reads across."""
        return ()

    @property
    def form(self) -> Hashable:
        """The forms of its touches, each of which holds the ranges."""
        return (NodeTraffic, *self._forms) if self.touches and self.ranges else None

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        """All that it touches."""
        return tuple([(touch.root, touch.buffer) for touch in self.touches])

    def cost(self, layout: LayoutOf) -> int:
        """Eighths of bytes under `layout`."""
        if not self.ranges:
            return 0
        lying: list[Strides] = []
        for touch in self.touches:
            strides = layout(touch.root, touch.buffer)
            if strides is None:
                return IMPOSSIBLE
            lying.append(strides)
        key = (tuple(self._forms), tuple(lying))
        found = self._known.costs.get(key)
        if found is None:
            found = self._known.costs[key] = self._sum_weights(lying)
        return found

    def _sum_weights(self, lying: Sequence[Strides]) -> int:
        known = self._known.weights
        weights: list[tuple[int, ...]] = []
        for touch, form, strides in zip(self.touches, self._forms, lying, strict=True):
            found = known.get((form, strides))
            if found is None:
                found = known[form, strides] = self._weigh(touch, form, strides)
            weights.append(found)
        return min(map(sum, zip(*weights, strict=True)))

    def least(self) -> int:
        """Return the cost if everything lay as this loop likes."""
        if not self.ranges:
            return 0
        return SCALE * sum(map(self._bytes_met, self.touches, self._forms))

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """For each range along which some other memory lies together, the order in which `root` has the
        dimension innermost that moves along this range; and the order in which that other memory nests its
        ranges.
        """
        lying = tuple([(touch.buffer.strides, touch.root == root.name) for touch in self.touches])
        key = (tuple(self._forms), lying, root.shape, root.strides)
        found = self._known.proposals.get(key)
        if found is None:
            orders = self._orders(root, [[touch.buffer.strides] for touch in self.touches])
            found = self._known.proposals[key] = tuple(_nest(root, order) for order in orders)
        return found

    def follow(self, root: Buffer, lying: Mapping[str, Sequence[Strides]]) -> Iterable[Strides]:
        """Return the same for each way in which other memory may lie."""
        strides_of = self._context.views.strides_of
        shown: list[list[Strides]] = []
        for touch in self.touches:
            views = [strides_of(touch.buffer.name, strides) for strides in lying.get(touch.root, ())]
            shown.append([strides for strides in views if strides is not None])
        return [_nest(root, order) for order in self._orders(root, shown)]

    def _orders(self, root: Buffer, lying: Sequence[Sequence[Strides]]) -> Iterable[tuple[int, ...]]:
        """Orders of the dimensions of `root` that suit what else is touched, each in all the ways `lying`."""
        captured = find_dense_order(root)
        assert captured is not None, f"%{root.name} has gaps"
        found: dict[tuple[int, ...], None] = {}
        for touch in self.touches:
            if touch.root != root.name:
                continue
            dimension = self._dimensions(touch, root)
            for elsewhere, ways in zip(self.touches, lying, strict=True) if dimension else ():
                for strides in ways if elsewhere.root != root.name else ():
                    nested = self._order_ranges(elsewhere, strides)
                    order = [dimension[r] for r in nested if r in dimension]
                    if not order or nested[-1] not in dimension:
                        continue
                    found.setdefault((*(d for d in captured if d not in order), *order))
                    found.setdefault((*(d for d in captured if d != order[-1]), order[-1]))
        return found

    def _steps(self, touch: Touch, strides: Strides) -> dict[Expr, Expr]:
        """Steps of `touch` along the ranges that it moves along, in memory of these strides."""
        key = (self.ranges, touch.index, strides)
        known = self._known.steps.get(key)
        if known is None:
            offset = replace(touch.buffer, strides=strides).offset_of(touch.index)
            steps = {symbol: find_run_stride(offset, symbol) for symbol in self.ranges}
            known = {symbol: step for symbol, step in steps.items() if step is not None and step is not _NONE}
            self._known.steps[key] = known
        return known

    def _dimensions(self, touch: Touch, root: Buffer) -> dict[Expr, int]:
        """Return the dimension of `root` in which each range moves by one element and alone, of those that
        do.
        """
        found: dict[Expr, int] = {}
        for symbol, step in self._steps(touch, touch.buffer.strides).items():
            if symbol in touch.looked_up or sum(symbol in place.free_symbols for place in touch.index) != 1:
                continue
            for d, stride in enumerate(root.strides):
                same = step is stride or step is -stride
                if same and as_int(root.shape[d]) != 1 and d not in found.values():
                    found[symbol] = d
                    break
        return found

    def _order_ranges(self, touch: Touch, strides: Strides) -> list[Expr]:
        """Ranges in the order in which the memory of `touch` nests them under `strides`, the innermost last,
        if one moves by one element.
        """
        numbers = {symbol: as_int(step) for symbol, step in self._steps(touch, strides).items()}
        known = {symbol: abs(step) for symbol, step in numbers.items() if step}
        if 1 not in known.values():
            return []
        return sorted(known, key=lambda symbol: -known[symbol])

    def _bytes_met(self, touch: Touch, form: int) -> int:
        """Bytes of the elements that `touch` meets, each once."""
        found = self._known.bytes_met.get(form)
        if found is None:
            found = self._known.bytes_met[form] = self._count_bytes(touch)
        return found

    def _count_bytes(self, touch: Touch) -> int:
        count = touch.buffer.dtype.itemsize
        for symbol, extent in zip(self.ranges, self.extents, strict=True):
            if self._varies(touch, symbol):
                count *= extent
        return count

    def _varies(self, touch: Touch, symbol: Expr) -> bool:
        return symbol in touch.looked_up or any(symbol in place.free_symbols for place in touch.index)

    def _weigh(self, touch: Touch, form: int, strides: Strides) -> tuple[int, ...]:
        """Cost of `touch`, for each range along which the kernel may run."""
        offset = add_all(i * s for i, s in zip(touch.index, strides, strict=True))
        steps = tuple(self._step(touch, offset, symbol) for symbol in self.ranges)
        runs = tuple(self._run(touch, offset, k, step) for k, step in enumerate(steps))
        size, itemsize = self._bytes_met(touch, form), touch.buffer.dtype.itemsize
        factors = [self._factor(steps, runs[k], k, itemsize) for k in self._along]
        # what lies together is in a cache when the next tap asks for it
        return tuple(size * (factor + (touch.taps - 1) * (factor - SCALE)) for factor in factors)

    def _step(self, touch: Touch, offset: Expr, symbol: Expr) -> int:
        if symbol in touch.looked_up:
            return _NOT_AFFINE
        step = find_run_stride(offset, symbol)
        return _NOT_AFFINE if step is None else abs(self._sizes.value(step))

    def _run(self, touch: Touch, offset: Expr, k: int, step: int) -> int:
        """Neighbours along range `k` that lie together: all of them, or as many as there are between two
        carries of a reshaped index.
        """
        symbol, extent = self.ranges[k], self.extents[k]
        if step != _NOT_AFFINE or symbol in touch.looked_up:
            return extent if step == 1 else 1
        most = min(extent, max(1, self._sector // touch.buffer.dtype.itemsize))
        places = [self._sizes.value(substitute(offset, {symbol: as_expr(i)})) for i in range(most)]
        return next((i for i in range(1, most) if abs(places[i] - places[i - 1]) != 1), most)

    def _factor(self, steps: tuple[int, ...], run: int, inner: int, itemsize: int) -> int:
        """How often, in eighths, a byte counts where a kernel runs along range `inner`."""
        most = max(1, min(self._most, self._sector // itemsize)) * SCALE
        step = steps[inner]
        if step == 0:
            return SCALE
        if step != 1 and run == 1:
            apart = self._sector // itemsize if step == _NOT_AFFINE else step
            return min(apart * SCALE, most)
        if step == 1 and run * itemsize < self._sector:
            # short rows that lie side by side are one long one
            onward = [e for s, e in zip(steps, self.extents, strict=True) if s == run]
            run *= max(onward, default=1)
        return min(most, max(SCALE, SCALE * self._sector // (run * itemsize)))


def weigh_loop(position: int, node: Node, context: LayoutContext) -> Site | None:
    """`node` as a loop, if it is one."""
    if not isinstance(node, COMPUTATIONS):
        return None
    reads = context.facts.reads[position]
    return NodeTraffic(node, reads, context, keeps_rows=position in context.row_reductions)


def list_row_reductions(
    graph: Graph, facts: Dependence, sizes: SizeHints, targets: Targets
) -> frozenset[int]:
    """Positions of the reductions whose result goes back to every element of the reduced rows, maybe through
    a few loops over rows.

    Rows that are too long to be kept on chip meanwhile are none, since a kernel may read columns of these,
    and neither are rows that results lie between, as channels lie between images for a batch norm: no layout
    makes one row of them.
    """
    reads = facts.reads
    readers: dict[str, list[Computation]] = {}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, COMPUTATIONS):
            for name in reads[position]:
                readers.setdefault(name, []).append(node)

    def goes_back(names: Iterable[str], rows: int, points: int, steps: int) -> bool:
        for reader in (r for name in names for r in readers.get(name, ())):
            axes = reader.axes if isinstance(reader, Reduce) else ()
            count = sizes.numel(tuple(get_extent(r) for r in (*reader.ranges, *axes)))
            if count == points and points > rows:
                return True
            onward = count == rows and steps and isinstance(reader, Pointwise)
            if onward and goes_back((b.name for b in list_defined_buffers(reader)), rows, points, steps - 1):
                return True
        return False

    found: set[int] = set()
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Reduce):
            rows = sizes.numel(tuple(get_extent(r) for r in node.ranges))
            length = sizes.numel(tuple(get_extent(r) for r in node.axes))
            points = rows * length
            walks = targets.capabilities_of(list_defined_buffers(node)[0].device).rows
            # of a generator that does not say it, rows of any length are
            is_kept = walks.kept_points == 0 or walks.keeps(length)
            if not is_kept or _has_results_between(node, facts.buffers, sizes):
                continue
            if goes_back((b.name for b in list_defined_buffers(node)), rows, points, _STEPS):
                found.add(position)
    return frozenset(found)


def _has_results_between(node: Reduce, buffers: Mapping[str, Buffer], sizes: SizeHints) -> bool:
    """Tell if some reduced range is outside all others of what `node` reads, and some inside."""

    def steps(offset: Expr, ranges: Iterable[Expr]) -> list[int]:
        known = [find_run_stride(offset, symbol) for symbol in ranges]
        return [step for stride in known if stride is not None and (step := abs(sizes.value(stride)))]

    if len(node.axes) < 2:
        return False
    for access in list_loads(list_bodies(node)):
        offset = buffers[access.buffer].offset_of(access.index)
        reduced, kept = steps(offset, node.axes), steps(offset, node.ranges)
        if reduced and kept and max(reduced) > max(kept) and min(reduced) < max(kept):
            return True
    return False


def _nest(root: Buffer, order: Sequence[int]) -> Strides:
    """Strides that nest dimensions in `order`, those of one element outermost."""
    ones = [d for d in order if as_int(root.shape[d]) == 1]
    return make_nested_strides(root.shape, (*ones, *(d for d in order if d not in ones)))
