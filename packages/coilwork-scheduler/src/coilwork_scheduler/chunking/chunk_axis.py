"""The range along which a region is cut, in each of its nodes.

Along rows each chunk has some rows of the product, and all of their columns: what is reduced along columns
is complete in each chunk. Along columns it has some columns of all rows: what is summed along rows is
complete. What is combined along the range that is cut is accumulated, chunk by chunk, in the type of the
sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_int
from coilwork_ir.loops import Contraction, Node, Pointwise, Reduce, View
from coilwork_ir.loops.access import list_defined_buffers, list_read_buffers
from coilwork_scheduler.chunking.region import NoRegion, Region, is_matrix_product, list_reads

_COMBINED = frozenset({"sum", "prod", "max", "min"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAxis:
    """The range along which members are cut.

    Attributes:
        along: the product's dimension: 0 for rows, 1 for columns.
        symbols: the range or axis of each member that is cut, by the first buffer that it defines; views have
            none.
        dims: the dimension of each of the region's buffers that is cut.
        partial: buffers of which each chunk has a part of each element's sum.
    """

    along: int
    symbols: Mapping[str, Expr]
    dims: Mapping[str, int]
    partial: frozenset[str]


def find_axis(region: Region, buffers: Mapping[str, Buffer], along: int) -> ChunkAxis:
    """Return the axis along the product's dimension `along`.

    Raises:
        NoRegion: a member reads elements of several chunks.
    """
    search = _Search(region=region, buffers={**buffers, **region.buffers}, along=along)
    search.run()
    return ChunkAxis(along=along, symbols=search.symbols, dims=search.dims, partial=frozenset(search.partial))


@dataclass(slots=True, kw_only=True)
class _Search:
    region: Region
    buffers: Mapping[str, Buffer]
    along: int
    symbols: dict[str, Expr] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)

    def run(self) -> None:
        product, *_ = (n for n in self.region.members if self._is_product(n))
        assert isinstance(product, Contraction)
        makers = {b.name: node for node in self.region.members for b in list_defined_buffers(node)}
        self._place(product, product.ranges[self.along])
        pending: list[Node] = []
        for node in self.region.members:
            read = [name for name in list_read_buffers(node) if name in makers]
            if node is product or not any(name in self.dims or name in self.partial for name in read):
                # computed again: where it is read says how it is cut
                continue
            if not self.partial.isdisjoint(read):
                raise NoRegion("what is combined along it is read again")
            if isinstance(node, View):
                self.dims[node.output.name] = self._find_view_dim(node)
                continue
            self._place(node, self._find_symbol(node))
            pending.append(node)
        for node in pending:
            self._place_others(node, makers)

    def _is_product(self, node: Node) -> bool:
        return isinstance(node, Contraction)

    def _place_others(self, node: Node, makers: Mapping[str, Node]) -> None:
        """Cut the values that `node` reads, and that do not depend on the product, where it is cut."""
        stack = [node]
        while stack:
            at = stack.pop()
            symbol = self.symbols[list_defined_buffers(at)[0].name]
            for access in list_reads(at):
                maker = makers.get(access.buffer)
                if maker is None:
                    continue
                found = [k for k, place in enumerate(access.index) if place is symbol]
                known = self.dims.get(access.buffer)
                if known is None and len(found) == 1:
                    assert isinstance(maker, Pointwise)
                    self._place(maker, maker.ranges[found[0]])
                    stack.append(maker)
                elif known is None or [known] != found:
                    raise NoRegion("a value is read across chunks")

    def _find_symbol(self, node: Node) -> Expr:
        """Return the range or axis of `node` along which it reads what is cut."""
        assert isinstance(node, Pointwise | Reduce | Contraction)
        own = (*node.ranges, *(() if isinstance(node, Pointwise) else node.axes))
        found: set[Expr] = set()
        for access in list_reads(node):
            dim = self.dims.get(access.buffer)
            if dim is None:
                continue
            place = access.index[dim]
            others = (e for k, e in enumerate(access.index) if k != dim)
            if place not in own or any(place in e.free_symbols for e in others):
                raise NoRegion("elements of several chunks are read")
            found.add(place)
        if len(found) != 1:
            raise NoRegion("several ranges run along it")
        return found.pop()

    def _place(self, node: Node, symbol: Expr) -> None:
        """Note that `node` is cut along `symbol`."""
        assert isinstance(node, Pointwise | Reduce | Contraction)
        defined = list_defined_buffers(node)
        if isinstance(node, Contraction) and (
            node.groups is not None or not is_matrix_product(node, self.buffers)
        ):
            raise NoRegion("a product of another form reads it")
        for buffer in defined:
            self.symbols[buffer.name] = symbol
            if symbol in node.ranges:
                self.dims[buffer.name] = node.ranges.index(symbol)
            else:
                self.partial.add(buffer.name)
        if symbol not in node.ranges and isinstance(node, Reduce):
            if node.kind not in _COMBINED or len(defined) != 1:
                raise NoRegion("what is combined along it has no parts")

    def _find_view_dim(self, node: View) -> int:
        """Return the dimension of a view that is cut: memory is the same in another order of dimensions, with
        others of them joined, or without what pads it.
        """
        source, output = self.buffers[node.source], node.output
        dim = self.dims[node.source]
        step, extent = as_int(source.strides[dim]), as_int(source.shape[dim])
        strides = [as_int(stride) for stride in output.strides]
        found = [
            k
            for k, (size, stride) in enumerate(zip(output.shape, strides, strict=True))
            if stride == step and as_int(size) != 1
        ]
        whole = as_int(node.offset) == 0 and output.dtype is source.dtype and source.span is source.numel
        if step is None or extent is None or len(found) != 1 or not whole:
            raise NoRegion("a view leaves elements out")
        size = as_int(output.shape[found[0]])
        outside = [s for s in strides if s is None or s > step]
        if size is None or size > extent or any(s is None or s % (step * extent) for s in outside):
            raise NoRegion("a view mixes elements of several chunks")
        return found[0]
