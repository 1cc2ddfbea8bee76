"""The pass: each attention, and each gradient of one, becomes what its cheapest implementation makes of it.

`attention.py` holds the implementations. A node may also stay what it is, for a template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coilwork_ir.buffers import Buffer, contiguous_strides
from coilwork_ir.loops import Attention, AttentionGradient, Graph, Node, Pointwise
from coilwork_ir.scalar import Parameter, Scalar, cast, load, rewrite
from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.attention import AttentionImplementation, AttentionNode
from coilwork_scheduler.contractions.implementations import (
    Quote,
    Surroundings,
    surroundings_of,
)
from coilwork_scheduler.contractions.templates import Template, find_template
from coilwork_scheduler.contractions.written_attention import WrittenOut
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.settings import Settings


def implement_attention(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` without attention, but for nodes that a template computes: each is what costs least.

    Raises:
        ScheduleError: nothing computes one of them.
    """
    if not any(isinstance(node, Attention | AttentionGradient) for node in graph.nodes):
        return graph
    around = surroundings_of(graph, facts, settings)
    chooser = _Chooser(
        around=around,
        rows=tuple(make(around) for make in settings.registry.attentions),
        templates=tuple(make(around) for make in settings.registry.templates),
        targets=settings.targets,
        journal=settings.journal,
    )
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, Attention | AttentionGradient):
            nodes += chooser.implement(node)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chooser:
    around: Surroundings
    rows: Sequence[AttentionImplementation]
    templates: Sequence[Template]
    targets: Targets
    journal: Journal

    def implement(self, node: AttentionNode) -> tuple[Node, ...]:
        """The nodes that compute `node`; the node itself, if that is a template."""
        first = node.output if isinstance(node, Attention) else node.of_query
        target = self.targets.of(first.device)
        refused = [row.claims(node, target) for row in self.rows]
        quotes = [
            (row.quote(node, target), row) for row, why in zip(self.rows, refused, strict=True) if why is None
        ]
        least = min((quote for quote, _ in quotes), key=lambda quote: quote.us, default=None)
        capabilities = self.targets.capabilities_of(first.device)
        found = find_template(node, target, capabilities, self.templates, least)
        if found is not None:
            self._note(first, True, found[1])
            return (node,)
        if isinstance(node, Attention) and node.epilogue is not None:
            return self._implement_apart(node, node.epilogue)
        if not quotes:
            raise ScheduleError(
                "no-attention",
                f"nothing computes %{first.name} on {target.name}",
                origins=node.origins,
                reason="; ".join(dict.fromkeys(why for why in refused if why)),
                remedy="write the attention out as products and a softmax",
            )
        quote, row = min(quotes, key=lambda pair: pair[0].us)
        self._note(first, isinstance(row, WrittenOut), quote)
        return row.build(node, target)

    def _implement_apart(self, node: Attention, epilogue: Scalar) -> tuple[Node, ...]:
        """The nodes that compute `node` less its epilogue, as a library rounds it, and one for that."""
        weights, output = node.weights, node.output
        sums = replace(
            output,
            name=self.around.name(f"{output.name}_sums"),
            dtype=weights.query.dtype,
            strides=contiguous_strides(output.shape),
        )
        total = cast(load(sums.name, weights.ranges, sums.dtype), weights.accumulate)
        (value,) = rewrite((epilogue,), lambda one: total if isinstance(one, Parameter) else one)
        behind = Pointwise(output=output, ranges=weights.ranges, body=value, origins=node.origins)
        return (*self.implement(replace(node, output=sums, epilogue=None)), behind)

    def _note(self, first: Buffer, is_ours: bool, quote: Quote) -> None:
        self.journal.note("attention", (first.name,), is_ours, quote.reason, **dict(quote.numbers))
