"""Find the nodes that stand between a large product and results that are small.

A region is a product of two matrices, `[rows, columns]`, and the nodes that read its result or values as
large that are computed from it, point by point. It ends at reductions and at further products. Statistics of
rows that the region reads again, as the greatest logit, are part of it. So are values as large that others
compute, as one-hot labels: each chunk computes them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.index import Expr, add_all, as_expr, as_int, floordiv, get_extent, mod, symbol
from coilwork_ir.loops import Contraction, Graph, Node, Pointwise, Reduce, View
from coilwork_ir.loops.access import (
    list_bodies,
    list_defined_buffers,
    list_overwritten_buffers,
    list_read_buffers,
)
from coilwork_ir.loops.matrix_products import match_matrix_product
from coilwork_ir.scalar import Load, Scalar, list_loads, load, rewrite, substitute_ranges
from coilwork_scheduler.dependence import Dependence, is_effect

_IsLarge: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A product and what reads it.

    Attributes:
        first, last: positions of the product, and of the last member.
        positions: of the members that depend on the product, itself included.
        members: these nodes in order, and values as large that do not depend on the product before them.
            Dimensions of rows are one dimension where the product's rows are.
        buffers: what members define.
        results: members' buffers that others read, by the name they have outside.
    """

    first: int
    last: int
    positions: frozenset[int]
    members: tuple[Node, ...]
    buffers: Mapping[str, Buffer]
    results: Mapping[str, Buffer]


class NoRegion(Exception):
    """Why a product stays whole."""


def find_region(graph: Graph, facts: Dependence, position: int) -> Region:
    """Return the region of the product at `position`.

    Raises:
        NoRegion: somebody needs all of the result, or what reads it cannot be cut.
    """
    node = graph.nodes[position]
    assert isinstance(node, Contraction)
    rows, columns = (as_int(size) for size in node.output.shape)
    assert rows is not None and columns is not None
    size = rows * columns
    depends = {node.output.name}
    dependents: list[int] = []
    for at in range(position + 1, len(graph.nodes)):
        reader = graph.nodes[at]
        if not depends.isdisjoint(list_read_buffers(reader)):
            dependents.append(at)
            depends.update(b.name for b in list_defined_buffers(reader))

    def is_large(name: str) -> bool:
        extents = [as_int(extent) for extent in facts.buffers[name].shape]
        known = [extent for extent in extents if extent is not None]
        return len(known) == len(extents) and 2 * prod(known) >= size

    needed: set[str] = set()
    positions = {position}
    for at in reversed(dependents):
        reader = graph.nodes[at]
        read = [name for name in list_read_buffers(reader) if name in depends]
        defined = [b.name for b in list_defined_buffers(reader)]
        if any(is_large(name) for name in read) or not needed.isdisjoint(defined):
            positions.add(at)
            needed.update(read)
    last = max(positions)
    _check_members(graph, positions, last)
    names = {b.name for at in positions for b in list_defined_buffers(graph.nodes[at])}
    others = _find_computed_again(graph, facts, positions, names, is_large)
    _check_surroundings(graph, facts, positions | others, names, rows, is_large)
    results = _find_results(graph, positions, names)
    if any(is_large(name) for name in results):
        raise NoRegion("all of it is needed in memory")
    members = tuple(graph.nodes[at] for at in sorted(positions | others))
    flat = _RowFlattener(rows=rows, columns=columns, members=members)
    members = flat.flatten()
    buffers = {b.name: b for member in members for b in list_defined_buffers(member)}
    return Region(
        first=position,
        last=last,
        positions=frozenset(positions),
        members=members,
        buffers=buffers,
        results={name: facts.buffers[name] for name in results},
    )


def _check_members(graph: Graph, positions: set[int], last: int) -> None:
    """Raise `NoRegion` for nodes that cannot be cut, or between which something is overwritten."""
    for at in range(min(positions), last + 1):
        node = graph.nodes[at]
        if list_overwritten_buffers(node) or is_effect(node):
            raise NoRegion("memory is overwritten in between")
        if at not in positions:
            continue
        if not isinstance(node, Contraction | Pointwise | Reduce | View):
            raise NoRegion(f"an operation needs all of it: {type(node).__name__}")


def _find_computed_again(
    graph: Graph, facts: Dependence, positions: set[int], names: set[str], is_large: _IsLarge
) -> set[int]:
    """Return positions of large values that members read, and that do not depend on the product."""
    found: set[int] = set()
    pending = [name for at in positions for name in list_read_buffers(graph.nodes[at])]
    while pending:
        name = pending.pop()
        at = facts.definer.get(name)
        if at is None or at in positions or at in found or not is_large(name):
            continue
        node = graph.nodes[at]
        if isinstance(node, Pointwise) and node.into is None and not node.checks:
            found.add(at)
            names.add(name)
            pending += list_read_buffers(node)
    return found


