"""`schedule`: a graph of loops becomes kernels and steps in order.

The passes, in order:
    externalize   sorts become operator calls, because kernels have none; first, so that their operands are like any other
    dead          before inlining, so that unused consumers do not keep producers alive
    separate      stages that would read memory while overwriting it elsewhere get a temporary
    group         every computation is a stage, every stage a group
    assemble      order, tiling, canonical kernels
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.kernels import Decision, Schedule
from coilwork_ir.loops import Graph, Pointwise, Reduce, Scan, Scatter
from coilwork_ir.target import Target
from coilwork_scheduler.assemble import Context, assemble
from coilwork_scheduler.dead import remove_dead
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.externalize import externalize_sorts
from coilwork_scheduler.group import group_of
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import hints_of
from coilwork_scheduler.stage import stage_of

DEFAULT: Final = ScheduleOptions()


def schedule(graph: Graph, target: Target, options: ScheduleOptions = DEFAULT) -> Schedule:
    """Kernels and steps that compute `graph` on `target`.

    Deterministic: equal arguments give equal results. Time grows as n log n in the number of nodes.

    Raises:
        ScheduleError: the graph breaks a rule of the loop IR, or needs what the target does not have.
    """
    sizes = hints_of(options)
    decisions: tuple[Decision, ...] = ()
    graph = remove_dead(externalize_sorts(graph))
    facts = analyse(graph)
    stages = []
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
    groups = tuple(group_of(stage) for stage in stages)
    context = Context(graph=graph, facts=facts, target=target, options=options, sizes=sizes)
    return assemble(context, groups, decisions)
