"""`schedule`: a graph of loops becomes kernels and steps in order.

The passes, in order:
    externalize   sorts become operator calls, because kernels have none; first, so that their operands are like any other
    separate      what overwrites memory that it reads elsewhere gets a temporary; before inlining, which keeps it apart
    dead          before inlining, so that unused consumers do not keep producers alive
    inline        pointwise producers into their consumers; before fusion, which then has fewer and larger stages
    dead          producers that nobody reads any more
    fuse          stages into groups
    assemble      order, tiling, canonical kernels
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.kernels import Schedule
from coilwork_ir.loops import Graph, Pointwise, Reduce, Scan, Scatter
from coilwork_ir.target import Target
from coilwork_scheduler.assemble import Context, assemble
from coilwork_scheduler.cost import CostModel, RooflineCost
from coilwork_scheduler.dead import remove_dead
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.externalize import externalize_sorts
from coilwork_scheduler.fuse import Fuser, Surroundings
from coilwork_scheduler.group import group_of
from coilwork_scheduler.inline import Inliner
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.separate import separate_overlaps
from coilwork_scheduler.sizes import hints_of
from coilwork_scheduler.stage import Stage, stage_of

DEFAULT: Final = ScheduleOptions()


def schedule(
    graph: Graph, target: Target, options: ScheduleOptions = DEFAULT, *, model: CostModel | None = None
) -> Schedule:
    """Kernels and steps that compute `graph` on `target`.

    Deterministic: equal arguments give equal results. Time grows as n log n in the number of nodes. `model` estimates
    what kernels cost; without one it is `RooflineCost(target)`.

    Raises:
        ScheduleError: the graph breaks a rule of the loop IR, or needs what the target does not have.
    """
    sizes = hints_of(options)
    journal = Journal(options.max_decisions)
    if model is None:
        model = RooflineCost(target=target)
    graph = remove_dead(separate_overlaps(externalize_sorts(graph)))
    if options.inline:
        inliner = Inliner(graph, analyse(graph), model=model, sizes=sizes, options=options, journal=journal)
        graph = remove_dead(inliner.run())
    facts = analyse(graph)
    stages = _stages(graph, target)
    groups = tuple(group_of(stage) for stage in stages)
    if options.fuse:
        around = Surroundings(
            graph=graph, facts=facts, target=target, model=model, sizes=sizes, options=options
        )
        groups = Fuser(around, stages, journal).run()
    context = Context(graph=graph, facts=facts, target=target, options=options, sizes=sizes)
    return assemble(context, groups, journal)


def _stages(graph: Graph, target: Target) -> list[Stage]:
    stages: list[Stage] = []
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Scan) and not target.scan:
            raise ScheduleError(
                "no-scan",
                f"target {target.name} has no scans",
                origins=node.origins,
                remedy="lower the operator as an external call",
            )
        if isinstance(node, Pointwise | Reduce | Scan | Scatter):
            stages.append(stage_of(position, node))
    return stages
