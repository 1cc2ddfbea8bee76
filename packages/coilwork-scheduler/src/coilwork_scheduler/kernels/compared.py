"""Which values of 16 bits decide something: compared with others, searched for an extreme, sorted; and what they are computed from.

With `fast` numerics a kernel keeps what it computes in `f32`. What it also stores, another kernel reads rounded. Where one finds the maximum of
a row and the other what equals it, both have to begin with the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scan, Sort, View
from coilwork_ir.loops.access import bodies, defined
from coilwork_ir.scalar import Const, Load, Op, Scalar, loads, postorder
from coilwork_ir.scalar import Reduce as ScalarReduce
from coilwork_ir.scalar import Scan as ScalarScan
from coilwork_ir.scalar import Sort as ScalarSort

_COMPARISONS: Final = frozenset("eq ne lt le gt ge".split())
_EXTREMES: Final = frozenset({"max", "min", "argmax", "argmin"})


def compared(roots: tuple[Scalar, ...]) -> frozenset[Scalar]:
    """The operands of comparisons in `roots` whose other operand is no literal."""
    return frozenset(
        operand
        for node in postorder(roots)
        if isinstance(node, Op) and node.op in _COMPARISONS
        if node.operands[0].dtype.is_float
        and not any(isinstance(operand, Const) for operand in node.operands)
        for operand in node.operands
    )


def deciding(graph: Graph) -> frozenset[str]:
    """The buffers of `graph` whose values decide something. Linear in the size of the graph; none without 16-bit floats."""
    if not any(buffer.dtype.is_low_precision for node in graph.nodes for buffer in defined(node)):
        return frozenset()
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if isinstance(node, View):
            if node.output.name in found:
                found.add(node.source)
            continue
        for root in _decisive(node, found):
            found.update(access.buffer for access in loads((root,)))
    return frozenset(found)


def compared_extremes(graph: Graph) -> frozenset[str]:
    """The buffers of `graph` that hold extremes, or rows in order, and are compared as they are: with what they were searched in, mostly."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if isinstance(node, View):
            if node.output.name in found:
                found.add(node.source)
            continue
        same = compared(bodies(node))
        if isinstance(node, Pointwise) and node.output.name in found:
            same |= frozenset(bodies(node))
        found.update(value.buffer for value in map(_uncast, same) if isinstance(value, Load))
    return frozenset(
        buffer.name
        for node in graph.nodes
        if isinstance(node, Sort) or (isinstance(node, Reduce | Scan) and node.kind in _EXTREMES)
        for buffer in defined(node)
        if buffer.name in found
    )


def searched(roots: tuple[Scalar, ...]) -> frozenset[Scalar]:
    """What extremes in `roots` are searched in, and what is sorted."""
    return frozenset(
        node.operands[0]
        for node in postorder(roots)
        if isinstance(node, ScalarSort)
        or (isinstance(node, ScalarReduce | ScalarScan) and node.kind in _EXTREMES)
    )


def _uncast(value: Scalar) -> Scalar:
    while isinstance(value, Op) and value.op == "cast":
        (value,) = value.operands
    return value


def _decisive(node: Node, found: set[str]) -> Iterator[Scalar]:
    """The values in the bodies of `node` that decide something, given what is `found` of the nodes behind it."""
    match node:
        case Reduce() | Scan() if node.kind in _EXTREMES:
            yield from bodies(node)
        case Sort():
            yield from bodies(node)
        case Pointwise() if node.output.name in found:
            yield from bodies(node)
        case _:
            yield from compared(bodies(node))
