"""Buffers that several nodes fill together, one box each.

The first of them is a `Scatter` without `into`: its output is memory of its own, of which it fills one box.
Others scatter into that memory. The verifier follows which elements have a value, and lets nobody read the
memory before all have.
"""

from __future__ import annotations

from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_ir.loops.nodes import Scatter
from coilwork_ir.verification import Box


def box_of(node: Scatter) -> Box | None:
    """The elements that `node` stores, if they are one box: each of its ranges runs along a dimension of its
    own.

    None for scatters by looked-up or masked positions, but for those that cover their output (where a mask
    leaves elements out, readers know which) or whose other elements nobody depends on, and for those that
    combine with what is there.
    """
    if node.covers or node.sparse:
        return Box(tuple(as_expr(0) for _ in node.output.shape), node.output.shape)
    if node.indirect or node.mask is not None or node.mode != "store":
        return None
    left = set(node.ranges)
    starts: list[Expr] = []
    extents: list[Expr] = []
    for expr in node.index:
        moving = [r for r in node.ranges if r in expr.free_symbols]
        if not moving:
            starts.append(expr)
            extents.append(as_expr(1))
            continue
        symbol, start = moving[0], expr - moving[0]
        extent = symbol.extent
        if symbol not in left or extent is None or not start.free_symbols.isdisjoint(node.ranges):
            return None
        left.remove(symbol)
        starts.append(start)
        extents.append(extent)
    if any(r.extent is None or as_int(r.extent) != 1 for r in left):
        return None
    return Box(tuple(starts), tuple(extents))
