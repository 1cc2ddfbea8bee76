"""The template that computes attention, or its gradient, as one kernel: scores never lie in memory.

It takes any score and any mask. What it does not take are operands that a block of keys does not share: keys
that differ from row to row, or a gradient of a query that several points load. Keys and values have to lie in
memory, because every block of rows reads them again; queries, scores and results have neighbours in the
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, FloorDiv, as_int, get_node
from coilwork_ir.loops import Attention, AttentionGradient, Convolution
from coilwork_ir.loops.nodes import Weights
from coilwork_ir.loops.verify_attention import find_operand
from coilwork_ir.scalar import Scalar, find_index_symbols
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.attention_cost import model_attention_us
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote

MOST_COLUMNS: Final = 512
"""Columns of values, and terms of a product, that a block has whole."""


@dataclass(frozen=True, slots=True)
class AttentionInBlocks:
    """Attention of any score and mask, and its gradient, in blocks of rows and keys."""

    context: ImplementationContext

    def claims(self, node: Convolution | Attention | AttentionGradient, target: Target) -> str | None:
        """Floats of up to 32 bits in short rows, whose keys are shared by blocks of rows."""
        if isinstance(node, Convolution):
            return "it is no attention"
        weights = node.weights
        reason = _why_no_blocks(weights)
        if reason is not None or isinstance(node, Attention):
            return reason
        if node.of_bias is not None and node.bias_at != weights.rows:
            return "the gradient of a bias is summed along the keys of each row, and no further"
        shared = [_count_sharing(body, weights) for body in (weights.query, weights.key, weights.value)]
        if shared[0] is None or any(count != 1 for count in shared[0]):
            return "several points load one element of a query"
        if shared[1] is None or shared[1] != shared[2]:
            return "keys are not shared as values are"
        return None

    def quote(self, node: Convolution | Attention | AttentionGradient, target: Target) -> Quote:
        """Return the time of its tiles, or of memory: scores stay on chip."""
        assert not isinstance(node, Convolution)
        us = model_attention_us(node, self.context, target, target.machine.attention_kernels)
        return Quote(us=us, reason="scores stay on chip", numbers={"blocks_us": round(us, 3)})

    def least_gain_us(self, node: Convolution | Attention | AttentionGradient, rival: Quote) -> float:
        """None: all that others do besides is to store scores."""
        return 0.0


def _why_no_blocks(weights: Weights) -> str | None:
    if weights.accumulate is not DType.F32 or len(weights.rows) < 1:
        return f"sums of {weights.accumulate.text}, or no rows"
    for extent in (weights.ranges[-1].extent, weights.axes[1].extent):
        count = None if extent is None else as_int(extent)
        if count is None or not 0 < count <= MOST_COLUMNS:
            return f"no 1 to {MOST_COLUMNS} columns and terms"
    row = weights.rows[-1]
    for body in (weights.key, weights.value):
        if find_operand(body) is None:
            return "every block of rows would compute keys again"
        if row in find_index_symbols((body,)):
            return "keys or values differ from row to row"
    if find_operand(weights.key) is None or weights.keys not in find_index_symbols((weights.key,)):
        return "keys do not differ"
    return None


def _count_sharing(body: Scalar, weights: Weights) -> tuple[int | Expr, ...] | None:
    """How many neighbouring points of each range of rows but the last load one element; None if that is not
    plain to see.
    """
    operand = find_operand(body)
    if operand is None:
        return None
    found: list[int | Expr] = []
    for r in weights.rows[:-1]:
        places = [expr for expr in operand.index if r in expr.free_symbols]
        assert r.extent is not None
        if not places:
            extent = as_int(r.extent)
            found.append(r.extent if extent is None else extent)
        elif len(places) > 1:
            return None
        else:
            count = _read_place(places[0], r)
            if count is None:
                return None
            found.append(count)
    return tuple(found)


def _read_place(place: Expr, r: Expr) -> int | None:
    """How many points of `r` have one `place` in a row."""
    if place is r:
        return 1
    match get_node(place):
        case FloorDiv(above, below) if above is r:
            return as_int(below)
    return None
