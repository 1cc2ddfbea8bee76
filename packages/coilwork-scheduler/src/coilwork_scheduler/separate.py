"""Temporaries for stages that read the memory they overwrite.

A loop node computes all of its values before any is written. A kernel does not: it may overwrite an element
that another point has yet to read. Only reads of the very element that a point writes are safe.
"""

from __future__ import annotations

from dataclasses import replace

from coilwork_ir.buffers import Buffer, contiguous_strides
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, as_int, extent_of, stride_of
from coilwork_ir.loops import Graph, Node, Pointwise, Scatter
from coilwork_ir.scalar import Scalar, load, loads
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings


def separate_overlaps(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with such values computed into buffers of their own first."""
    if not any(isinstance(n, Scatter) or (isinstance(n, Pointwise) and n.into) for n in graph.nodes):
        return graph
    names = facts.fresh_names()
    nodes: list[Node] = []
    for node in graph.nodes:
        match node:
            case Pointwise(into=str(old)) if _overlaps(node.body, old, facts, node.ranges):
                before, (body,) = _computed_before(node, (node.body,), names)
                nodes += [*before, replace(node, body=body)]
            case Scatter(into=str(old)):
                mask = () if node.mask is None else (node.mask,)
                roots = (node.value, *node.indirect, *mask)
                if any(_overlaps(root, old, facts, _own_element(node)) for root in roots):
                    before, values = _computed_before(node, roots, names)
                    nodes.extend(before)
                    count = 1 + len(node.indirect)
                    node = replace(
                        node, value=values[0], indirect=values[1:count], mask=values[count] if mask else None
                    )
                nodes.append(node)
            case _:
                nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _own_element(node: Scatter) -> tuple[Expr, ...] | None:
    """The element that a point of `node` writes, if it is known to write one that no other point does."""
    moving = [[s for s in node.ranges if s in place.free_symbols] for place in node.index]
    alone = {
        found[0]
        for place, found in zip(node.index, moving)
        if len(found) == 1 and stride_of(place, found[0]) is not None
    }
    several = {s for s in node.ranges if as_int(extent_of(s)) != 1}
    return node.index if not node.indirect and several <= alone else None


def _overlaps(body: Scalar, old: str, facts: Dependence, element: tuple[Expr, ...] | None) -> bool:
    """Tell if `body` reads memory of `old` elsewhere than at `element`."""
    root = facts.root[old]
    for access in loads((body,)):
        if facts.root[access.buffer] != root:
            continue
        same_element = access.buffer == old and not access.indirect and access.index == element
        if not same_element:
            return True
    return False


def _computed_before(
    node: Pointwise | Scatter, roots: tuple[Scalar, ...], names: FreshNames
) -> tuple[list[Pointwise], tuple[Scalar, ...]]:
    shape = tuple(extent_of(symbol) for symbol in node.ranges)
    before: list[Pointwise] = []
    values: list[Scalar] = []
    for root in roots:
        if not loads((root,)):
            values.append(root)
            continue
        buffer = Buffer(
            name=names.close_to(f"{node.output.name}_value"),
            dtype=root.dtype,
            shape=shape,
            strides=contiguous_strides(shape),
            device=node.output.device,
        )
        before.append(Pointwise(output=buffer, ranges=node.ranges, body=root, origins=node.origins))
        values.append(load(buffer.name, node.ranges, root.dtype))
    return before, tuple(values)
