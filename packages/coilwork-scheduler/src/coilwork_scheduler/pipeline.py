"""`schedule`: a graph of loops becomes kernels and steps in order.

First passes from graph to graph, then stages into groups, then groups into a schedule. Why in this order:
`sequence.ORDER`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from coilwork_ir.kernels import Schedule
from coilwork_ir.loops import Graph, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import defined
from coilwork_ir.target import Target, Targets
from coilwork_scheduler.assemble import Context, assemble
from coilwork_scheduler.contractions.choose import implement_contractions
from coilwork_scheduler.contractions.scale_sums import scale_sums
from coilwork_scheduler.cost import CostModel, RooflineCost
from coilwork_scheduler.dead import remove_dead
from coilwork_scheduler.dependence import Dependence, analyse
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.externalize import externalize_sorts
from coilwork_scheduler.fusion.fuse import Fuser
from coilwork_scheduler.fusion.weigh import Surroundings
from coilwork_scheduler.group import Group, group_of
from coilwork_scheduler.inlining.rounds import inline
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.kernels.compared import NONE, decisions, rounds
from coilwork_scheduler.layouts.assign import assign_layouts
from coilwork_scheduler.one_hot import sum_one_term
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.separate import separate_overlaps
from coilwork_scheduler.sizes import SizeHints, hints_of
from coilwork_scheduler.splitting.along_rows import split_along_rows
from coilwork_scheduler.splitting.linear_sums import linear_sums
from coilwork_scheduler.splitting.scans import split_scans
from coilwork_scheduler.splitting.split import split_reductions
from coilwork_scheduler.stage import Stage, stage_of
from coilwork_scheduler.turned import turn_scans
from coilwork_scheduler.written_out import write_out

DEFAULT: Final = ScheduleOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every pass may ask for; `journal` is the one place that decisions go to."""

    targets: Targets
    options: ScheduleOptions
    model: CostModel
    sizes: SizeHints
    journal: Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPass:
    """A pass from graph to graph. `run` gets the facts about the graph too, which are analysed once per change."""

    name: str
    run: Callable[[Graph, Dependence, Settings], Graph]


class _WeighedPass(Protocol):
    """A pass that asks a cost model, by likely sizes, and records what it decides."""

    def __call__(
        self,
        graph: Graph,
        facts: Dependence,
        *,
        targets: Targets,
        model: CostModel,
        sizes: SizeHints,
        options: ScheduleOptions,
        journal: Journal,
    ) -> Graph: ...


def _weighed(run: _WeighedPass) -> Callable[[Graph, Dependence, Settings], Graph]:
    return lambda graph, facts, settings: run(
        graph,
        facts,
        targets=settings.targets,
        model=settings.model,
        sizes=settings.sizes,
        options=settings.options,
        journal=settings.journal,
    )


GRAPH_PASSES: Final = (
    GraphPass(name="externalize", run=lambda graph, facts, settings: _externalize(graph, settings)),
    GraphPass(name="separate", run=lambda graph, facts, settings: separate_overlaps(graph)),
    GraphPass(name="contract", run=_weighed(implement_contractions)),
    GraphPass(name="dead", run=lambda graph, facts, settings: remove_dead(graph, facts)),
    GraphPass(name="inline", run=_weighed(inline)),
    GraphPass(name="dead-after-inline", run=lambda graph, facts, settings: remove_dead(graph, facts)),
    GraphPass(name="scale-sums", run=lambda graph, facts, settings: _scale_sums(graph, facts, settings)),
    GraphPass(name="one-hot", run=lambda graph, facts, settings: _sum_one_term(graph, settings)),
    GraphPass(name="write-out", run=_weighed(write_out)),
    GraphPass(
        name="turn-scans", run=lambda graph, facts, settings: turn_scans(graph, journal=settings.journal)
    ),
    GraphPass(name="linear-sums", run=lambda graph, facts, settings: _linear_sums(graph, facts, settings)),
    GraphPass(name="layouts", run=_weighed(assign_layouts)),
    GraphPass(name="split-scans", run=_weighed(split_scans)),
    GraphPass(name="split-rows", run=_weighed(split_along_rows)),
    GraphPass(name="split", run=_weighed(split_reductions)),
)
PASS_NAMES: Final = (*(graph_pass.name for graph_pass in GRAPH_PASSES), "fuse", "assemble")


def schedule(
    graph: Graph,
    target: Target | Targets,
    options: ScheduleOptions = DEFAULT,
    *,
    model: CostModel | None = None,
    observe: Callable[[str, Graph], None] | None = None,
) -> Schedule:
    """Kernels and steps that compute `graph` on `target`, or on those of its devices.

    Deterministic: equal arguments give equal results. Time grows as n log n in the number of nodes. `model` estimates
    what kernels cost; without one it is `RooflineCost` of the main target. `observe` is called with the name and the result of
    each pass from graph to graph: to print the graph, or to verify it.

    Raises:
        ScheduleError: the graph breaks a rule of the loop IR, or needs what the target does not have.
    """
    targets = target if isinstance(target, Targets) else Targets(main=target)
    settings = Settings(
        targets=targets,
        options=options,
        model=RooflineCost(target=targets.main) if model is None else model,
        sizes=hints_of(options),
        journal=Journal(options.max_decisions),
    )
    keeps_wide = options.numerics == "fast" and rounds(graph)
    facts = analyse(graph)
    for graph_pass in GRAPH_PASSES:
        changed = graph_pass.run(graph, facts, settings)
        if changed is not graph:
            graph, facts = changed, analyse(changed)
        if observe is not None:
            observe(graph_pass.name, graph)
    groups = _fuse(graph, facts, settings)
    context = Context(
        graph=graph,
        facts=facts,
        targets=targets,
        options=options,
        model=settings.model,
        sizes=settings.sizes,
        decisions=decisions(graph) if keeps_wide else NONE,
    )
    return assemble(context, groups, settings.journal)


def _externalize(graph: Graph, settings: Settings) -> Graph:
    return externalize_sorts(graph, settings.targets, sizes=settings.sizes, journal=settings.journal)


def _scale_sums(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    if settings.options.numerics != "fast":
        return graph
    return scale_sums(graph, facts, journal=settings.journal)


def _linear_sums(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    return linear_sums(
        graph, facts, targets=settings.targets, options=settings.options, journal=settings.journal
    )


def _sum_one_term(graph: Graph, settings: Settings) -> Graph:
    if settings.options.numerics != "fast":
        return graph
    return sum_one_term(graph, journal=settings.journal)


def _fuse(graph: Graph, facts: Dependence, settings: Settings) -> tuple[Group, ...]:
    stages = _stages(graph, settings.targets)
    if not settings.options.fuse:
        return tuple(group_of(stage) for stage in stages)
    around = Surroundings(
        graph=graph,
        facts=facts,
        targets=settings.targets,
        model=settings.model,
        sizes=settings.sizes,
        options=settings.options,
    )
    return Fuser(around, stages, settings.journal).run()


def _stages(graph: Graph, targets: Targets) -> list[Stage]:
    stages: list[Stage] = []
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Scan) and not (target := targets.of(defined(node)[0].device)).scan:
            raise ScheduleError(
                "no-scan",
                f"target {target.name} has no scans",
                origins=node.origins,
                remedy="lower the operator as an external call",
            )
        if isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
            stages.append(stage_of(position, node))
    return stages
