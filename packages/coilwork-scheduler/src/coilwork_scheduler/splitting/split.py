"""Splitting: a long reduction to few results becomes a reduction of pieces and one of their results.

A GPU kernel has a program per result, or per block of neighbouring results. Where these are far fewer than
fill the device, as for the statistics of a batch norm or the gradient of a bias, memory idles however long
the rows are. What is inlined into the reduction moves along into the first of the two.

Reductions of one domain that read the same are a family: judged together and cut alike, so that fusion can
still give them one kernel. The two of a softmax, one of which needs the other, become one first: `online.py`.
So they do where the row is not split, but is too long to be kept on chip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from coilwork_ir.loops import Graph, Node, Reduce
from coilwork_ir.scalar import Load
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings
from coilwork_scheduler.splitting.beside_rows import row_reductions
from coilwork_scheduler.splitting.combine import combined
from coilwork_scheduler.splitting.judge import Judge
from coilwork_scheduler.splitting.online import merged
from coilwork_scheduler.splitting.pieces import Cutting
from coilwork_scheduler.splitting.reduction_cost import POSITIONS, Family, figures_of, rows_of


def split_reductions(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with long reductions to few results cut in pieces, where the cost model says that it pays, and
    generators do not do it.

    Linear in the size of the graph.
    """
    options = settings.options
    if not options.split or options.batch_invariant or not settings.targets.have_whole_rows:
        return graph
    judge = Judge(
        figures=figures_of(facts, settings),
        options=options,
        journal=settings.journal,
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
    name = partial(facts.fresh_names().close_to, second=2)
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
