"""The pass: calls of matrix products that kernels compute become loops, which fusion treats like any others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coilwork_ir.loops import Graph, Node, View
from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.judge import ProductJudge
from coilwork_scheduler.contractions.opened import opened
from coilwork_scheduler.contractions.product import product_of
from coilwork_scheduler.cost import CostModel
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.externalize import fresh_name
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints


def open_contractions(
    graph: Graph,
    facts: Dependence,
    *,
    targets: Targets,
    model: CostModel,
    sizes: SizeHints,
    options: ScheduleOptions,
    journal: Journal,
) -> Graph:
    """`graph` with those products that `options.contractions` gives to kernels as sums of products.

    Each decision is recorded. Linear in the size of the graph.
    """
    if options.contractions == "aten":
        return graph
    judge = ProductJudge(
        graph=graph,
        facts=facts,
        views={node.output.name: node for node in graph.nodes if isinstance(node, View)},
        targets=targets,
        model=model,
        sizes=sizes,
        options=options,
    )
    name = _namer(facts)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        product = product_of(node, facts.buffers)
        if product is None:
            nodes.append(node)
            continue
        verdict = judge.verdict(product)
        journal.note(
            "contraction", (product.output.name,), verdict.generated, verdict.reason, **verdict.numbers
        )
        if not verdict.generated:
            nodes.append(node)
            continue
        changed = True
        nodes += opened(
            product,
            pieces=verdict.pieces,
            buffers=facts.buffers,
            views=judge.views,
            name=name,
            least=2 if options.batch_invariant and targets.of(product.output.device).is_gpu else 1,
            round_first=options.batch_invariant,
        )
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _namer(facts: Dependence) -> Callable[[str], str]:
    taken = set(facts.buffers)
    return lambda wanted: fresh_name(wanted, taken)
