"""What every pass may ask for: `Settings`."""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.loops import Graph, View
from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.implementations import Surroundings
from coilwork_scheduler.contractions.registry import Registry
from coilwork_scheduler.cost import CostModel
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The context of every pass: what stays the same while a graph becomes a schedule.

    Attributes:
        targets: the devices.
        options: the caller's.
        model: estimates what kernels cost.
        sizes: likely ones.
        journal: the one place that decisions go to.
        registry: what may compute contractions, convolutions and attention.
        keeps_wide: kernels keep what decides something as wide as they computed it, since the graph rounds in
            between.
    """

    targets: Targets
    options: ScheduleOptions
    model: CostModel
    sizes: SizeHints
    journal: Journal
    registry: Registry
    keeps_wide: bool = False


def surroundings_of(graph: Graph, facts: Dependence, settings: Settings) -> Surroundings:
    """What implementations and templates are told of `graph`."""
    return Surroundings(
        graph=graph,
        facts=facts,
        views={node.output.name: node for node in graph.nodes if isinstance(node, View)},
        name=facts.fresh_names().close_to,
        targets=settings.targets,
        model=settings.model,
        sizes=settings.sizes,
        options=settings.options,
    )
