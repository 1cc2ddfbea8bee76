"""Sums over elements that lie several in a byte, element by element of the byte.

A weight of 4 bits is read as `(byte[r // 2] >> 4 * (r % 2)) & 15`, however a program spells it. The sum
of its products with a row goes through `r`: each byte is loaded once per element, by lanes that have no
neighbours in memory, and both halves are computed where one is wanted. With `r = 2 * q + p` it is a sum over
`q` of two terms. What depended on `r % 2` is a constant in each, and bytes are loaded as they lie.

This holds for products with a vector. Those of more rows are contractions, whose factors matrix units take
element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, get_extent, substitute, symbol
from coilwork_ir.loops import Graph, Node, Reduce
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    const,
    find_index_symbols,
    iterate_postorder,
    load,
    op,
    rewrite,
    substitute_ranges,
)
from coilwork_scheduler.contractions.sum_of_products import match_contraction_node
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings

# Elements of a byte, and what all of them may cost, as in the op table.
_COUNTS: Final = (2, 4, 8)
_MOST_COST: Final = 512
_COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = MappingProxyType(
    {
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
    }
)


def split_packed_sums(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Go through packed elements byte by byte in sums on GPUs, under `fast` numerics. Linear time."""
    if settings.options.numerics != "fast":
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        found = _split(node, settings) if isinstance(node, Reduce) else None
        nodes.append(node if found is None else found)
        if found is not None:
            names = tuple(buffer.name for buffer in found.outputs if buffer is not None)
            settings.remarks.note("packed-sum", names, True, "elements of a byte are terms of one step")
    return graph if all(a is b for a, b in zip(nodes, graph.nodes)) else replace(graph, nodes=tuple(nodes))


def _split(node: Reduce, settings: Settings) -> Reduce | None:
    """Return `node` over bytes; None if it is no such sum."""
    output = node.outputs[0]
    if node.kind != "sum" or len(node.axes) != 1 or output is None or node.checks:
        return None
    (axis,) = node.axes
    extent = as_int(get_extent(axis))
    if extent is None or not settings.targets.of(output.device).is_gpu:
        return None
    if match_contraction_node(node) is not None:
        return None
    count = next((n for n in _COUNTS if extent % n == 0 and _alternates(node.body, axis, n)), None)
    cost = sum(SCALAR_OPS[v.op].cost for v in iterate_postorder((node.body,)) if isinstance(v, Op))
    if count is None or count * cost > _MOST_COST:
        return None
    step = symbol(axis.name, extent=as_expr(extent // count))
    terms: list[Scalar] = []
    for place in range(count):
        (term,) = substitute_ranges((node.body,), {axis: step * as_expr(count) + as_expr(place)})
        terms += rewrite((term,), _fold)
    body = reduce(lambda a, b: op("add", a, b), terms)
    return replace(node, axes=(step,), body=body)


def _alternates(body: Scalar, axis: Expr, count: int) -> bool:
    """Tell if `body` asks which of `count` elements it is about, and reads a byte that all of them share."""
    step = symbol(axis.name, extent=as_expr(1 << 20))
    places = [{axis: step * as_expr(count) + as_expr(place)} for place in range(count)]
    asked = shared = False
    for value in iterate_postorder((body,)):
        if isinstance(value, IndexValue) and not value.operands and axis in value.expr.free_symbols:
            asked |= all(substitute(value.expr, place).is_const for place in places)
        elif isinstance(value, Load) and value.dtype.itemsize == 1 and axis in find_index_symbols((value,)):
            read = {tuple(substitute(e, place) for e in value.index) for place in places}
            shared |= len(read) == 1 and not value.indirect
    return asked and shared


def _fold(value: Scalar) -> Scalar:
    """Return `value`, whose operands are folded, without questions that have an answer."""
    match value:
        case IndexValue() if value.expr.is_const:
            return const(value.expr.value, DType.I64)
        case Load() if isinstance(value.mask, Const):
            if value.mask.value:
                return load(value.buffer, value.index, value.dtype, indirect=value.indirect)
            return const(value.other, value.dtype)
        case Op() if value.op in _COMPARED and all(isinstance(o, Const) for o in value.operands):
            left, right = (o.value for o in value.operands if isinstance(o, Const))
            if isinstance(left, int) and isinstance(right, int):
                return const(_COMPARED[value.op](left, right), DType.BOOL)
        case Op() if value.op == "where" and isinstance(value.operands[0], Const):
            return value.operands[1 if value.operands[0].value else 2]
        case Op() if value.op == "bitwise_and" and value.dtype.is_bool:
            kept = [o for o in value.operands if not (isinstance(o, Const) and o.value)]
            if any(isinstance(o, Const) for o in kept):
                return const(False, DType.BOOL)
            if len(kept) < 2:
                return kept[0] if kept else const(True, DType.BOOL)
    return value