def _check_surroundings(
    graph: Graph, facts: Dependence, positions: set[int], names: set[str], rows: int, is_large: _IsLarge
) -> None:
    """Raise `NoRegion` where another value as large is in memory, or a product reads what is computed without
    statistics or labels of rows: it is a value between two layers then, and no loss.
    """
    members = [graph.nodes[at] for at in positions]
    outside = {name for node in members for name in list_read_buffers(node)} - names
    if any(is_large(name) for name in outside):
        raise NoRegion("a value as large is in memory beside it")
    products = sum(isinstance(node, Contraction) for node in members)
    sizes = [as_int(facts.buffers[name].numel) or 0 for name in outside]
    # some rows may be left out, as the last token of each sequence
    of_rows = any(size <= rows <= 2 * size for size in sizes)
    if products > 1 and not of_rows and not any(isinstance(node, Reduce) for node in members):
        raise NoRegion("a product reads it, as between two layers")


def _find_results(graph: Graph, positions: set[int], names: set[str]) -> tuple[str, ...]:
    """Find what members compute and others read, or the caller gets.

    Values that others keep are not counted.
    """
    own = {b.name for at in positions for b in list_defined_buffers(graph.nodes[at])}
    found: dict[str, None] = {}
    for at, node in enumerate(graph.nodes):
        if at not in positions:
            found.update(dict.fromkeys(name for name in list_read_buffers(node) if name in own))
    found.update(dict.fromkeys(o.name for o in graph.outputs if isinstance(o, Ref) and o.name in own))
    return tuple(found)


class _RowFlattener:
    """Makes the dimensions of rows one, as they are in the product: `[batch, sequence, columns]` is
    `[rows, columns]`, and `[batch, sequence]` is `[rows]`.
    """

    def __init__(self, *, rows: int, columns: int, members: tuple[Node, ...]) -> None:
        self._rows, self._columns, self._members = rows, columns, members
        self._strides: dict[str, tuple[Expr, ...]] = {}
        self._count: dict[str, int] = {}
        for node in members:
            if isinstance(node, Pointwise | Reduce):
                for buffer in list_defined_buffers(node):
                    self._note(buffer)

    def _note(self, buffer: Buffer) -> None:
        shape = [as_int(extent) for extent in buffer.shape]
        if any(extent is None for extent in shape) or buffer.strides != make_contiguous_strides(buffer.shape):
            return
        known = [extent for extent in shape if extent is not None]
        inner = 1 if len(known) > 1 and known[-1] == self._columns else 0
        outer = known[: len(known) - inner]
        if prod(outer) == self._rows and len(outer) > 1:
            self._count[buffer.name] = len(outer)
            self._strides[buffer.name] = make_contiguous_strides(buffer.shape[: len(outer)])

    def flatten(self) -> tuple[Node, ...]:
        return tuple(self._flatten(node) for node in self._members)

    def _flatten(self, node: Node) -> Node:
        if isinstance(node, Contraction):
            left, right, epilogue = (self._read(b, {}) for b in (node.left, node.right, node.epilogue))
            return replace(node, left=left, right=right, epilogue=epilogue)
        if not isinstance(node, Pointwise | Reduce):
            return node
        own = list_defined_buffers(node)
        count = self._count.get(own[0].name) if own else None
        places: dict[Expr, Expr] = {}
        ranges = node.ranges
        if count is not None:
            row = symbol(ranges[0].name, extent=as_expr(self._rows))
            for own_range, stride in zip(ranges[:count], self._strides[own[0].name], strict=True):
                places[own_range] = mod(floordiv(row, stride), get_extent(own_range))
            ranges = (row, *ranges[count:])
        body = self._read(node.body, places)
        checks = tuple(replace(c, condition=self._read(c.condition, places)) for c in node.checks)
        if isinstance(node, Pointwise):
            return replace(node, output=self._buffer(node.output), ranges=ranges, body=body, checks=checks)
        outputs = tuple(None if b is None else self._buffer(b) for b in node.outputs)
        return replace(node, outputs=outputs, ranges=ranges, body=body, checks=checks)

    def _buffer(self, buffer: Buffer) -> Buffer:
        count = self._count.get(buffer.name)
        if count is None:
            return buffer
        shape = (as_expr(self._rows), *buffer.shape[count:])
        return replace(buffer, shape=shape, strides=make_contiguous_strides(shape))

    def _read(self, body: Scalar, places: Mapping[Expr, Expr]) -> Scalar:
        """Return `body` with `places` for its ranges, which reads rows by one number."""
        (moved,) = substitute_ranges((body,), places)

        def visit(value: Scalar) -> Scalar:
            if not isinstance(value, Load) or value.buffer not in self._count:
                return value
            count = self._count[value.buffer]
            outer = zip(value.index[:count], self._strides[value.buffer], strict=True)
            row = add_all(place * stride for place, stride in outer)
            return load(
                value.buffer,
                (row, *value.index[count:]),
                value.dtype,
                indirect=value.indirect,
                mask=value.mask,
                other=value.other,
            )

        return rewrite((moved,), visit)[0]


def is_matrix_product(node: Contraction, buffers: Mapping[str, Buffer]) -> bool:
    """Return True for a product of two matrices whose sums are weighted and added to at most."""
    product = match_matrix_product(node, buffers)
    return product is not None and product.is_plain and len(node.output.shape) == 2


def list_reads(node: Node) -> tuple[Load, ...]:
    """Return the names that the bodies of `node` load."""
    return list_loads(list_bodies(node))
