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
from typing import Final, TypeGuard

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import add_all
from coilwork_ir.loops import Contraction, Node, Pointwise, Reduce, View
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.matrix_products import MatrixProduct, match_matrix_product
from coilwork_ir.machine.model import ProductKernels
from coilwork_ir.mapping.product_blocks import PLAIN, Finish
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Load, Op, iterate_postorder, list_loads
from coilwork_scheduler.contractions.implementations import ImplementationContext
from coilwork_scheduler.contractions.sum_of_products import load_element
from coilwork_scheduler.dependence import index_readers

# An epilogue longer than this is cut by the limits of kernels anyhow.
_MOST_NODES = 64
# Units multiply and shift 32 bits: of 64 bits each is several instructions.
_WIDE: Final = frozenset({"mul", "lshift", "rshift"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """The epilogue of a product.

    Attributes:
        products: the products that one kernel would compute with it: one, or one that gates the other.
        has_other_owner: another product's kernel has it.
        finish: what its kernel does to the sums, loads and stores.
        saved_us: time of the kernels and of the memory traffic that one kernel for all saves.
    """

    products: tuple[MatrixProduct, ...]
    has_other_owner: bool = False
    finish: Finish = PLAIN
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
        finish = self._describe_finish(region, together)
        return Epilogue(
            products=together,
            finish=finish,
            saved_us=self._estimate_saving_us(region, together, finish),
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
        if not all(self._keeps_rows(a, node) for a in read if a.buffer in region.names):
            return False
        others = {a.buffer for a in read} - region.names
        return not any(self._is_derived(name, region, first) for name in others)

    def _keeps_rows(self, access: Load, node: Pointwise) -> bool:
        """Tell if `node` goes through what it reads dimension by dimension, or in the order of its elements.

        A copy that takes dimensions apart and changes their order, such as one to heads, is no epilogue: rows
        of the product would be several ranges, which no kernel multiplies at its rate.
        """
        context = self.context
        own = context.facts.buffers[access.buffer]
        found = load_element(own, access.index, context.facts.buffers, context.views)
        shape = context.facts.buffers[found.buffer].shape
        if all(e.is_symbol or e.is_const for e in found.index) and len(set(found.index)) == len(shape):
            return True
        places = [
            add_all(i * s for i, s in zip(index, make_contiguous_strides(extents), strict=True))
            for index, extents in ((found.index, shape), (node.ranges, node.output.shape))
        ]
        return places[0] is places[1]

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

    def _describe_finish(self, region: _Region, together: Sequence[MatrixProduct]) -> Finish:
        """Return what the kernel of the products `together` does to their sums.

        What an epilogue reads is computed there, too, if loops compute it and only loops read it.
        """
        context, operations = self.context, 0.0
        result = together[-1].output
        wide = self._get_figures(result).wide_operation
        numel, read = context.sizes.numel(result.shape), dict[str, Buffer]()
        inside, pending = set(region.nodes), sorted(region.nodes)
        while pending:
            node = context.graph.nodes[pending.pop()]
            assert isinstance(node, Pointwise)
            cost = sum(_weigh(v, wide) for v in iterate_postorder((node.body,)) if isinstance(v, Op))
            operations += cost * context.sizes.numel(node.output.shape)
            for name in sorted({access.buffer for access in list_loads((node.body,))} - region.names):
                buffer = context.facts.buffers[self._find_memory(name)]
                if context.sizes.numel(buffer.shape) < numel or buffer.name in read:
                    continue
                position = context.facts.definer.get(buffer.name)
                if position in inside:
                    continue
                if position is not None and self._is_in_no_memory(position, name, inside):
                    inside.add(position)
                    pending.append(position)
                else:
                    read[buffer.name] = buffer
        others = [one.output for one in region.products if one not in together]
        stored = [
            context.facts.buffers[name]
            for name, readers in self._find_outside(region).items()
            if any(not self._can_join_a_kernel(position) for position in readers)
        ]
        own = context.size(result)
        return Finish(
            operations=operations,
            loads=sum(map(context.size, (*read.values(), *others))) / own,
            stores=max(1.0, sum(map(context.size, stored)) / own),
        )

    def _is_in_no_memory(self, position: int, name: str, inside: set[int]) -> bool:
        """Tell if the node at `position` is loops whose result, read as `name`, only loops read: they compute
        it.
        """
        node = self.context.graph.nodes[position]
        if not isinstance(node, Pointwise) or node.into is not None or len(inside) >= _MOST_NODES:
            return False
        return node.output.name == name and all(map(self._can_join_a_kernel, self.readers.get(name, ())))

    def _find_outside(self, region: _Region) -> dict[str, list[int]]:
        """Return the positions that read each memory of `region` and are not in it."""
        outside: dict[str, list[int]] = {}
        for name in region.names:
            behind = [p for p in self.readers.get(name, ()) if not self._is_inside(p, region)]
            outside.setdefault(self._find_memory(name), []).extend(behind)
        return outside

    def _estimate_saving_us(
        self, region: _Region, products: Sequence[MatrixProduct], finish: Finish
    ) -> float:
        """Return the microseconds saved beside calls for `products` and kernels for what follows.

        A kernel for what follows reads the results, and stores one more: the product's kernel stores one
        anyhow. What else it loads and stores, the product's kernel does in its stead. If all that leaves the
        epilogue goes into reductions, their kernels compute it for nothing. If some of it does, one of them
        would compute the rest, too, and the results are read there anyhow.
        """
        context, outside = self.context, self._find_outside(region)
        readers = {position for found in outside.values() for position in found}
        in_kernels = [p for p in readers if self._can_join_a_kernel(p)]
        if len(in_kernels) == len(readers):
            return 0.0
        results = [product.output for product in products]
        kept = sum(bool(outside[self._find_memory(b.name)]) for b in results)
        launch_us, own = context.move_us(0, 0), context.size(results[0])
        store_us = context.move_us(0, own) - launch_us
        more_us = context.move_us(int(own * (finish.loads + finish.stores - 1)), 0) - launch_us
        read_us = 0.0
        if not in_kernels:
            read_us = context.move_us(sum(context.size(b) for b in results), 0) - launch_us
            read_us += self._get_figures(results[0]).saved_launch_us
        return (1 - kept) * store_us + more_us + read_us

    def _get_figures(self, buffer: Buffer) -> ProductKernels:
        return self.context.targets.of(buffer.device).machine.product_kernels

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


def _weigh(value: Op, wide_operation: float) -> float:
    """Return the weight of an operation on one result."""
    cost = SCALAR_OPS[value.op].cost
    return wide_operation * cost if value.op in _WIDE and value.dtype is DType.I64 else cost
