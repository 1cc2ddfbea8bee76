"""Find what becomes of a product's sums at their own points, and what one kernel for all of it saves.

The epilogue of a product is made of the pointwise nodes that read its result, and one another, element by
element. Computed by the product's kernel it needs no kernel of its own, and the result need not be stored
for it. Two products whose results meet in an epilogue, and that share a factor, may be one kernel: the gate
of a feed-forward layer and what it gates. Other products that meet there stay apart: the last of them has
the epilogue.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from coilwork_ir.buffers import Buffer
from coilwork_ir.loops import Contraction, Node, Pointwise, Reduce, View
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.matrix_products import MatrixProduct, match_matrix_product
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Op, iterate_postorder, list_loads
from coilwork_scheduler.contractions.implementations import ImplementationContext
from coilwork_scheduler.dependence import index_readers

# An epilogue longer than this is cut by the limits of kernels anyhow.
_MOST_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """The epilogue of a product.

    Attributes:
        products: the products that one kernel would compute with it: one, or one that gates the other.
        has_other_owner: another product's kernel has it.
        operations: weighted operations on all results.
        saved_us: time of the kernels and of the memory traffic that one kernel for all saves.
    """

    products: tuple[MatrixProduct, ...]
    has_other_owner: bool = False
    operations: float = 0.0
    saved_us: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EpilogueFinder:
    """Finds epilogues in one graph."""

    context: ImplementationContext
    readers: Mapping[str, Sequence[int]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", index_readers(self.context.graph, self.context.facts))

    def find(self, product: MatrixProduct) -> Epilogue:
        """Return the epilogue of `product`. Time is linear in the nodes that read what it makes, a few of
        them.
        """
        region = self._collect(product.output)
        if not region.nodes:
            return Epilogue(products=(product,))
        met = [*region.products, product]
        met.sort(key=lambda one: self.context.facts.definer[one.output.name])
        last = met[-1]
        gates = [one for one in met[:-1] if self._share_a_factor(one, last)]
        together = (gates[0], last) if len(gates) == 1 else (last,)
        if not any(one.output is product.output for one in together):
            return Epilogue(products=(product,), has_other_owner=True)
        return Epilogue(
            products=together,
            operations=self._count_operations(region),
            saved_us=self._estimate_saving_us(region, together),
        )

    def _collect(self, output: Buffer) -> _Region:
        """Return the pointwise nodes behind `output`, element by element, in order."""
        context = self.context
        numel = context.sizes.numel(output.shape)
        region = _Region(names={output.name})
        pending = list(self.readers.get(output.name, ()))
        heapq.heapify(pending)
        seen: set[int] = set()
        first = context.facts.definer[output.name]
        while pending and len(region.nodes) < _MOST_NODES:
            position = heapq.heappop(pending)
            if position in seen or position >= len(context.graph.nodes):
                continue
            seen.add(position)
            node = context.graph.nodes[position]
            if not self._may_join(node, region, numel, first, output):
                continue
            known = frozenset(region.names)
            region.names |= {made.name for made in list_defined_buffers(node)}
            if isinstance(node, Pointwise):
                region.nodes.add(position)
                self._find_products(node, region, numel)
            for name in region.names - known:
                for reader in self.readers.get(name, ()):
                    heapq.heappush(pending, reader)
        return region

    def _may_join(self, node: Node, region: _Region, numel: int, first: int, output: Buffer) -> bool:
        context = self.context
        if isinstance(node, View):
            return context.sizes.numel(node.output.shape) == numel and node.output.dtype is output.dtype
        if not isinstance(node, Pointwise) or node.into is not None or node.checks:
            return False
        if node.output.device != output.device or context.sizes.numel(node.output.shape) != numel:
            return False
        read = list_loads((node.body,))
        if any(a.buffer in region.names and (a.indirect or a.mask is not None) for a in read):
            return False
        others = {a.buffer for a in read} - region.names
        return not any(self._is_derived(name, region, first) for name in others)

    def _is_derived(self, name: str, region: _Region, first: int) -> bool:
        """Tell if `name` is computed from the epilogue by nodes that are not in it."""
        facts = self.context.facts
        pending, seen = [name], set[str]()
        while pending:
            one = pending.pop()
            if one in region.names:
                return True
            definer = facts.definer.get(one)
            if one in seen or definer is None or definer <= first:
                continue
            seen.add(one)
            pending += facts.reads[definer]
        return False

    def _find_products(self, node: Pointwise, region: _Region, numel: int) -> bool:
        """Tell if `node` reads another product's result element by element, or what is computed of one so.

        The products, and the nodes between them and `node`, become parts of `region`.
        """
        context, found = self.context, False
        for name in dict.fromkeys(access.buffer for access in list_loads((node.body,))):
            source = self._find_memory(name)
            position = context.facts.definer.get(source)
            if position is None or not region.names.isdisjoint((name, source)):
                continue
            made = context.graph.nodes[position]
            if isinstance(made, Contraction):
                product = match_matrix_product(made, context.facts.buffers)
                if product is None or context.sizes.numel(made.output.shape) != numel:
                    continue
                region.products.append(product)
            elif not self._is_between(made, numel, region) or not self._find_products(made, region, numel):
                continue
            else:
                region.nodes.add(position)
            region.names |= {source, name}
            found = True
        return found

    def _is_between(self, node: Node, numel: int, region: _Region) -> TypeGuard[Pointwise]:
        """Return True for a pointwise node that may lie between a product and the epilogue that it meets."""
        if not isinstance(node, Pointwise) or node.into is not None or node.checks:
            return False
        region.looked_at += 1
        return region.looked_at < _MOST_NODES and self.context.sizes.numel(node.output.shape) == numel

    def _count_operations(self, region: _Region) -> float:
        """Return weighted operations of the nodes of `region`."""
        total = 0.0
        for position in region.nodes:
            node = self.context.graph.nodes[position]
            assert isinstance(node, Pointwise)
            cost = sum(SCALAR_OPS[v.op].cost for v in iterate_postorder((node.body,)) if isinstance(v, Op))
            total += cost * self.context.sizes.numel(node.output.shape)
        return total

    def _estimate_saving_us(self, region: _Region, products: Sequence[MatrixProduct]) -> float:
        """Return the microseconds saved beside calls for `products` and kernels for what follows.

        A kernel for what follows reads the results, and stores one more: the product's kernel stores one
        anyhow. If all that leaves the epilogue goes into reductions, their kernels compute it for nothing. If
        some of it does, one of them would compute the rest, too, and only the store counts.
        """
        context = self.context
        outside: dict[str, list[int]] = {}
        for name in region.names:
            behind = [p for p in self.readers.get(name, ()) if not self._is_inside(p, region)]
            outside.setdefault(self._find_memory(name), []).extend(behind)
        readers = {position for found in outside.values() for position in found}
        in_kernels = [p for p in readers if self._can_join_a_kernel(p)]
        if len(in_kernels) == len(readers):
            return 0.0
        results = [product.output for product in products]
        kept = sum(bool(outside[self._find_memory(b.name)]) for b in results)
        store_us = context.move_us(0, context.size(results[0])) - context.move_us(0, 0)
        read_us = 0.0 if in_kernels else context.move_us(sum(context.size(b) for b in results), 0)
        return (1 - kept) * store_us + read_us

    def _share_a_factor(self, one: MatrixProduct, other: MatrixProduct) -> bool:
        """Tell if both multiply the same left or right factor, into results of the same shape and type."""
        if one.output.shape != other.output.shape or one.output.dtype is not other.output.dtype:
            return False
        return any(
            (self._find_memory(a.name), a.shape, a.strides) == (self._find_memory(b.name), b.shape, b.strides)
            for a, b in ((one.left, other.left), (one.right, other.right))
        )

    def _find_memory(self, name: str) -> str:
        """Return the name of the memory that `name` is a view of."""
        while name in self.context.views:
            name = self.context.views[name].source
        return name

    def _is_inside(self, position: int, region: _Region) -> bool:
        """Return True for a node of the epilogue, and for a view that only says how it reads its memory."""
        if position >= len(self.context.graph.nodes):
            return False
        node = self.context.graph.nodes[position]
        return position in region.nodes or (isinstance(node, View) and node.output.name in region.names)

    def _can_join_a_kernel(self, position: int) -> bool:
        """Tell if the node at `position` is loops, which may compute what they read."""
        nodes = self.context.graph.nodes
        return position < len(nodes) and isinstance(nodes[position], Pointwise | Reduce)


@dataclass(slots=True)
class _Region:
    """What was found of an epilogue: names of what its kernel has in registers, nodes, other products, and
    how many nodes before it were looked at.
    """

    names: set[str]
    looked_at: int = 0
    nodes: set[int] = field(default_factory=set)
    products: list[MatrixProduct] = field(default_factory=list)
