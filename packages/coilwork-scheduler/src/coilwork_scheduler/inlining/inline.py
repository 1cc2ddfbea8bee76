"""Inlining: compute pointwise producers inside their consumers instead of storing them.

Each producer is judged with all of its consumers in view: the bytes that are neither written nor read again,
against operands read more often and operations repeated. A producer that is needed in memory anyway (an
external call, a view or the caller reads it) is still inlined where it reads less than it writes.

Producers are decided in order, before their readers, in rounds until nothing changes. If `y` was stored, `y *
(y < 1)` is two readers, each of which would compute `y`. The comparison then moves into the product, and in
the next round there is one reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, get_extent
from coilwork_ir.kernels import Decision
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import list_bodies, list_defined_buffers
from coilwork_ir.mapping.product_blocks import COPY_ENGINE, is_bound_by_memory
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import (
    Load,
    Op,
    Scalar,
    count_leading_points,
    find_even_parts,
    iterate_postorder,
    list_loads,
)
from coilwork_scheduler.contractions.sum_of_products import match_contraction_node
from coilwork_scheduler.cost_model import KernelWork
from coilwork_scheduler.dependence import Dependence, analyse, index_readers, remove_dead
from coilwork_scheduler.inlining.check_sinking import CheckPlacement
from coilwork_scheduler.inlining.cost import (
    BodySize,
    Computation,
    Copy,
    Growth,
    InlinedComputation,
    measure_bodies,
    read_bytes,
)
from coilwork_scheduler.inlining.substitute import Expander, Producer, apply_inlining, estimate_share
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import may_share_kernel
from coilwork_scheduler.settings import Settings

# ---- One round ----


# arguments left for a kernel's outputs and for what fusion adds
_SPARE_ARGS: Final = 4
# Elements of one tensor that are a window.
_WINDOW: Final = 9
# Evaluations per element: nearly all are one consumer's.
_FEW_MORE: Final = 1.125


class Inliner:
    """Decides for one graph, node by node in order."""

    def __init__(self, graph: Graph, facts: Dependence, settings: Settings) -> None:
        self._graph = graph
        self._deps = facts
        self._targets = settings.targets
        self._model = settings.model
        self._sizes = settings.sizes
        self._options = settings.options
        self._record = settings.remarks
        self._pending = Remarks(self._options.max_decisions)
        self._readers = index_readers(graph, facts)
        self._own_ops: dict[int, tuple[int, int]] = {}
        self._load_counts: dict[int, dict[str, int]] = {}
        # tensors of which a node reads an element only where a condition holds
        self._choices: dict[int, int] = {}
        # what a node's conditions say of its points does not change while producers are decided
        self._cut: dict[int, bool] = {}
        self._shares: dict[int, dict[str, float]] = {}
        self._mask_shares: dict[Scalar | None, float] = {}
        self._facts: dict[int, InlinedComputation] = {}
        self._candidates: dict[str, int] = {}
        # weighted operations per point that hiding producers have added to a consumer
        self._added: dict[int, int] = {}
        # what candidates compute, to measure what becomes of their consumers
        self._producers: dict[str, Producer] = {}
        self._growth = Growth(graph, self._options, self._us)
        self._checks = CheckPlacement(
            graph=graph,
            facts=facts,
            readers=self._readers,
            targets=self._targets,
            sizes=self._sizes,
            us=lambda read_bytes, write_bytes: self._us(read_bytes, write_bytes, 0),
        )

    def run(self) -> Graph:
        """Return the graph after inlining; producers that nobody reads any more are left for dead code
        removal.
        """
        for position, node in enumerate(self._graph.nodes):
            if isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
                self._measure(position, node)
        self._decide()
        while (outcome := self._checks.place(self._candidates, self._facts)).rejected:
            self._checks.reject(outcome.rejected)
            self._decide()
        self._record.extend(self._pending.decisions)
        if not self._candidates:
            return self._graph
        return apply_inlining(
            self._graph, self._facts, self._candidates, outcome.forwarded, self._readers, self._deps.buffers
        )

    def _decide(self) -> None:
        """Find the candidates, from the beginning."""
        self._pending = Remarks(self._options.max_decisions)
        self._facts, self._candidates, self._added, self._producers = {}, {}, {}, {}
        for position, node in enumerate(self._graph.nodes):
            if isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
                self._place(position, self._settle(position))
                if isinstance(node, Pointwise) and (
                    self._should_inline(position, node) or self._narrower_is_stored(position, node)
                ):
                    self._candidates[node.output.name] = position

    def _measure(self, position: int, node: Computation) -> None:
        ops = cost = 0
        counts: dict[str, int] = {}
        chosen: set[str] = set()
        for scalar in iterate_postorder(list_bodies(node)):
            if isinstance(scalar, Op):
                ops += 1
                cost += SCALAR_OPS[scalar.op].cost
            elif isinstance(scalar, Load):
                counts[scalar.buffer] = counts.get(scalar.buffer, 0) + 1
                if scalar.mask is not None:
                    chosen.add(scalar.buffer)
        self._own_ops[position] = (ops, cost)
        self._load_counts[position] = counts
        self._choices[position] = len(chosen)

    def _settle(self, position: int) -> InlinedComputation:
        """Return facts of a node whose producers are all decided; candidates that make it too large are left
        out.
        """
        ops, cost = self._own_ops[position]
        inlined: set[str] = set()
        closure = frozenset((position,))
        leaves: set[str] = set()
        mutable: set[str] = set()
        repeated = repeated_cost = 0
        has_copies = False
        size, composed = self._growth.get_own_size(position), False
        for name, count in self._load_counts[position].items():
            at = self._candidates.get(name)
            root = self._deps.root[name]
            if at is None or not self._may_inline(at, position):
                leaves.add(name)
                if root in self._deps.overwriters:
                    mutable.add(root)
                continue
            producer = self._facts[at]
            joined = closure | producer.closure
            more = repeated + (count - 1) * producer.ops
            total = sum(self._own_ops[p][0] for p in joined) + more
            if (
                total > self._options.max_ops
                or len(leaves | producer.leaves) > self._options.max_args - _SPARE_ARGS
            ):
                leaves.add(name)
                self._pending.note(
                    "inline", (name,), False, "its consumer would grow too large", operations=total
                )
                continue
            grown = self._growth.estimate_size(position, size, name, producer.size)
            if not self._growth.is_small(grown):
                measured = self._measure_inlined(position, inlined | {name}, size, name)
                if measured is None:
                    leaves.add(name)
                    continue
                grown, composed = measured, True
            size = grown
            inlined.add(name)
            has_copies |= producer.has_copies or self._count_places(name) > 1
            closure = joined
            repeated, repeated_cost = more, repeated_cost + (count - 1) * producer.cost
            leaves |= producer.leaves
            mutable |= producer.mutable
        if inlined:
            ops = sum(self._own_ops[p][0] for p in closure) + repeated
            cost = sum(self._own_ops[p][1] for p in closure) + repeated_cost
        return InlinedComputation(
            inlined=frozenset(inlined),
            closure=closure,
            ops=ops,
            cost=cost,
            leaves=frozenset(leaves),
            mutable=frozenset(mutable),
            size=size,
            composed=composed,
            has_copies=has_copies,
        )

    def _measure_inlined(
        self, position: int, inlined: Collection[str], before: BodySize, name: str
    ) -> BodySize | None:
        """Return the size of the node at `position` with all of `inlined` substituted; None if `name`, the
        new one, should be stored.
        """
        producer = self._facts[self._candidates[name]]
        after = measure_bodies(self._expand(position, inlined))
        copy = Copy(
            read_bytes=sum(self._sizes.size_bytes(self._deps.buffers[leaf]) for leaf in producer.leaves),
            write_bytes=self._sizes.size_bytes(self._deps.buffers[name]),
            points=self._points(self._candidates[name]),
            consumer_points=self._points(position),
        )
        drawback = self._growth.drawback(before, after, producer.size, copy)
        if drawback is None:
            return after
        self._pending.note(
            "inline", (name,), False, drawback, index_size=after.longest.nodes, body_size=after.total
        )
        return None

    def _expand(self, position: int, inlined: Collection[str]) -> tuple[Scalar, ...]:
        """Return what the node at `position` computes with the loads of `inlined` replaced."""
        expander = Expander(self._producers, self._deps.buffers)
        return expander.expand(list_bodies(self._graph.nodes[position]), frozenset(inlined))

    def _place(self, position: int, facts: InlinedComputation) -> None:
        """Let `facts` from here on be those of the node at `position`."""
        self._facts[position] = facts
        node = self._graph.nodes[position]
        if isinstance(node, Pointwise):
            body, inlined = node.body, facts.inlined
            if facts.composed:
                body, inlined = self._expand(position, inlined)[0], frozenset()
            self._producers[node.output.name] = Producer(ranges=node.ranges, body=body, inlined=inlined)

    def _may_inline(self, producer: int, consumer: int) -> bool:
        """False if memory that the producer reads is overwritten before the consumer is done, or lies
        elsewhere.

        Neither is a join for vectors inlined, nor a call that shares no kernel with others.
        """
        nodes = self._graph.nodes
        if not may_share_kernel(nodes[producer].origins, nodes[consumer].origins, self._options.apart):
            return False
        if self._facts[producer].leaves and self._device(producer) != self._device(consumer):
            return False
        if not isinstance(self._graph.nodes[consumer], Pointwise) and self._joins_vectors(producer):
            return False
        for root in self._facts[producer].mutable:
            if any(producer < writer <= consumer for writer in self._deps.overwriters[root]):
                return False
        return True

    def _joins_vectors(self, position: int) -> bool:
        """Tell if a GPU's kernel joins so many tensors in what is computed at `position` that it chooses by
        element.
        """
        target = self._targets.of(self._device(position))
        if not target.is_gpu:
            return False
        joined = sum(self._choices[p] for p in self._facts[position].closure)
        return joined > target.machine.inlining.most_joined

    def _device(self, position: int) -> str:
        made = list_defined_buffers(self._graph.nodes[position])
        return made[0].device if made else ""

    def _should_inline(self, position: int, node: Pointwise) -> bool:
        if node.into is not None or (node.checks and not self._checks.should_sink(node, self._pending)):
            return False
        name = node.output.name
        if any(match_contraction_node(made) is not None for made in self._makers(position)):
            # the sums are for this node alone to round and store
            return False
        consumers: list[int] = []
        needed = False
        for reader in self._readers.get(name, ()):
            if reader in self._load_counts:
                consumers.append(reader)
            else:
                needed = True
        if not consumers or self._grows_by_copies(position, name, consumers):
            return False
        if not _is_copy(node) and any(self._copies_blocks(consumer, name) for consumer in consumers):
            self._pending.note("inline", (name,), False, "stored: a copy engine brings whole blocks of it")
            return False
        if not self._facts[position].leaves and self._is_cheap(position):
            return True
        return self._pays(position, node, consumers, needed=needed)

    def _copies_blocks(self, position: int, name: str) -> bool:
        """Tell if the node at `position` is a product of which `name` is a factor, and arithmetic bounds it.

        Factors that lie in memory come to matrix units without a detour over the threads.
        """
        node = self._graph.nodes[position]
        factors = match_contraction_node(node)
        target = self._targets.of(self._device(position))
        if factors is None or not target.has(COPY_ENGINE) or factors.left.dtype is DType.F32:
            return False
        rows, columns, length = (
            self._sizes.numel(tuple(get_extent(r) for r in side))
            for side in (factors.rows, factors.columns, factors.axes)
        )
        if is_bound_by_memory(rows, columns, length, target):
            return False
        return any(isinstance(f, Load) and f.buffer == name for f in (factors.left, factors.right))

    def _grows_by_copies(self, position: int, name: str, consumers: list[int]) -> bool:
        """Tell if several places would each compute all that `name` has become.

        A chain of which every value is read twice, by the next one and by a result, would be computed anew
        for every result.
        """
        copies = self._count_places(name)
        size = self._facts[position].size.total
        if copies > 1 and self._is_window(position):
            self._pending.note("inline", (name,), False, "stored: its windows would be gone through again")
            return True
        if copies < 2 or size <= self._options.max_copied_size:
            return False
        self._pending.note(
            "inline", (name,), False, "stored: as much at several places would grow", copies=copies, size=size
        )
        return True

    def _is_window(self, position: int) -> bool:
        """Tell if a GPU computes the node at `position` from many elements of one tensor: memory has them
        once, but every load of a window takes its time.
        """
        is_gpu = self._targets.of(self._device(position)).is_gpu
        loads = (count for p in self._facts[position].closure for count in self._load_counts[p].values())
        return is_gpu and max(loads, default=0) >= _WINDOW

    def _is_computed_beside(self, position: int, consumers: list[int], factor: float) -> bool:
        """Tell if one consumer reads the node at `position` at its own points, and others a few, as slices
        that are assigned.

        A kernel of both computes it once. Inside all of them a value with such copies in it would be written
        out twice as often at each step of a chain.
        """
        if factor > _FEW_MORE or not self._facts[position].has_copies:
            return False
        name = list_defined_buffers(self._graph.nodes[position])[0].name
        if self._count_places(name) < 2 or not any(self._is_read_in_place(position, c) for c in consumers):
            return False
        reason = "stored: a kernel with the consumer at its points computes it once"
        self._pending.note("inline", (name,), False, reason)
        return True

    def _count_places(self, name: str) -> int:
        """Return the number of places at which consumers read the buffer `name`."""
        readers = self._readers.get(name, ())
        return sum(
            self._load_counts[reader].get(name, 0) for reader in readers if reader in self._load_counts
        )

    def _is_read_in_place(self, position: int, consumer: int) -> bool:
        """Tell if the node at `consumer` reads all of what the pointwise one at `position` computes, at the
        same points.
        """
        made, reader = self._graph.nodes[position], self._graph.nodes[consumer]
        if not isinstance(made, Pointwise) or not isinstance(reader, Pointwise):
            return False
        return made.output.shape == reader.output.shape and any(
            load.buffer == made.output.name and load.mask is None and load.index == reader.ranges
            for load in iterate_postorder(list_bodies(reader))
            if isinstance(load, Load)
        )

    def _is_cheap(self, position: int) -> bool:
        facts = self._facts[position]
        return facts.cost <= self._options.recompute_ops and len(facts.leaves) <= 1

    def _pays(self, position: int, node: Pointwise, consumers: list[int], *, needed: bool) -> bool:
        """Tell if bytes and operations are fewer if `consumers` compute `node` themselves; `needed`: it is
        stored all the same.
        """
        name, facts, cheap = node.output.name, self._facts[position], self._is_cheap(position)
        options = self._options
        points = max(self._sizes.numel(node.output.shape), 1)
        each = {c: self._count_evaluations(c, name) for c in consumers}
        evaluations = sum(each.values())
        factor = evaluations / points
        if not needed and self._is_computed_beside(position, consumers, factor):
            return False
        size = points * node.output.dtype.itemsize
        once = sum(self._bytes_read_at(points, n) for n in facts.leaves)
        # who reads a few elements only, as the one of a row that a label says, reads as few of the operands
        again = sum(
            self._bytes_read_at(min(count, points), n)
            for c, count in each.items()
            for n in facts.leaves
            if n not in self._load_counts[c]
        )
        # a few operations per point hide behind the memory traffic of the consumers
        cost = 0 if cheap else facts.cost
        read = sum(
            self._read_bytes(c, node, size)
            if count >= points
            else min(size, count * node.output.dtype.itemsize)
            for c, count in each.items()
        )
        kept_us = self._us(read + (0 if needed else once), 0 if needed else size, points * cost)
        inlined_us = self._us(again, 0, evaluations * cost)
        if needed:
            wanted = cheap and inlined_us <= kept_us
        else:
            # several consumers that reread much keep the operands alive for long: a clear win is asked for
            inlining = self._targets.of(node.output.device).machine.inlining
            reread, saved = again - once, size * (len(consumers) + 1)
            worth = cheap or len(consumers) == 1 or reread <= inlining.reread_share * saved
            wanted = (
                inlined_us <= inlining.edge_factor * kept_us
                and worth
                and (cheap or factor <= options.max_evaluations)
            )
        reason = (
            "computed inside its consumers" if wanted else "stored once: recomputing or rereading costs more"
        )
        if not wanted and not needed and self._is_cheaper_recomputed(position, consumers, node):
            wanted, reason = (
                True,
                "computed inside its consumers: hides behind their memory traffic, saves a launch",
            )
        self._pending.note(
            "inline",
            (name,),
            wanted,
            reason,
            bytes_saved=read + (0 if needed else size),
            bytes_reread=again - (0 if needed else once),
            evaluations_per_element=factor,
        )
        return wanted

    def _narrower_is_stored(self, position: int, node: Pointwise) -> bool:
        """Tell if `node`, to be stored, is computed inside its consumers after all, from a narrower value
        stored instead.

        A value in 16 bits that several reductions read in 32 is the usual case: it was to be computed inside
        the conversion, whose result takes twice the bytes.
        """
        if node.into is not None or node.checks:
            return False
        readers = self._readers.get(node.output.name, ())
        if not all(reader in self._load_counts for reader in readers):
            return False
        chain = self._find_narrower(position, node)
        if not chain:
            return False
        name, at = chain[0][0], chain[0][1]
        settled = [(step, self._facts[step]) for step in (*(at for _, at in chain[1:]), position)]
        del self._candidates[name]
        for step, _ in settled:
            self._place(step, self._settle(step))
        if self._should_inline(position, node):
            self._pending.note(
                "inline", (name,), False, "stored in place of what is computed from it, which is wider"
            )
            return True
        self._candidates[name] = at
        for step, before in settled:
            self._place(step, before)
        return False

    def _find_narrower(self, position: int, node: Pointwise) -> list[tuple[str, int]]:
        """Return the candidates that `node`, at `position`, alone is computed from, one from the other: the
        first of them is narrower than `node`, and has no more points. Empty if there is none.
        """
        found: list[tuple[str, int]] = []
        points, itemsize = self._sizes.numel(node.output.shape), node.output.dtype.itemsize
        reader = position
        while len(self._load_counts[reader]) == 1:
            (name,) = self._load_counts[reader]
            at = self._candidates.get(name)
            if at is None or self._readers[name] != [reader]:
                break
            found.insert(0, (name, at))
            source = self._deps.buffers[name]
            if source.dtype.itemsize < itemsize and self._sizes.numel(source.shape) <= points:
                return found
            reader = at
        return []

    def _is_cheaper_recomputed(self, position: int, consumers: list[int], node: Pointwise) -> bool:
        """Tell if a GPU computes `node` again at every point of its consumers in less time than its own
        launch takes.

        Arithmetic is free up to what a consumer's memory traffic leaves room for; a special function's weight
        in the op table is its rate. Where a value the producer reads is computed in this graph, it has no
        launch to save: it can share that kernel.
        """
        facts = self._facts[position]
        if not self._targets.of(node.output.device).is_gpu or any(
            self._deps.definer.get(leaf) in self._load_counts for leaf in facts.leaves
        ):
            return False
        operands = sum(self._sizes.size_bytes(self._deps.buffers[leaf]) for leaf in facts.leaves)
        size = self._sizes.size_bytes(node.output)
        points = max(self._sizes.numel(node.output.shape), 1)
        kernels = len({self._kernel_of(consumer) for consumer in consumers})
        if all(self._points(consumer) == points for consumer in consumers):
            # one of the consumers can store it on the way, as the cell of a recurrence does with its state:
            # no launch is saved, only its traffic
            if (kernels - 1) * operands > kernels * size:
                return False
        saved_us = self._us(operands, size, 0)
        added: dict[int, int] = {}
        for consumer in consumers:
            points = self._points(consumer)
            # of a chain of pointwise nodes a kernel keeps one read and one write: about this node's result
            moved = points * list_defined_buffers(self._graph.nodes[consumer])[0].dtype.itemsize
            cost = self._own_ops[consumer][1] + self._added.get(consumer, 0)
            added[consumer] = facts.cost * self._load_counts[consumer].get(node.output.name, 1)
            before_us = self._us(moved + size, 0, points * cost)
            saved_us -= self._us(moved + operands, 0, points * (cost + added[consumer])) - before_us
        if saved_us <= 0:
            return False
        for consumer, more in added.items():
            self._added[consumer] = self._added.get(consumer, 0) + more
        return True

    def _kernel_of(self, position: int) -> object:
        """Equal for reductions that will share a kernel."""
        node = self._graph.nodes[position]
        return (node.ranges, node.axes) if isinstance(node, Reduce) else position

    def _us(self, read_bytes: float, write_bytes: float, operations: float) -> float:
        return self._model.kernel_us(
            KernelWork(
                read_bytes=read_bytes,
                write_bytes=write_bytes,
                operations=operations,
                rows=1 << 30,
                row_length=1,
                programs=1 << 30,
            )
        )

    def _read_bytes(self, consumer: int, node: Pointwise, size: int) -> int:
        """Bytes that the node at `consumer` reads of the result of `node`, of `size` bytes, if that is
        stored.
        """
        target, reader = self._targets.of(node.output.device), self._graph.nodes[consumer]
        if not target.is_gpu or not isinstance(reader, Computation):
            return size
        return read_bytes(reader, node.output.name, size, self._sizes, target.resident_bytes)

    def _bytes_read_at(self, points: int, name: str) -> int:
        """Bytes that are read of the buffer `name` at so many points."""
        buffer = self._deps.buffers[name]
        return min(self._sizes.size_bytes(buffer), points * buffer.dtype.itemsize)

    def _makers(self, position: int) -> Iterator[Node]:
        """Nodes that compute what the node at `position` reads itself."""
        for name in self._load_counts[position]:
            definer = self._deps.definer.get(name)
            if definer is not None:
                yield self._graph.nodes[definer]

    def _count_evaluations(self, position: int, name: str) -> int:
        """Count the evaluations of elements of `name` by the consumer at `position`."""
        node = self._graph.nodes[position]
        contraction = match_contraction_node(node)
        if contraction is None:
            points = self._points(position)
            if self._targets.of(self._deps.buffers[name].device).is_gpu and not self._is_cut(position):
                # all of a block computes what one of its points needs
                return points * self._load_counts[position].get(name, 1)
            # kernels of CPUs are cut where guards change, and those that join parts of one size go through
            # one of them
            return round(points * self._shares_of(position).get(name, 0.0)) or points
        block = self._targets.of(self._device(position)).machine.inlining.product_block
        found = 0
        for factor, others in (
            (contraction.left, contraction.columns),
            (contraction.right, contraction.rows),
        ):
            count = sum(access.buffer == name for access in list_loads((factor,)))
            # once per block of the other factor
            blocks = -(-self._sizes.numel(tuple(get_extent(r) for r in others)) // block)
            points = self._points(position) // max(self._sizes.numel(tuple(get_extent(r) for r in others)), 1)
            found += count * points * blocks
        return found

    def _is_cut(self, position: int) -> bool:
        """Tell if the node at `position` joins parts of one size."""
        found = self._cut.get(position)
        if found is None:
            node = self._graph.nodes[position]
            found = isinstance(node, Pointwise) and find_even_parts((node.body,), node.ranges) is not None
            self._cut[position] = found
        return found

    def _shares_of(self, position: int) -> dict[str, float]:
        """Return for each buffer that the node at `position` loads, the shares of its points at which it
        does, added up.
        """
        if position not in self._shares:
            found = self._shares[position] = {}
            for value in iterate_postorder(list_bodies(self._graph.nodes[position])):
                if isinstance(value, Load):
                    if value.mask not in self._mask_shares:
                        self._mask_shares[value.mask] = estimate_share(value.mask)
                    found[value.buffer] = found.get(value.buffer, 0.0) + self._mask_shares[value.mask]
        return self._shares[position]

    def _points(self, position: int) -> int:
        node = self._graph.nodes[position]
        assert isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter)
        ranges: tuple[Expr, ...] = node.ranges + (node.axes if isinstance(node, Reduce) else ())
        points = max(self._sizes.numel(tuple(get_extent(r) for r in ranges)), 1)
        if isinstance(node, Reduce) and count_leading_points(node.kind, node.body, node.axes) is not None:
            # rows end where data says: what they look up belongs to one of them
            looked_up = [a.buffer for a in list_loads((node.body,)) if a.indirect]
            most = [self._sizes.numel(self._deps.buffers[name].shape) for name in looked_up]
            return min(points, max([1, *most]))
        return points


# ---- Rounds ----


# The second one finds nearly everything.
_ROUNDS: Final = 3


def _is_copy(node: Pointwise) -> bool:
    """Tell if `node` only moves elements, none of which it leaves out: its operand is read in its place."""
    return isinstance(node.body, Load) and not node.body.operands


def inline(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` after inlining; what nobody reads any more may be left. Records the last decision about each
    value.
    """
    if not settings.options.inline:
        return graph
    decided: dict[tuple[str, tuple[str, ...]], Decision] = {}
    for _ in range(_ROUNDS):
        found = Remarks(settings.options.max_decisions)
        inlined = Inliner(graph, facts, replace(settings, remarks=found)).run()
        decided |= {(decision.rule, decision.subjects): decision for decision in found.decisions}
        stored = any(not decision.accepted for decision in found.decisions)
        if inlined is graph or not stored:
            graph = inlined
            break
        after = analyse(inlined, (graph, facts))
        graph = remove_dead(inlined, after)
        facts = after if graph is inlined else analyse(graph, (inlined, after))
    settings.remarks.extend(decided.values())
    return graph
