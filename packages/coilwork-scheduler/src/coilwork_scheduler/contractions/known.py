"""Which sums of a graph are contractions."""

from __future__ import annotations

from coilwork_ir.loops import Node, Reduce
from coilwork_ir.scalar import Contraction, contraction_of


def contraction_of_node(node: Node) -> Contraction | None:
    """`node` as a contraction; None if it is none."""
    if not isinstance(node, Reduce):
        return None
    return contraction_of(node.kind, node.body, node.ranges, node.axes)
