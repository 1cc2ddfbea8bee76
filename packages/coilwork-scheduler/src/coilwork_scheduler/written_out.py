"""Reductions of a few terms that are computed: written out, on GPUs, as one expression per result.

A tile of `[points, 3]` has four lanes per point, each of which does what depends on the point alone, and the
sum goes through the lanes. Distances of points in space, areas of boxes, and sums of an image's channels are
such; written out, threads keep to their point. What lies side by side in memory, and is read once, stays a
row of a tile: its loads are wide there. So does a row that is needed again where the result is, as in a
softmax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from types import MappingProxyType
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, extent_of
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import bodies
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Load, Op, Scalar, loads, op, postorder, range_symbols, substitute_ranges
from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.sum_of_products import contraction_of_node
from coilwork_scheduler.dependence import Dependence, readers_of
from coilwork_scheduler.kernels.draft_analysis import unit_stride
from coilwork_scheduler.settings import Settings

# Terms that are written out at most, and what all of them may cost, as in the op table.
_TERMS: Final = 4
_COST: Final = 128
_COMBINED: Final[Mapping[str, str]] = MappingProxyType(
    {"sum": "add", "prod": "mul", "min": "minimum", "max": "maximum"}
)


def write_out(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with short reductions of computed terms as pointwise nodes. Linear in the size of the graph."""
    readers = readers_of(graph, facts)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        written = (
            _written(node, graph, facts, settings.targets, readers) if isinstance(node, Reduce) else None
        )
        if written is not None:
            changed = True
            why = "a few computed terms are one expression"
            settings.journal.note("write-out", (written.output.name,), True, why)
        nodes.append(node if written is None else written)
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _written(
    node: Reduce, graph: Graph, facts: Dependence, targets: Targets, readers: Mapping[str, Sequence[int]]
) -> Pointwise | None:
    output = node.outputs[0]
    combined = _COMBINED.get(node.kind)
    counts = [as_int(extent_of(axis)) for axis in node.axes]
    known = [count for count in counts if count is not None]
    if combined is None or output is None or not node.axes or len(known) < len(counts):
        return None
    terms = math.prod(known)
    if not 1 < terms <= _TERMS or terms * _cost(node.body) > _COST:
        return None
    if not targets.of(output.device).is_gpu or output.dtype is not node.body.dtype:
        return None
    axes = frozenset(node.axes)
    if contraction_of_node(node) is not None or any(
        not axes.isdisjoint(range_symbols((check.condition,))) for check in node.checks
    ):
        return None
    rows = [access for access in loads((node.body,)) if not axes.isdisjoint(range_symbols((access,)))]
    if any(_is_row(access, node, facts) for access in rows):
        return None
    if _needed_again({access.buffer for access in rows}, output.name, graph, readers):
        return None
    values: list[Scalar] = []
    for term in product(*map(range, known)):
        at: dict[Expr, Expr] = {axis: as_expr(k) for axis, k in zip(node.axes, term, strict=True)}
        values += substitute_ranges((node.body,), at)
    return Pointwise(
        output=output,
        ranges=node.ranges,
        body=reduce(lambda a, b: op(combined, a, b), values),
        checks=node.checks,
        origins=node.origins,
    )


def _cost(body: Scalar) -> int:
    return 1 + sum(SCALAR_OPS[node.op].cost for node in postorder((body,)) if isinstance(node, Op))


def _is_row(access: Load, node: Reduce, facts: Dependence) -> bool:
    """True if `access` goes once through memory that is contiguous along what `node` reduces."""
    if access.indirect:
        return False
    own = range_symbols((access,))
    once = all(r in own or as_int(extent_of(r)) == 1 for r in node.ranges)
    offset = facts.buffers[access.buffer].offset_of(access.index)
    return once and not unit_stride(offset).isdisjoint(node.axes)


def _needed_again(rows: set[str], result: str, graph: Graph, readers: Mapping[str, Sequence[int]]) -> bool:
    """True if what reads `result` reads one of the buffers `rows` as well."""
    for reader in readers.get(result, ()):
        if reader >= len(graph.nodes):
            # the caller
            continue
        node = graph.nodes[reader]
        if not isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
            continue
        if any(access.buffer in rows for access in loads(bodies(node))):
            return True
    return False
