"""Fuse pointwise neighbours into the node that a template computes, as prologues and an epilogue.

A body of the node that loads a pointwise result computes that result itself. The only reader of the node's
result becomes the epilogue, if it is pointwise and reads at its own points. A template says what it accepts
by claiming the node with the neighbour in it, layouts included, and what that costs by its quote. A neighbour
stays apart where its own kernel costs less. Substitution and its conditions on memory are those of inlining
among loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_int, get_extent
from coilwork_ir.loc import merge_origins
from coilwork_ir.loops import (
    Attention,
    AttentionGradient,
    Body,
    Convolution,
    Graph,
    Node,
    Pointwise,
)
from coilwork_ir.loops.access import list_bodies, list_defined_buffers
from coilwork_ir.scalar import (
    Load,
    Op,
    Scalar,
    cast,
    iterate_postorder,
    list_loads,
    parameter,
    rewrite,
    substitute_ranges,
)
from coilwork_ir.target import Targets
from coilwork_scheduler.choose_implementations import make_context
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote
from coilwork_scheduler.contractions.registry import CoreNode, Template, find_template
from coilwork_scheduler.dependence import Dependence, analyse, index_readers, remove_dead
from coilwork_scheduler.inlining.substitute import Expander, Producer
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import may_share_kernel
from coilwork_scheduler.settings import Settings

# Chains of neighbours are one node by now; what is absorbed may uncover another.
_ROUNDS: Final = 4


def fuse_into_templates(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Make neighbours of templates' nodes parts of these. Each decision is recorded."""
    if not settings.options.inline or not any(
        isinstance(node, Convolution | Attention | AttentionGradient) for node in graph.nodes
    ):
        return graph
    for _ in range(_ROUNDS):
        context = make_context(graph, facts, settings)
        made = tuple(make(context) for make in settings.registry.templates)
        changed = _Round(
            context=context, targets=settings.targets, templates=made, remarks=settings.remarks
        ).run()
        if changed is graph:
            break
        after = analyse(changed, (graph, facts))
        graph = remove_dead(changed, after)
        facts = after if graph is changed else analyse(graph, (changed, after))
    return graph


@dataclass(slots=True, kw_only=True)
class _Round:
    """One pass over every node; a neighbour becomes a part of one node at most.

    Attributes:
        changed: what nodes have become, None for those that are gone, by position.
    """

    context: ImplementationContext
    targets: Targets
    templates: Sequence[Template]
    remarks: Remarks
    changed: dict[int, Node | None] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.readers = index_readers(self.context.graph, self.context.facts)

    def run(self) -> Graph:
        """Return the graph afterwards; itself, if nothing changed."""
        graph = self.context.graph
        for position, node in enumerate(graph.nodes):
            if isinstance(node, Convolution | Attention | AttentionGradient):
                found = self._find_template(node)
                if found is not None:
                    self._absorb_neighbours(position, node, *found)
        if not self.changed:
            return graph
        nodes = [self.changed.get(position, node) for position, node in enumerate(graph.nodes)]
        return replace(graph, nodes=tuple(node for node in nodes if node is not None))

    def _find_template(self, node: CoreNode) -> tuple[Template, Quote] | None:
        device = list_defined_buffers(node)[0].device
        capabilities = self.targets.capabilities_of(device)
        return find_template(node, self.targets.of(device), capabilities, self.templates)

    def _absorb_neighbours(self, position: int, node: CoreNode, template: Template, quote: Quote) -> None:
        whole = self._drop_unread_logsumexp(node)
        for name in self.context.facts.reads[position]:
            producer = self._find_producer(name, position, node)
            if producer is None:
                continue
            at, made = producer
            is_alone = self.readers[name] == [position]
            wider = self._add_prologue(whole, made)
            saved = self._move_us(made) if is_alone else 0.0
            taken = self._is_worth(template, whole, wider, saved, quote)
            self._note(name, taken is not None, "prologue")
            if taken is not None:
                whole, quote = wider, taken
                if is_alone:
                    self.changed[at] = None
        if whole is not node:
            self.changed[position] = whole
        consumer = self._find_consumer(position, node, whole)
        if consumer is None:
            return
        at, behind = consumer
        wider = _add_epilogue(whole, behind)
        taken = self._is_worth(template, whole, wider, self._move_us(behind), quote)
        self._note(behind.output.name, taken is not None, "epilogue")
        if taken is not None:
            self.changed[position], self.changed[at] = None, wider

    def _drop_unread_logsumexp(self, node: CoreNode) -> CoreNode:
        """`node` without a logsumexp that nobody reads."""
        if not isinstance(node, Attention) or node.logsumexp is None or node.logsumexp.name in self.readers:
            return node
        return replace(node, logsumexp=None, logsumexp_at=None)

    def _is_worth(
        self, template: Template, node: CoreNode, wider: CoreNode, saved: float, quote: Quote
    ) -> Quote | None:
        """Return the quote of `wider`, if the template claims that, for no more than `node` and `saved`."""
        options = self.context.options
        scalars = list_bodies(wider)
        args = len({access.buffer for access in list_loads(scalars)}) + len(list_defined_buffers(wider))
        if (
            args > options.max_args
            or sum(isinstance(v, Op) for v in iterate_postorder(scalars)) > options.max_ops
        ):
            return None
        target = self.targets.of(list_defined_buffers(node)[0].device)
        if template.claims(wider, target) is not None:
            return None
        found = template.quote(wider, target)
        return found if found.us <= quote.us + saved else None

    def _find_producer(self, name: str, position: int, node: CoreNode) -> tuple[int, Pointwise] | None:
        """Return the pointwise node that computes `name`, if the node at `position` may compute it
        instead.
        """
        facts = self.context.facts
        at = facts.definer.get(name)
        if at is None or at in self.changed:
            return None
        made = self.context.graph.nodes[at]
        if not isinstance(made, Pointwise) or not self._may_join(made, node):
            return None
        if isinstance(node, AttentionGradient):
            weights = node.weights
            operands = {access.buffer for access in list_loads((weights.query, weights.key, weights.value))}
            if name in operands:
                # gradients are those of what is loaded
                return None
        return None if self._is_overwritten(facts.reads[at], at, position) else (at, made)

    def _find_consumer(self, position: int, node: CoreNode, whole: CoreNode) -> tuple[int, Pointwise] | None:
        """Return the pointwise node that alone reads the result of the node at `position`, at its own points.

        What it becomes stands where it stood: other results of the node are read behind that only.
        """
        if isinstance(node, AttentionGradient) or (isinstance(node, Convolution) and node.epilogue is None):
            return None
        result, *others = list_defined_buffers(whole)
        readers = self.readers.get(result.name, [])
        if len(readers) != 1 or readers[0] >= len(self.context.graph.nodes) or readers[0] in self.changed:
            return None
        (at,) = readers
        behind = self.context.graph.nodes[at]
        if not isinstance(behind, Pointwise) or not self._may_join(behind, node):
            return None
        if not _reads_in_place(behind, result):
            return None
        if any(reader <= at for other in others for reader in self.readers.get(other.name, ())):
            return None
        read = tuple(access.buffer for access in list_loads(list_bodies(whole)))
        return None if self._is_overwritten(read, position, at) else (at, behind)

    def _may_join(self, neighbour: Pointwise, node: CoreNode) -> bool:
        """Tell if `neighbour` does nothing but compute, on the device of `node`, and may share its kernel."""
        return (
            neighbour.into is None
            and not neighbour.checks
            and neighbour.output.device == list_defined_buffers(node)[0].device
            and may_share_kernel(neighbour.origins, node.origins, self.context.options.apart)
        )

    def _is_overwritten(self, names: Sequence[str], first: int, last: int) -> bool:
        """Tell if memory of `names` is overwritten behind `first`, up to `last`."""
        facts = self.context.facts
        return any(
            first < writer <= last for name in names for writer in facts.overwriters.get(facts.root[name], ())
        )

    def _add_prologue(self, node: CoreNode, made: Pointwise) -> CoreNode:
        producer = Producer(ranges=made.ranges, body=made.body, inlined=frozenset())
        expander = Expander({made.output.name: producer}, self.context.facts.buffers)
        values = expander.expand(list_bodies(node), frozenset({made.output.name}))
        return replace_core_bodies(replace(node, origins=merge_origins(made.origins, node.origins)), values)

    def _move_us(self, node: Pointwise) -> float:
        """Return the time of a kernel for `node` alone."""
        context = self.context
        names = dict.fromkeys(access.buffer for access in list_loads((node.body,)))
        read = sum(context.size(context.facts.buffers[name]) for name in names)
        return context.move_us(read, context.size(node.output))

    def _note(self, name: str, is_taken: bool, what: str) -> None:
        reason = f"{'the' if is_taken else 'no'} {what} of a template's kernel"
        self.remarks.note("absorb", (name,), is_taken, reason)


