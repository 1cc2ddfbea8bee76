"""The pass that computes large products chunk by chunk, if only loops and further products read them.

The logits of a language model are the example: 8192 tokens of a vocabulary of 50304 take 786 MiB in bf16,
and all that is wanted of them are a loss and two gradients. Each chunk of the product is read by copies of
the region's nodes before the next one is computed. Results of the chunks are stored in their places; parts of
sums are added up in the type of the sums, in order, so that all runs give the same bits.

Rows or columns are cut, whichever needs less memory. A loss needs none along rows. Of the gradients
of two factors one is complete in each chunk, and the other one is a sum of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.device_traits import CUBLAS
from coilwork_ir.index import Expr, as_expr, as_int, get_extent, substitute, symbol
from coilwork_ir.loops import (
    Contraction,
    Graph,
    Node,
    Pointwise,
    Reduce,
    Scatter,
    View,
)
from coilwork_ir.loops.access import list_defined_buffers, list_read_buffers
from coilwork_ir.loops.matrix_products import make_product, match_matrix_product
from coilwork_ir.machine.model import Products
from coilwork_ir.scalar import Load, Parameter, Scalar, cast, load, op, rewrite, substitute_ranges
from coilwork_scheduler.chunking.chunk_axis import ChunkAxis, find_axis
from coilwork_scheduler.chunking.region import NoRegion, Region, find_region, is_matrix_product
from coilwork_scheduler.contractions.aten_products import accumulate_product
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings

_ADDED: Final = MappingProxyType({"sum": "add", "prod": "mul", "min": "minimum", "max": "maximum"})
# Sums of 16-bit products are in f32.
_SUM_BYTES: Final = 4
# A chunk has that part of the room at least, however large sums are.
_LEAST_SHARE: Final = 4
# The share of the product's time that sums may take: chunks are larger than the room for more. So few chunks
# may take more of it.
_SUMS_SHARE: Final = 0.25
_FEW_CHUNKS: Final = 4
_FEW_SUMS_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedGraph:
    """A graph whose large products are computed in chunks.

    `chunks` maps what is computed for one chunk to its number: kernels of several chunks would need all of
    these in memory at once.
    """

    graph: Graph
    chunks: Mapping[str, int]


def chunk_products(graph: Graph, facts: Dependence, settings: Settings) -> ChunkedGraph:
    """Cut the products whose results are much larger than their factors, and needed nowhere as a whole.

    Each decision is recorded. Linear in the size of the graph for each large product.
    """
    for position, node in enumerate(graph.nodes if settings.options.chunk_products else ()):
        if not isinstance(node, Contraction) or not _is_large(node, facts, settings):
            continue
        try:
            region = find_region(graph, facts, position)
            plan = _choose_plan(region, facts, settings)
        except NoRegion as found:
            settings.remarks.note("chunk", (node.output.name,), False, str(found))
            continue
        settings.remarks.note(
            "chunk",
            (node.output.name,),
            True,
            "its chunks are read before the next one is computed",
            chunks=len(plan.ends),
            along=plan.axis.along,
            sums_bytes=plan.sums_bytes,
            bytes=settings.sizes.size_bytes(node.output),
        )
        writer = _ChunkWriter(
            region=region,
            axis=plan.axis,
            buffers={**facts.buffers, **region.buffers},
            name=facts.fresh_names().close_to,
            settings=settings,
        )
        made = writer.write(plan.ends)
        return ChunkedGraph(graph=_insert(graph, region, made), chunks=writer.chunks)
    return ChunkedGraph(graph=graph, chunks={})


def _is_large(node: Contraction, facts: Dependence, settings: Settings) -> bool:
    """Tell if the result of `node` is worth chunks: large by itself, and beside its factors."""
    output = node.output
    if len(output.shape) != 2 or any(as_int(size) is None for size in output.shape):
        return False
    if output.strides != make_contiguous_strides(output.shape) or not is_matrix_product(node, facts.buffers):
        return False
    figures, size = _get_figures(output, settings), settings.sizes.size_bytes
    product = match_matrix_product(node, facts.buffers)
    assert product is not None
    factors = size(product.left) + size(product.right)
    return size(output) >= max(figures.chunked_bytes, figures.chunked_share * factors)


def _get_figures(buffer: Buffer, settings: Settings) -> Products:
    return settings.targets.of(buffer.device).machine.products


# ---- The plan ----


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The cut of a region: where chunks end, and the memory for one of them and for sums of parts."""

    axis: ChunkAxis
    ends: tuple[int, ...]
    sums_bytes: int
    chunk_bytes: int


