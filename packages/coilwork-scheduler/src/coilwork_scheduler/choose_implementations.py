"""The passes that replace contractions, convolutions and attention by an implementation, chosen by cost.

The first kernel that gains enough over the cheapest call of a library is taken, and otherwise that call. A
kernel is loops, which fusion treats like any others. A convolution or attention may also stay as it is, for a
template. The registry holds the implementations, by the form of what they compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Protocol, TypeVar

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.loops import (
    Attention,
    AttentionGradient,
    Contraction,
    Convolution,
    Graph,
    Node,
    Pointwise,
    Reduce,
    View,
)
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.matrix_products import (
    GroupedProduct,
    MatrixProduct,
    match_grouped_product,
    match_matrix_product,
)
from coilwork_ir.scalar import Parameter, Scalar, cast, list_loads, load, rewrite
from coilwork_ir.target import Target, Targets
from coilwork_scheduler.contractions import convolutions
from coilwork_scheduler.contractions.attention import (
    AttentionImplementation,
    AttentionNode,
    drop_unread_state,
)
from coilwork_scheduler.contractions.attention_decomposition import DecomposedAttention
from coilwork_scheduler.contractions.implementations import (
    NO_NUMBERS,
    Implementation,
    ImplementationContext,
    NamesBlocks,
    Quote,
)
from coilwork_scheduler.contractions.registry import Template, find_template
from coilwork_scheduler.contractions.split_keys import split_keys
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import ContractionChoice
from coilwork_scheduler.settings import Settings


def make_context(graph: Graph, facts: Dependence, settings: Settings) -> ImplementationContext:
    """Gather the facts about `graph` that implementations and templates read."""
    return ImplementationContext(
        graph=graph,
        facts=facts,
        views={node.output.name: node for node in graph.nodes if isinstance(node, View)},
        name=facts.fresh_names().close_to,
        targets=settings.targets,
        model=settings.model,
        sizes=settings.sizes,
        options=settings.options,
    )


# ---- Products and convolutions ----


FormT = TypeVar("FormT")


def implement_contractions(graph: Graph, facts: Dependence, settings: Settings) -> ImplementedGraph:
    """Replace each contraction and convolution by its cheapest implementation in the registry.

    A convolution that a template computes for less stays. Each decision is recorded. Linear in the size of
    the graph.
    """
    if not any(isinstance(node, Contraction | Convolution) for node in graph.nodes):
        return ImplementedGraph(graph=graph)
    context, registry, targets = make_context(graph, facts, settings), settings.registry, settings.targets
    chooser = _ContractionChooser(
        context=context,
        products=tuple(make(context) for make in registry.products),
        grouped=tuple(make(context) for make in registry.grouped),
        convolutions=tuple(make(context) for make in registry.convolutions),
        templates=tuple(make(context) for make in registry.templates),
        targets=targets,
        remarks=settings.remarks,
    )
    nodes: list[Node] = []
    blocks: dict[str, NamesBlocks] = {}
    for node in graph.nodes:
        if isinstance(node, Contraction):
            made, row = chooser.implement(node, targets.of(node.output.device))
            nodes += made
            if isinstance(row, NamesBlocks):
                sums = (b for one in made if isinstance(one, Reduce) for b in list_defined_buffers(one))
                blocks |= {buffer.name: row for buffer in sums}
        elif isinstance(node, Convolution):
            nodes += chooser.implement_convolution(node)
        else:
            nodes.append(node)
    return ImplementedGraph(graph=replace(graph, nodes=tuple(nodes)), blocks=blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementedGraph:
    """A graph whose contractions are calls and loops.

    `blocks` maps buffers of sums to the implementation that says in which blocks their kernels run.
    """

    graph: Graph
    blocks: Mapping[str, NamesBlocks] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class _TemplatePlan:
    """Nodes that templates compute, the nodes for the rest, and the cost of all."""

    nodes: tuple[Node, ...]
    quote: Quote


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContractionChooser:
    context: ImplementationContext
    products: Sequence[Implementation[MatrixProduct]]
    grouped: Sequence[Implementation[GroupedProduct]]
    convolutions: Sequence[Implementation[Convolution]]
    templates: Sequence[Template]
    targets: Targets
    remarks: Remarks

    def implement(self, node: Contraction, target: Target) -> tuple[tuple[Node, ...], object]:
        """Return the nodes that compute `node`, and the implementation that built them.

        Loops of nobody's, where it has no form that implementations are asked about.
        """
        buffers, asked = self.context.facts.buffers, self.context.options.contractions
        note = partial(self._note, "contraction", node)
        if (product := match_matrix_product(node, buffers)) is not None:
            row = _choose(product, target, self.products, asked, note)
            if row is not None:
                return row.build(product, target), row
        elif (grouped := match_grouped_product(node, buffers)) is not None:
            group_row = _choose(grouped, target, self.grouped, asked, note)
            if group_row is not None:
                return group_row.build(grouped, target), group_row
        note(True, "no library multiplies what has this form")
        return self.context.sums(target).build(node), None

    def implement_convolution(self, node: Convolution) -> tuple[Node, ...]:
        """Return the nodes that compute `node`: itself, if a template does, and loops, where no library does.

        `contractions` decides about products alone: windows of single channels are none.
        """
        device = list_defined_buffers(node)[0].device
        target = self.targets.of(device)
        note = partial(self._note, "convolution", node)
        kept = self._keep(node, device)
        if kept is not None:
            note(True, kept.quote.reason, kept.quote.numbers)
            return kept.nodes
        row = _choose(node, target, self.convolutions, "auto", note)
        if row is None:
            note(True, "no library convolves what has this form")
            sums = replace(self.context.sums(target), least=1)
            return convolutions.build_loops(node, sums, self.context)
        return row.build(node, target)

    def _keep(self, node: Convolution, device: str) -> _TemplatePlan | None:
        """`node`, or a node for each of its gradients, as templates compute it; None if that is not worth it.

        A gradient of a bias is a reduction like others.
        """
        capabilities, target = self.targets.capabilities_of(device), self.targets.of(device)
        if not self.templates or not capabilities.cores:
            return None
        rival = self._quote_rival(node, target)
        parts = (node,) if node.gradient is None else convolutions.split_gradients(node)
        found = [find_template(part, target, capabilities, self.templates) for part in parts]
        chosen = [one for one in found if one is not None]
        if not parts or len(chosen) < len(parts):
            return None
        us = sum(quote.us for _, quote in chosen)
        if node.gradient is not None and node.outputs[2] is not None:
            names = dict.fromkeys(access.buffer for access in list_loads((node.gradient.value,)))
            us += self.context.move_us(
                sum(self.context.size(self.context.facts.buffers[n]) for n in names), 0
            )
        if rival is not None:
            gains = [template.least_gain_us(part, rival) for part, (template, _) in zip(parts, chosen)]
            if us >= rival.us or us + sum(gains) > rival.us:
                return None
        rest = convolutions.build_bias_gradient(node, self.context)
        numbers = {name: value for _, quote in chosen for name, value in quote.numbers.items()}
        return _TemplatePlan((*parts, *rest), Quote(us=us, reason=chosen[0][1].reason, numbers=numbers))

    def _quote_rival(self, node: Convolution, target: Target) -> Quote | None:
        """Return the least that an implementation that is no template takes for `node`."""
        rows = [row for row in self.convolutions if row.claims(node, target) is None]
        return min((row.quote(node, target) for row in rows), key=lambda quote: quote.us, default=None)

    def _note(
        self, rule: str, node: Node, generated: bool, reason: str, numbers: Mapping[str, float] = NO_NUMBERS
    ) -> None:
        names = tuple(buffer.name for buffer in list_defined_buffers(node))
        self.remarks.note(rule, names, generated, reason, **numbers)


class _Note(Protocol):
    """Records whether a kernel of ours computes a node, and why."""

    def __call__(self, generated: bool, reason: str, numbers: Mapping[str, float] = ..., /) -> None: ...


def _choose(
    form: FormT, target: Target, rows: Sequence[Implementation[FormT]], asked: ContractionChoice, note: _Note
) -> Implementation[FormT] | None:
    """Return the first kernel that takes less than the best library by what it must gain, or that is asked
    for.

    Else that library. None if no library computes `form`.
    """
    libraries = [row for row in rows if row.kind == "library" and not row.claims(form, target)]
    if not libraries:
        return None
    if asked == "aten":
        return libraries[0]
    kernels = [row for row in rows if row.kind == "kernel" and not row.claims(form, target)]
    if not kernels:
        return libraries[0]
    if asked == "generated":
        note(True, "kernels are asked for")
        return kernels[0]
    call, library = min(((row.quote(form, target), row) for row in libraries), key=lambda pair: pair[0].us)
    reason, numbers = "", NO_NUMBERS
    for row in kernels:
        quote = row.quote(form, target)
        reason, numbers = quote.reason, NO_NUMBERS
        if quote.us == inf:
            continue
        numbers = {**call.numbers, **quote.numbers}
        if quote.us < call.us and quote.us + row.least_gain_us(form, call) <= call.us:
            note(True, reason, numbers)
            return row
        reason = row.loss
    note(False, reason, numbers)
    return library


# ---- Attention ----


def implement_attention(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Replace each attention by its cheapest implementation; nodes for a template stay.

    Raises:
        ScheduleError: nothing computes one of them.
    """
    if not any(isinstance(node, Attention | AttentionGradient) for node in graph.nodes):
        return graph
    context = make_context(graph, facts, settings)
    read = {name for names in facts.reads for name in names}
    chooser = _AttentionChooser(
        context=context,
        read=frozenset(read | {output.name for output in graph.outputs if isinstance(output, Ref)}),
        rows=tuple(make(context) for make in settings.registry.attentions),
        templates=tuple(make(context) for make in settings.registry.templates),
        targets=settings.targets,
        remarks=settings.remarks,
    )
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, Attention | AttentionGradient):
            nodes += chooser.implement(node)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttentionChooser:
    context: ImplementationContext
    read: frozenset[str]
    rows: Sequence[AttentionImplementation]
    templates: Sequence[Template]
    targets: Targets
    remarks: Remarks

    def implement(self, node: AttentionNode) -> tuple[Node, ...]:
        """Return the nodes that compute `node`; the node itself, if that is a template."""
        first = node.output if isinstance(node, Attention) else node.of_query
        target = self.targets.of(first.device)
        refused = [row.claims(node, target) for row in self.rows]
        # otherwise results are those of the call that was captured
        is_fast = self.context.options.numerics == "fast"
        bare = drop_unread_state(node, self.read) if is_fast else node
        quotes = [
            (row.quote(bare, target), row) for row, why in zip(self.rows, refused, strict=True) if why is None
        ]
        least = min((quote for quote, _ in quotes), key=lambda quote: quote.us, default=None)
        capabilities = self.targets.capabilities_of(first.device)
        found = find_template(bare, target, capabilities, self.templates, least)
        if found is not None:
            self._note(first, True, found[1])
            return self._split(bare, target, found[0])
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
        self._note(first, isinstance(row, DecomposedAttention), quote)
        return row.build(node, target)

    def _split(self, node: AttentionNode, target: Target, template: Template) -> tuple[Node, ...]:
        """`node`, for `template`, or nodes for pieces of its keys, if it has too few rows for the device."""
        pieces = split_keys(node, self.context, target) if isinstance(node, Attention) else None
        if pieces is None:
            return (node,)
        first = pieces[0]
        assert isinstance(first, Attention)
        return pieces if template.claims(first, target) is None else (node,)

    def _implement_apart(self, node: Attention, epilogue: Scalar) -> tuple[Node, ...]:
        """Return the nodes that compute `node` less its epilogue, as a library rounds it, and one for
        that.
        """
        weights, output = node.weights, node.output
        sums = replace(
            output,
            name=self.context.name(f"{output.name}_sums"),
            dtype=weights.query.dtype,
            strides=make_contiguous_strides(output.shape),
        )
        total = cast(load(sums.name, weights.ranges, sums.dtype), weights.accumulate)
        (value,) = rewrite((epilogue,), lambda one: total if isinstance(one, Parameter) else one)
        behind = Pointwise(output=output, ranges=weights.ranges, body=value, origins=node.origins)
        return (*self.implement(replace(node, output=sums, epilogue=None)), behind)

    def _note(self, first: Buffer, is_ours: bool, quote: Quote) -> None:
        self.remarks.note("attention", (first.name,), is_ours, quote.reason, **dict(quote.numbers))
