"""The maximum and the sum of exponentials of a softmax as one reduction, `online_softmax`.

As written, the sum needs the maximum of its whole row, so a row that is split, or too long to be kept on
chip, would be read twice. One walk suffices: it scales the sum whenever the maximum grows (Milakov and
Gimelshein 2018, Online normalizer calculation for softmax).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Graph, Node, Reduce
from coilwork_ir.scalar import Load, Op, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxPair:
    """Positions of a maximum and of a sum of exponentials, and one reduction that gives both.

    It stands at the position of the maximum.
    """

    maximum: int
    total: int
    both: Reduce


def merge_softmax_pairs(graph: Graph, wanted: Callable[[SoftmaxPair], bool]) -> Graph:
    """Return `graph` with those pairs that are `wanted` as one reduction. Linear in the size of the graph."""
    placed: dict[int, Reduce] = {}
    gone: set[int] = set()
    for pair in _find_pairs(graph):
        if pair.maximum not in placed and wanted(pair):
            placed[pair.maximum] = pair.both
            gone.add(pair.total)
    if not placed:
        return graph
    nodes: list[Node] = [placed.get(k, node) for k, node in enumerate(graph.nodes) if k not in gone]
    return replace(graph, nodes=tuple(nodes))


def _find_pairs(graph: Graph) -> Iterator[SoftmaxPair]:
    maxima: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        if not isinstance(node, Reduce) or node.checks:
            continue
        (first, *_) = node.outputs
        if node.kind == "max" and first is not None and node.body.dtype in (DType.F32, DType.F64):
            maxima[first.name] = position
        elif node.kind == "sum" and first is not None:
            found = _match_exponential(node.body)
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
                yield SoftmaxPair(maximum=place, total=position, both=both)


def _match_exponential(body: Scalar) -> tuple[Scalar, Load] | None:
    """Return `a` and `b` of `exp(a - b)` where `b` is loaded."""
    if not isinstance(body, Op) or body.op != "exp":
        return None
    (difference,) = body.operands
    if not isinstance(difference, Op) or difference.op != "sub":
        return None
    value, subtrahend = difference.operands
    return (value, subtrahend) if isinstance(subtrahend, Load) else None