def _choose_plan(region: Region, facts: Dependence, settings: Settings) -> _Plan:
    """Return the plan with the fewest bytes in memory; none spends more than a share of the product's time on
    sums.

    Raises:
        NoRegion: neither rows nor columns can be cut.
    """
    plans: list[_Plan] = []
    reasons: list[str] = []
    for along in (0, 1):
        try:
            plans.append(_plan(region, find_axis(region, facts.buffers, along), settings))
        except NoRegion as found:
            reasons.append(f"{('rows', 'columns')[along]}: {found}")
    if not plans:
        raise NoRegion("; ".join(reasons))
    return min(plans, key=lambda plan: plan.sums_bytes + plan.chunk_bytes)


def _plan(region: Region, axis: ChunkAxis, settings: Settings) -> _Plan:
    product = next(node for node in region.members if isinstance(node, Contraction))
    output, figures = product.output, _get_figures(product.output, settings)
    extent, size = as_int(output.shape[axis.along]), settings.sizes.size_bytes(output)
    assert extent is not None
    sums = sum(
        settings.sizes.numel(buffer.shape) * max(_SUM_BYTES, buffer.dtype.itemsize)
        for name, buffer in region.buffers.items()
        if name in axis.partial
    )
    room = max(figures.chunk_room_bytes - sums, figures.chunk_room_bytes // _LEAST_SHARE)
    most_chunks = _count_affordable(product, sums, settings)
    if most_chunks < 2:
        raise NoRegion("sums of parts take too long beside the product")
    tile = figures.row_tile
    most = max(tile, room * extent // size // tile * tile, ceil(extent / most_chunks / tile) * tile)
    count = ceil(extent / most)
    if count < 2:
        raise NoRegion("one chunk holds all of it")
    step = ceil(extent / count / tile) * tile
    ends = tuple(min(extent, (k + 1) * step) for k in range(ceil(extent / step)))
    shortest = min(as_int(region.buffers[name].shape[dim]) or 0 for name, dim in axis.dims.items())
    if shortest <= ends[-2]:
        raise NoRegion("some elements are left out")
    return _Plan(axis=axis, ends=ends, sums_bytes=sums, chunk_bytes=size // extent * step)


def _count_affordable(product: Contraction, sums_bytes: int, settings: Settings) -> int:
    """Return the most chunks for which reading and writing sums takes a share of the product's time, at the
    rates that the device claims; as many as there are rows or columns where it claims none.
    """
    sizes, target = settings.sizes, settings.targets.of(product.output.device)
    results = sizes.numel(product.output.shape)
    if not sums_bytes or not target.matrix_tflop_s:
        return results
    operations = 2 * results * sizes.numel(tuple(get_extent(axis) for axis in product.axes))
    product_us = operations / (target.matrix_tflop_s * 1e6)
    each_us = 2 * sums_bytes / (target.bandwidth_gb_s * 1e3)
    few = min(_FEW_CHUNKS, int(_FEW_SUMS_SHARE * product_us / each_us))
    return max(few, int(_SUMS_SHARE * product_us / each_us))


# ---- Its nodes ----


@dataclass(slots=True, kw_only=True)
class _ChunkWriter:
    """Makes copies of a region's nodes, chunk by chunk.

    `chunks` says which chunk a buffer belongs to.
    """

    region: Region
    axis: ChunkAxis
    buffers: Mapping[str, Buffer]
    name: Callable[[str], str]
    settings: Settings
    chunks: dict[str, int] = field(default_factory=dict)
    _sums: dict[str, Buffer] = field(default_factory=dict)

    def write(self, ends: Sequence[int]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        start = 0
        for number, end in enumerate(ends):
            chunk = _Chunk(number=number, start=start, size=end - start, is_last=number == len(ends) - 1)
            for node in self.region.members:
                nodes += self._copy(node, chunk)
            nodes += self._store(chunk)
            start = end
        nodes += self._finish()
        return tuple(nodes)

    # one chunk

    def _copy(self, node: Node, chunk: _Chunk) -> Iterator[Node]:
        """Return `node` for the points of `chunk`, and views of the parts of operands that it multiplies."""
        if isinstance(node, View):
            dim = self.axis.dims[node.source]
            output = self._cut(node.output, chunk, within=self.buffers[node.source].shape[dim])
            yield replace(node, output=output, source=chunk.names[node.source])
            return
        assert isinstance(node, Pointwise | Reduce | Contraction)
        whole = self.axis.symbols[list_defined_buffers(node)[0].name]
        here = symbol(whole.name, extent=as_expr(chunk.count(get_extent(whole))))
        cut = _Cut(writer=self, chunk=chunk, whole=whole, part=here)
        ranges = tuple(here if r is whole else r for r in node.ranges)
        if isinstance(node, Contraction):
            yield from self._copy_product(node, cut, ranges)
            return
        checks = tuple(replace(c, condition=cut.move(c.condition)) for c in node.checks)
        body = cut.move(node.body)
        if isinstance(node, Pointwise):
            output = self._cut(node.output, chunk)
            yield replace(node, output=output, ranges=ranges, body=body, checks=checks)
            return
        axes = tuple(here if r is whole else r for r in node.axes)
        outputs = tuple(None if b is None else self._cut(b, chunk) for b in node.outputs)
        yield replace(node, outputs=outputs, ranges=ranges, axes=axes, body=body, checks=checks)
        part, first = outputs[0], node.outputs[0]
        if part is not None and first is not None and first.name in self.axis.partial:
            yield from self._add_reduced(first, part, node)

    def _copy_product(self, node: Contraction, cut: _Cut, ranges: tuple[Expr, ...]) -> Iterator[Node]:
        views: list[Node] = []
        left, right, epilogue = (
            cut.read_slices(cut.move(body), views) for body in (node.left, node.right, node.epilogue)
        )
        yield from views
        chunk = cut.chunk
        if node.output.name not in self.axis.partial:
            output = self._cut(node.output, chunk)
            yield replace(node, output=output, ranges=ranges, left=left, right=right, epilogue=epilogue)
            return
        yield from self._add_product(node, left, right, chunk)

    def _add_product(self, node: Contraction, left: Scalar, right: Scalar, chunk: _Chunk) -> Iterator[Node]:
        """Add the part of `chunk` to the sums of `node`, in their memory."""
        assert isinstance(left, Load) and isinstance(right, Load)
        factors: list[Buffer] = []
        dtype = node.accumulate
        adds_wide = self.settings.targets.of(node.output.device).has(CUBLAS)
        for factor in (left, right):
            buffer = self.buffers_now(factor.buffer, chunk)
            if not adds_wide and buffer.dtype is not dtype:
                # other libraries add in the type of the factors
                ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(buffer.shape))
                widened = Pointwise(
                    output=replace(
                        buffer,
                        name=self.name(f"{buffer.name}_wide"),
                        dtype=dtype,
                        strides=_make_dense_strides(buffer),
                    ),
                    ranges=ranges,
                    body=cast(load(buffer.name, ranges, buffer.dtype), dtype),
                    origins=node.origins,
                )
                self._note(widened.output, chunk)
                yield widened
                buffer = widened.output
            factors.append(buffer)
        before = self._sums.get(node.output.name)
        sums = replace(
            node.output,
            name=self.name(f"{node.output.name}_sums"),
            dtype=dtype,
            strides=make_contiguous_strides(node.output.shape),
        )
        self._sums[node.output.name] = sums
        if before is None:
            yield make_product(sums, factors[0], factors[1], origins=node.origins)
        else:
            yield accumulate_product(sums, before, factors[0], factors[1], origins=node.origins)

    def _add_reduced(self, whole: Buffer, part: Buffer, node: Reduce) -> Iterator[Node]:
        before = self._sums.get(whole.name)
        if before is None:
            self._sums[whole.name] = part
            return
        sums = replace(part, name=self.name(f"{whole.name}_sums"))
        ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(part.shape))
        both = [load(b.name, ranges, b.dtype) for b in (before, part)]
        yield Pointwise(output=sums, ranges=ranges, body=op(_ADDED[node.kind], *both), origins=node.origins)
        self._sums[whole.name] = sums

    def _cut(self, buffer: Buffer, chunk: _Chunk, within: Expr | None = None) -> Buffer:
        """Return the part of `buffer` that belongs to `chunk`; dimensions lie in the same order. `within` is
        the extent of what lies in memory, if that is longer.
        """
        dim = self.axis.dims.get(buffer.name)
        name = self.name(f"{buffer.name}_chunk")
        chunk.names[buffer.name] = name
        cut = replace(buffer, name=name)
        if dim is not None:
            own = chunk.count(buffer.shape[dim])
            shape = tuple(as_expr(own) if k == dim else size for k, size in enumerate(buffer.shape))
            held = buffer.shape[dim] if within is None else within
            strides = _scale_strides(buffer, dim, as_int(held) or 0, chunk.count(held))
            cut = replace(cut, shape=shape, strides=strides)
        self._note(cut, chunk)
        chunk.made[name] = cut
        return cut

    def _note(self, buffer: Buffer, chunk: _Chunk) -> None:
        self.chunks[buffer.name] = chunk.number

    def buffers_now(self, name: str, chunk: _Chunk) -> Buffer:
        return chunk.made[name] if name in chunk.made else self.buffers[name]

    # results

    def _store(self, chunk: _Chunk) -> Iterator[Node]:
        """Put the results of `chunk` in their places."""
        for name in self.region.results:
            if name in self.axis.partial:
                continue
            dim, whole = self.axis.dims[name], self.region.buffers[name]
            part = chunk.made[chunk.names[name]]
            ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(part.shape))
            before = self._sums.get(name)
            is_same = whole.shape == self.region.results[name].shape
            final = name if chunk.is_last and is_same else self.name(f"{name}_filled")
            filled = replace(whole, name=final)
            yield Scatter(
                output=filled,
                into=None if before is None else before.name,
                ranges=ranges,
                index=tuple(r + chunk.start if k == dim else r for k, r in enumerate(ranges)),
                indirect=(),
                value=load(part.name, ranges, part.dtype),
                mode="store",
            )
            self._sums[name] = filled

    def _finish(self) -> Iterator[Node]:
        """Give results the names, types and layouts that they have outside."""
        makers = {b.name: node for node in self.region.members for b in list_defined_buffers(node)}
        for name, wanted in self.region.results.items():
            found = self._sums[name]
            if found.name == name:
                continue
            node = makers[name]
            if name not in self.axis.partial:
                yield View(output=wanted, source=found.name, offset=as_expr(0))
                continue
            assert isinstance(node, Contraction | Reduce)
            ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(found.shape))
            value: Scalar = load(found.name, ranges, found.dtype)
            if isinstance(node, Contraction):
                own = dict(zip(node.ranges, ranges, strict=True))
                (epilogue,) = substitute_ranges((node.epilogue,), own)
                value = _fill_parameter(epilogue, cast(value, node.accumulate))
            if isinstance(value, Load) and found.strides == wanted.strides and found.dtype is wanted.dtype:
                # nothing is left to do to the sums
                yield View(output=wanted, source=found.name, offset=as_expr(0))
            elif found.shape != wanted.shape:
                flat = replace(found, name=self.name(f"{name}_flat"), dtype=wanted.dtype)
                yield Pointwise(output=flat, ranges=ranges, body=value, origins=node.origins)
                yield View(output=wanted, source=flat.name, offset=as_expr(0))
            else:
                yield Pointwise(output=wanted, ranges=ranges, body=value, origins=node.origins)


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """Points `start` to `start + size`, and what is computed for them, by the name that it has outside."""

    number: int
    start: int
    size: int
    is_last: bool
    names: dict[str, str] = field(default_factory=dict)
    made: dict[str, Buffer] = field(default_factory=dict)

    def count(self, extent: Expr) -> int:
        """Return how many of its points a range of `extent` has: it may end before padding does."""
        known = as_int(extent)
        assert known is not None
        return min(self.start + self.size, known) - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Moves bodies over a whole range to the part of it that is in a chunk."""

    writer: _ChunkWriter
    chunk: _Chunk
    whole: Expr
    part: Expr

    def move(self, body: Scalar) -> Scalar:
        """Return `body` for the chunk's points, which reads what was computed for them."""
        (moved,) = substitute_ranges((body,), {self.whole: self.part + self.chunk.start})

        def visit(value: Scalar) -> Scalar:
            if not isinstance(value, Load) or value.buffer not in self.chunk.names:
                return value
            dim = self.writer.axis.dims[value.buffer]
            index = [e - self.chunk.start if k == dim else e for k, e in enumerate(value.index)]
            return load(
                self.chunk.names[value.buffer],
                index,
                value.dtype,
                indirect=value.indirect,
                mask=value.mask,
                other=value.other,
            )

        return rewrite((moved,), visit)[0]

    def read_slices(self, body: Scalar, views: list[Node]) -> Scalar:
        """Return `body`, in which what lies outside is read through views of the chunk's part of it, as
        libraries want it.
        """
        writer, chunk = self.writer, self.chunk

        def visit(value: Scalar) -> Scalar:
            if not isinstance(value, Load) or value.indirect or value.mask is not None:
                return value
            dims = [k for k, e in enumerate(value.index) if self.part in e.free_symbols]
            buffer = writer.buffers_now(value.buffer, chunk)
            if len(dims) != 1 or value.buffer in chunk.made:
                return value
            (dim,) = dims
            shape = tuple(self.part.extent if k == dim else e for k, e in enumerate(buffer.shape))
            assert all(size is not None for size in shape)
            name = writer.name(f"{buffer.name}_part")
            view = View(
                output=replace(buffer, name=name, shape=tuple(s for s in shape if s is not None)),
                source=buffer.name,
                offset=buffer.strides[dim] * chunk.start,
            )
            views.append(view)
            chunk.made[name] = view.output
            index = [substitute(e, {self.part: self.part - chunk.start}) for e in value.index]
            return load(name, index, value.dtype)

        return rewrite((body,), visit)[0]