def replace_core_bodies(node: CoreNode, values: Sequence[Scalar]) -> CoreNode:
    """`node` with the scalar graphs that `bodies` lists replaced by `values`."""
    if isinstance(node, Convolution):
        rest = iter(values)
        found = [
            None if body is None else replace(body, value=next(rest))
            for body in (node.value, node.weight, node.gradient, node.epilogue)
        ]
        value, weight, gradient, epilogue = found
        assert value is not None and weight is not None
        return replace(node, value=value, weight=weight, gradient=gradient, epilogue=epilogue)
    if isinstance(node, AttentionGradient):
        return node.replace_bodies(values)
    count = len(node.weights.bodies)
    weights = node.weights.replace_bodies(values[:count])
    return replace(node, weights=weights, epilogue=values[count] if node.epilogue is not None else None)


def _reads_in_place(behind: Pointwise, result: Buffer) -> bool:
    """Tell if `behind` has the shape of `result`, and reads it at its own points only."""
    if behind.output.shape != result.shape:
        return False
    found = [access for access in list_loads((behind.body,)) if access.buffer == result.name]
    return all(
        access.mask is None
        and not access.indirect
        and all(
            place is own or (as_int(place) == 0 and as_int(get_extent(own)) == 1)
            for place, own in zip(access.index, behind.ranges, strict=True)
        )
        for access in found
    )


def _add_epilogue(node: CoreNode, behind: Pointwise) -> CoreNode:
    """`node` that makes what `behind` makes of its result."""
    assert not isinstance(node, AttentionGradient), "gradients have no epilogue"
    if isinstance(node, Convolution):
        assert node.epilogue is not None
        ranges, value = node.epilogue.ranges, node.epilogue.value
        (result,) = node.outputs
        assert result is not None
    else:
        ranges, result = node.weights.ranges, node.output
        value = cast(parameter(0, node.weights.accumulate), result.dtype)
        value = value if node.epilogue is None else node.epilogue
    (moved,) = substitute_ranges((behind.body,), dict(zip(behind.ranges, ranges, strict=True)))

    def visit(one: Scalar) -> Scalar:
        return value if isinstance(one, Load) and one.buffer == result.name else one

    (whole,) = rewrite((moved,), visit)
    origins = merge_origins(node.origins, behind.origins)
    if isinstance(node, Convolution):
        epilogue = Body(ranges=ranges, value=whole)
        return replace(node, outputs=(behind.output,), epilogue=epilogue, origins=origins)
    return replace(node, output=behind.output, epilogue=whole, origins=origins)
