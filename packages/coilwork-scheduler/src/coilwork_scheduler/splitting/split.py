"""Splitting: a long reduction to few results becomes a reduction of pieces and one of their results.

A GPU kernel has a program per result, or per block of neighbouring results. Where these are far fewer than
fill the device, as for the statistics of a batch norm or the gradient of a bias, memory idles however long
the rows are. What is inlined into the reduction moves along into the first of the two.

Reductions of one domain that read the same are a family: judged together and cut alike, so that fusion can
still give them one kernel. The two of a softmax, one of which needs the other, become one first: `online.py`.
So they do where the row is not split, but is too long to be kept on chip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.loops import Graph, Node, Reduce
from coilwork_ir.scalar import Load
from coilwork_ir.target import Targets
from coilwork_scheduler.cost import CostModel
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints
from coilwork_scheduler.splitting.beside_rows import row_reductions
from coilwork_scheduler.splitting.combine import combined
from coilwork_scheduler.splitting.cutting import Cutting
from coilwork_scheduler.splitting.families import POSITIONS, Family, rows_of
from coilwork_scheduler.splitting.figures import Figures
from coilwork_scheduler.splitting.judge import Judge
from coilwork_scheduler.splitting.online import merged


def split_reductions(
    graph: Graph,
    facts: Dependence,
    *,
    targets: Targets,
    model: CostModel,
    sizes: SizeHints,
    options: ScheduleOptions,
    journal: Journal,
) -> Graph:
    """`graph` with long reductions to few results cut in pieces, where `model` says that it pays, and
    generators do not do it.

    Linear in the size of the graph.
    """
    if not options.split or options.batch_invariant or not targets.have_whole_rows:
        return graph
    judge = Judge(
        figures=Figures(facts=facts, targets=targets, model=model, sizes=sizes),
        options=options,
        journal=journal,
        rows=row_reductions(graph, facts, options.search_limit),
    )
    if options.numerics == "fast":
        graph = merged(graph, lambda pair: judge.reads_again(pair.both))
    found: dict[int, Cutting] = {}
    for family in _families(graph, judge):
        cutting = judge.pieces_of(family)
        if cutting is not None:
            found.update(dict.fromkeys(family.positions, cutting))
    if not found:
        return graph
    name = _namer(facts)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        cutting = found.get(position)
        if cutting is None:
            nodes.append(node)
        else:
            assert isinstance(node, Reduce)
            nodes.extend(combined(cutting.along(node), cutting.pieces, name, apart=cutting.apart))
    return replace(graph, nodes=tuple(nodes))


def _families(graph: Graph, judge: Judge) -> Iterator[Family]:
    """Families of the reductions worth judging, by their first members."""
    rows: dict[int, tuple[Load, ...]] = {}
    parent: dict[int, int] = {}

    def find(position: int) -> int:
        while parent[position] != position:
            position = parent[position]
        return position

    first: dict[object, int] = {}
    for position, node in enumerate(graph.nodes):
        if not isinstance(node, Reduce) or not judge.candidate(node):
            continue
        rows[position] = rows_of(node)
        parent[position] = position
        # the pieces of positions of extremes follow the axes, not memory; rows and columns of a square have
        # equal extents
        domain = (node.ranges, node.axes, node.kind in POSITIONS)
        for access in rows[position]:
            lies = judge.direction(node, access)
            known = find(first.setdefault((domain, access.buffer, lies), position))
            low, high = sorted((known, find(position)))
            parent[high] = low
    members: dict[int, list[int]] = {}
    for position in parent:
        members.setdefault(find(position), []).append(position)
    for positions in members.values():
        nodes = [graph.nodes[position] for position in positions]
        yield Family(
            positions=tuple(positions),
            members=tuple(node for node in nodes if isinstance(node, Reduce)),
            rows=tuple(dict.fromkeys(access for position in positions for access in rows[position])),
        )


def _namer(facts: Dependence) -> Callable[[str], str]:
    return partial(FreshNames(facts.buffers).close_to, second=2)
