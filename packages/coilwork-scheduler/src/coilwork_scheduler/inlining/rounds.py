"""Inlining, until nothing changes: a value that a whole chain reads has one reader when the chain has become
one node.

Producers are decided in order, before what reads them. `y * (y < 1)` of a `y` that was stored is two readers
then, each of which would compute `y`, though the comparison moves into the product afterwards: in the next
round there is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coilwork_ir.kernels import Decision
from coilwork_ir.loops import Graph
from coilwork_scheduler.dead import remove_dead
from coilwork_scheduler.dependence import Dependence, analyse
from coilwork_scheduler.inlining.inline import Inliner
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.settings import Settings

# The second one finds nearly everything.
_ROUNDS: Final = 3


def inline(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` after inlining; what nobody reads any more may be left. Records the last decision about each
    value.
    """
    if not settings.options.inline:
        return graph
    decided: dict[tuple[str, tuple[str, ...]], Decision] = {}
    for _ in range(_ROUNDS):
        found = Journal(settings.options.max_decisions)
        inlined = Inliner(graph, facts, replace(settings, journal=found)).run()
        decided |= {(decision.rule, decision.subjects): decision for decision in found.decisions}
        stored = any(not decision.accepted for decision in found.decisions)
        if inlined is graph or not stored:
            graph = inlined
            break
        graph = remove_dead(inlined, analyse(inlined))
        facts = analyse(graph)
    settings.journal.extend(decided.values())
    return graph
