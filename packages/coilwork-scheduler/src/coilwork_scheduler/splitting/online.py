"""Softmax over rows that are split or long: the maximum and the sum of exponentials below it, in one reading.

As written, the sum needs the maximum of its whole row first, so a row that does not stay on chip would be
read for the one and again for the other. As one `online_softmax` (Milakov and Gimelshein 2018) each piece, or
each loop, gives both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Graph, Node, Reduce
from coilwork_ir.scalar import Load, Op, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Positions of a maximum and of a sum of exponentials, and the reduction that gives both, at that of the
    maximum.
    """

    maximum: int
    total: int
    both: Reduce


def merged(graph: Graph, wanted: Callable[[Pair], bool]) -> Graph:
    """`graph` with those pairs that are `wanted` as one reduction. Linear in the size of the graph."""
    placed: dict[int, Reduce] = {}
    gone: set[int] = set()
    for pair in _pairs(graph):
        if pair.maximum not in placed and wanted(pair):
            placed[pair.maximum] = pair.both
            gone.add(pair.total)
    if not placed:
        return graph
    nodes: list[Node] = [placed.get(k, node) for k, node in enumerate(graph.nodes) if k not in gone]
    return replace(graph, nodes=tuple(nodes))


def _pairs(graph: Graph) -> Iterator[Pair]:
    maxima: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        if not isinstance(node, Reduce) or node.checks:
            continue
        (first, *_) = node.outputs
        if node.kind == "max" and first is not None and node.body.dtype in (DType.F32, DType.F64):
            maxima[first.name] = position
        elif node.kind == "sum" and first is not None:
            found = _exponent(node.body)
            if found is None or found[1].buffer not in maxima:
                continue
            value, subtrahend = found
            place = maxima[subtrahend.buffer]
            highest = graph.nodes[place]
            assert isinstance(highest, Reduce)
            same_space = (node.ranges, node.axes) == (highest.ranges, highest.axes)
            own_row = subtrahend.index == node.ranges and not subtrahend.indirect and subtrahend.mask is None
            if same_space and own_row and highest.body is value and value.dtype is node.body.dtype:
                outputs = (*highest.outputs, *node.outputs)
                origins = tuple(dict.fromkeys((*highest.origins, *node.origins)))
                both = replace(highest, kind="online_softmax", outputs=outputs, origins=origins)
                yield Pair(maximum=place, total=position, both=both)


def _exponent(body: Scalar) -> tuple[Scalar, Load] | None:
    """`a` and `b` of `exp(a - b)` where `b` is loaded."""
    if not isinstance(body, Op) or body.op != "exp":
        return None
    (difference,) = body.operands
    if not isinstance(difference, Op) or difference.op != "sub":
        return None
    value, subtrahend = difference.operands
    return (value, subtrahend) if isinstance(subtrahend, Load) else None
