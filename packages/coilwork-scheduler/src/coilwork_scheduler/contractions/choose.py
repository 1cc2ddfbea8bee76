"""The pass: each contraction becomes what its cheapest implementation makes of it, a call of a library or loops, which fusion treats
like any others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final, TypeAlias

from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.loops import Contraction, Graph, Node, View
from coilwork_ir.loops.matrix_products import MatrixProduct, matrix_product_of
from coilwork_ir.target import Target, Targets
from coilwork_scheduler.contractions.aten_products import ATEN_PRODUCTS
from coilwork_scheduler.contractions.implementations import (
    IMPLEMENTATIONS,
    NO_NUMBERS,
    Implementation,
    Surroundings,
)
from coilwork_scheduler.cost import CostModel
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints


def implement_contractions(
    graph: Graph,
    facts: Dependence,
    *,
    targets: Targets,
    model: CostModel,
    sizes: SizeHints,
    options: ScheduleOptions,
    journal: Journal,
    implementations: Sequence[MakeImplementation],
) -> Graph:
    """`graph` without contractions: each is what that one of the `implementations` computes that quotes least.

    Each decision is recorded. Linear in the size of the graph.
    """
    if not any(isinstance(node, Contraction) for node in graph.nodes):
        return graph
    around = Surroundings(
        graph=graph,
        facts=facts,
        views={node.output.name: node for node in graph.nodes if isinstance(node, View)},
        name=_namer(facts),
        model=model,
        sizes=sizes,
        options=options,
    )
    chooser = _Chooser(around=around, rows=tuple(make(around) for make in implementations), journal=journal)
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, Contraction):
            nodes += chooser.implement(node, targets.of(node.output.device))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


MakeImplementation: TypeAlias = Callable[[Surroundings], Implementation]
"""Makes an implementation that knows what is around the products that it is asked about."""

REGISTRY: Final[tuple[MakeImplementation, ...]] = (*IMPLEMENTATIONS, *ATEN_PRODUCTS)
"""All implementations. Among those that are worth it an earlier one is taken before later ones."""


def list_implementations() -> tuple[MakeImplementation, ...]:
    """The rows of the registry."""
    return REGISTRY


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chooser:
    around: Surroundings
    rows: Sequence[Implementation]
    journal: Journal

    def implement(self, node: Contraction, target: Target) -> tuple[Node, ...]:
        """The nodes that compute `node`; loops, where it has no form that implementations are asked about."""
        product = matrix_product_of(node, self.around.facts.buffers)
        row = None if product is None else self._chosen(product, target)
        if product is None or row is None:
            self._note(node, True, "no library multiplies what has this form")
            return self.around.sums(target).build(node)
        return row.build(product, target)

    def _chosen(self, product: MatrixProduct, target: Target) -> Implementation | None:
        """The first kernel that takes less than the best library by what it must gain, or that is asked for; else that library.

        None if no library computes the product.
        """
        choice = self.around.options.contractions
        libraries = [row for row in self.rows if row.kind == "library" and not row.claims(product, target)]
        if not libraries:
            return None
        if choice == "aten":
            return libraries[0]
        kernels = [row for row in self.rows if row.kind == "kernel" and not row.claims(product, target)]
        if not kernels:
            return libraries[0]
        if choice == "generated":
            self._note(product.node, True, "kernels are asked for")
            return kernels[0]
        call, library = min(
            ((row.quote(product, target), row) for row in libraries), key=lambda pair: pair[0].us
        )
        reason, numbers = "", NO_NUMBERS
        for row in kernels:
            quote = row.quote(product, target)
            reason, numbers = quote.reason, NO_NUMBERS
            if quote.us == inf:
                continue
            numbers = {**call.numbers, **quote.numbers}
            if quote.us < call.us and quote.us + row.least_gain_us(product, call) <= call.us:
                self._note(product.node, True, reason, numbers)
                return row
            reason = row.loss
        self._note(product.node, False, reason, numbers)
        return library

    def _note(
        self, node: Contraction, generated: bool, reason: str, numbers: Mapping[str, float] = NO_NUMBERS
    ) -> None:
        self.journal.note("contraction", (node.output.name,), generated, reason, **numbers)


def _namer(facts: Dependence) -> Callable[[str], str]:
    return FreshNames(facts.buffers).close_to
