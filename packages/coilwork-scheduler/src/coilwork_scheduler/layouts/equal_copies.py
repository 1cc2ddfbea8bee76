"""`share_equal_copies` drops copies that lie as their source does: whoever reads one reads the other.

Lowering copies what a call reads in one layout, and the layout pass may give the source that layout, too.
Where the source is read by others as well, as a residual stream is, inlining has kept both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.node_forms import rename_node
from coilwork_ir.scalar import Load
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings

_READERS = (Pointwise, Reduce, Scan, Sort, Scatter, Extern)
"""Nodes that may read another buffer of the same layout instead."""


def share_equal_copies(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` without copies of memory that nobody overwrites, into equal strides, if both are seen by their
    own names only, the source is no input, and the copy is no result. Linear time.
    """
    found = dict(_find_copies(graph, facts))
    if not found:
        return graph
    names: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        made = node.output.name if isinstance(node, Pointwise) else ""
        if made in found:
            source = found[made]
            names[made] = names.get(source, source)
            settings.remarks.note("equal-copy", (made, names[made]), True, "the source lies as the copy does")
        else:
            nodes.append(rename_node(node, names) if isinstance(node, _READERS) else node)
    return replace(graph, nodes=tuple(nodes))


def _find_copies(graph: Graph, facts: Dependence) -> Iterator[tuple[str, str]]:
    """Names of copies, each with its source."""
    copies = {node.output.name: node for node in graph.nodes if isinstance(node, Pointwise)}
    names_of: dict[str, int] = {}
    for root in facts.root.values():
        names_of[root] = names_of.get(root, 0) + 1
    kept = {output.name for output in graph.outputs if isinstance(output, Ref)}
    busy = {root for roots in facts.released.values() for root in roots}
    for node, reads in zip(graph.nodes, facts.reads, strict=True):
        if not isinstance(node, _READERS) or (isinstance(node, Extern) and (node.in_flight or node.waits)):
            kept.update(reads)
    for name, node in copies.items():
        source = _find_source(node, facts)
        if source is None or name in kept:
            continue
        roots = (facts.root[name], facts.root[source.name])
        if roots[1] in facts.external:
            # an input may begin anywhere in its storage, which calls can see
            continue
        is_alone = all(facts.root[one] == one and names_of[one] == 1 for one in (name, source.name))
        if is_alone and not any(root in facts.overwriters or root in busy for root in roots):
            yield name, source.name


def _find_source(node: Pointwise, facts: Dependence) -> Buffer | None:
    """Return the buffer that `node` copies into memory of the same layout; None if it is no such copy."""
    body = node.body
    if not isinstance(body, Load) or body.indirect or body.mask is not None or node.checks or node.into:
        return None
    source = facts.buffers[body.buffer]
    if body.index != node.ranges or replace(source, name=node.output.name) != node.output:
        return None
    return source
