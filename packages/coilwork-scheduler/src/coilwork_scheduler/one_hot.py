"""Sums of what is zero at all points but one: they are that one term.

The gradient of a cross-entropy with respect to logits sums, along the classes, something that is zero but at
the target: `where(class == target, a, 0) * b`. A kernel would walk every class of every row to add zeros. A
product with zero counts as zero here, as in eager's own kernel, also where `b` is no finite number; hence
only with `fast` numerics.

Of a term that is another one at each point, such as the place in line of a token in `where(class == target,
place[row, class], 0)`, the one that counts is looked up. That is, where no kernel of the sum's would have the
row: the graph is given it, an operator makes it, or a scan goes along another axis. Floats that are
multiplied by zeros at the other points are summed: there an infinite one makes NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, extent_of, substitute
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce, Scan
from coilwork_ir.loops.access import buffers_defined_by
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    const,
    index_value,
    load,
    loads,
    op,
    placeholder,
    postorder,
    range_symbols,
    rewrite,
    where,
)
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings


def sum_one_term(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with such sums as pointwise nodes, under `fast` numerics. Linear in the size of the graph."""
    if settings.options.numerics != "fast":
        return graph
    nodes: list[Node] = []
    makers = {buffer.name: node for node in graph.nodes for buffer in buffers_defined_by(node)}
    changed = False
    for node in graph.nodes:
        term = _only_term(node, makers) if isinstance(node, Reduce) else None
        if term is None:
            nodes.append(node)
            continue
        assert isinstance(node, Reduce) and node.outputs[0] is not None
        output = node.outputs[0]
        changed = True
        settings.journal.note("one-hot", (output.name,), True, "all terms of the sum but one are zero")
        nodes.append(
            Pointwise(output=output, ranges=node.ranges, body=term, checks=node.checks, origins=node.origins)
        )
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _only_term(node: Reduce, makers: Mapping[str, Node]) -> Scalar | None:
    """Return what `node` sums at the one point that counts, zero if that lies outside; None if it is no such
    sum.

    `makers` of the graph's buffers, but for those that it is given.
    """
    (output, *_) = node.outputs
    if node.kind != "sum" or len(node.axes) != 1 or output is None or output.dtype is not node.body.dtype:
        return None
    (axis,) = node.axes
    if any(axis in range_symbols((check.condition,)) for check in node.checks):
        return None
    found = _comparison(node.body, axis)
    if found is None:
        return None
    condition, position = found
    (otherwise,) = rewrite((node.body,), lambda scalar: _given(scalar, condition, False))
    if not isinstance(otherwise, Const) or otherwise.value != 0:
        return None
    (term,) = rewrite((node.body,), lambda scalar: _given(scalar, condition, True))
    inside = op(
        "bitwise_and",
        op("ge", position, const(0, DType.I64)),
        op("lt", position, index_value(extent_of(axis))),
    )
    if not _multiplies_rows(node.body, condition, axis):
        (term,) = rewrite((term,), lambda scalar: _looked_up(scalar, axis, position, inside, makers))
    if axis in range_symbols((term,)):
        return None
    return where(inside, term, const(0, term.dtype))


def _multiplies_rows(body: Scalar, condition: Scalar, axis: Expr) -> bool:
    """Tell if floats that differ along the axis are multiplied by zero where `condition` does not hold: of
    infinite ones eager makes NaN.
    """
    (otherwise,) = rewrite((body,), lambda scalar: _given(scalar, condition, False, products=False))
    return any(load.dtype.is_float and axis in range_symbols((load,)) for load in loads((otherwise,)))


def _looked_up(
    node: Scalar, axis: Expr, position: Scalar, inside: Scalar, makers: Mapping[str, Node]
) -> Scalar:
    """`node`, whose operands are already, at `position` of the axis, if that can be."""
    if isinstance(node, IndexValue) and node.expr is axis:
        return position
    if not isinstance(node, Load) or not any(axis in e.free_symbols for e in node.index):
        return node
    maker = makers.get(node.buffer)
    if maker is not None and not isinstance(maker, Extern):
        if not isinstance(maker, Scan) or node.index[maker.ranges.index(maker.axis)] is axis:
            return node
    at = placeholder(len(node.indirect))
    return load(
        node.buffer,
        [substitute(e, {axis: at}) for e in node.index],
        node.dtype,
        indirect=(*node.indirect, position),
        mask=inside if node.mask is None else op("bitwise_and", inside, node.mask),
        other=node.other,
    )


def _comparison(body: Scalar, axis: Expr) -> tuple[Scalar, Scalar] | None:
    """The only place in `body` that the axis decides: `axis == position`, and the position."""
    found: tuple[Scalar, Scalar] | None = None
    for node in postorder((body,)):
        if not isinstance(node, Op) or node.op != "eq":
            continue
        for one, other in (node.operands, node.operands[::-1]):
            is_axis = isinstance(one, IndexValue) and one.expr is axis
            if is_axis and other.dtype is DType.I64 and axis not in range_symbols((other,)):
                if found is not None and found[0] is not node:
                    return None
                found = node, other
    return found


def _given(node: Scalar, condition: Scalar, truth: bool, *, products: bool = True) -> Scalar:
    """`node`, whose operands know already, where `condition` is `truth`; with `products` zeros go through
    those.
    """
    if node is condition:
        return const(truth, DType.BOOL)
    if not isinstance(node, Op):
        return node
    zero = [o for o in node.operands if isinstance(o, Const) and o.value == 0]
    match node.op:
        case "where" if isinstance(node.operands[0], Const):
            return node.operands[1] if node.operands[0].value else node.operands[2]
        case "mul" if zero and products:
            return zero[0]
        case "cast" if zero:
            return const(False if node.dtype.is_bool else 0, node.dtype)
        case "bitwise_and" if node.dtype.is_bool and zero:
            return zero[0]
        case "bitwise_and" if node.dtype.is_bool and any(isinstance(o, Const) for o in node.operands):
            return next((o for o in node.operands if not isinstance(o, Const)), node.operands[0])
    return node