def _fill_parameter(epilogue: Scalar, value: Scalar) -> Scalar:
    """Return `epilogue` of `value`."""
    return rewrite((epilogue,), lambda at: value if isinstance(at, Parameter) else at)[0]


def _make_dense_strides(buffer: Buffer) -> tuple[Expr, ...]:
    """Return strides without gaps, in the order of those of `buffer`."""
    order = sorted(range(len(buffer.shape)), key=lambda k: (as_int(buffer.strides[k]) or 0, -k))
    strides: list[Expr] = [as_expr(1)] * len(order)
    step = as_expr(1)
    for k in order:
        strides[k] = step
        step = step * buffer.shape[k]
    return tuple(strides)


def _scale_strides(buffer: Buffer, dim: int, extent: int, size: int) -> tuple[Expr, ...]:
    """Return the strides of `buffer` if memory has `size` elements along `dim`, instead of `extent`."""
    step = as_int(buffer.strides[dim])
    assert step is not None
    strides: list[Expr] = []
    for k, stride in enumerate(buffer.strides):
        far = as_int(stride)
        assert far is not None
        is_outside = k != dim and far >= step * extent
        strides.append(as_expr(far // extent * size) if is_outside else stride)
    return tuple(strides)


def _insert(graph: Graph, region: Region, made: tuple[Node, ...]) -> Graph:
    """Return `graph` with `made` for the region: behind what it reads, before what reads it."""
    own = {b.name for at in region.positions for b in list_defined_buffers(graph.nodes[at])}
    before: list[Node] = []
    after: list[Node] = []
    late = set(own)
    for at in range(region.first, region.last + 1):
        node = graph.nodes[at]
        if at in region.positions:
            continue
        if late.isdisjoint(list_read_buffers(node)):
            before.append(node)
        else:
            after.append(node)
            late.update(b.name for b in list_defined_buffers(node))
    nodes = (*graph.nodes[: region.first], *before, *made, *after, *graph.nodes[region.last + 1 :])
    return replace(graph, nodes=nodes)
