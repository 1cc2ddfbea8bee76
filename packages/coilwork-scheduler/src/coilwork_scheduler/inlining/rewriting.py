"""What was decided about inlining, and the graph that follows from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from coilwork_ir.buffers import Buffer
from coilwork_ir.loc import merge_origins
from coilwork_ir.loops import Check, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import bodies
from coilwork_ir.scalar import Scalar
from coilwork_scheduler.inlining.check_sinking import Apart, Known, checks_of, take_apart
from coilwork_scheduler.inlining.inlining_cost import Computation, InlinedComputation
from coilwork_scheduler.inlining.substitute import Expander, Producer


def rewritten(
    graph: Graph,
    facts: Mapping[int, InlinedComputation],
    candidates: Mapping[str, int],
    handed: Collection[str],
    readers: Mapping[str, Sequence[int]],
    buffers: Mapping[str, Buffer],
) -> Graph:
    """`graph` over `buffers` with `candidates`, producers by name, computed inside the computations whose
    `facts` say so.

    Scatters take over the checks of candidates that are `handed` on; others with checks are taken apart.
    Producers that nobody reads any more are left for dead code removal.
    """
    apart = _taken_apart(graph, {n: at for n, at in candidates.items() if n not in handed}, buffers)
    given = {
        n: node
        for n, at in candidates.items()
        if n in handed and isinstance(node := graph.nodes[at], Pointwise)
    }
    stored = {buffer.name: buffer for found in apart.values() for buffer in found.stored}
    producers: dict[str, Producer] = {}
    expander = Expander(producers, {**buffers, **stored})
    for position in sorted(candidates.values()):
        node = graph.nodes[position]
        assert isinstance(node, Pointwise)
        body, inlined = node.body, facts[position].inlined
        if position in apart:
            body = apart[position].body
        if facts[position].composed:
            (body,), inlined = expander.expand((body,), inlined), frozenset()
        producers[node.output.name] = Producer(ranges=node.ranges, body=body, inlined=inlined)

    def stays(node: Node) -> bool:
        """False for a producer that every reader inlines: it is about to be removed, so leave its
        body alone.
        """
        if not isinstance(node, Pointwise) or node.output.name not in candidates:
            return True
        name = node.output.name
        return any(
            reader not in facts or name not in facts[reader].inlined for reader in readers.get(name, ())
        )

    def expand(values: tuple[Scalar, ...], name: str) -> tuple[Scalar, ...]:
        return expander.expand(values, facts[candidates[name]].inlined)

    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        own = facts.get(position)
        parts: tuple[Node, ...] = (node,)
        if position in apart:
            assert isinstance(node, Pointwise)
            parts = (*apart[position].nodes, replace(node, body=apart[position].body, checks=()))
        elif isinstance(node, Pointwise) and node.checks and node.output.name in given:
            parts = (replace(node, checks=()),)
        for part in parts:
            if own is None or not own.inlined or not stays(part):
                nodes.append(part)
                continue
            assert isinstance(part, Pointwise | Reduce | Scan | Sort | Scatter)
            values = expander.expand(bodies(part), own.inlined)
            origins = merge_origins(*(graph.nodes[p].origins for p in sorted(own.closure)))
            whole = with_bodies(part, values)
            if isinstance(part, Scatter):
                whole = replace(whole, checks=(*checks_of(part, given, expand), *whole.checks))
            nodes.append(replace(whole, origins=origins))
    return replace(graph, nodes=tuple(nodes))


def _taken_apart(
    graph: Graph, candidates: Mapping[str, int], buffers: Mapping[str, Buffer]
) -> dict[int, Apart]:
    """The `candidates` that have checks, by place, taken apart in order: those after the first to look up the
    same share its positions.
    """
    known: Known = {}
    found: dict[int, Apart] = {}
    for position in sorted(candidates.values()):
        node = graph.nodes[position]
        if isinstance(node, Pointwise) and node.checks:
            apart = take_apart(node, known, buffers)
            assert apart is not None, f"%{node.output.name} is a candidate for its positions"
            found[position] = apart
    return found


def with_bodies(node: Computation, values: tuple[Scalar, ...]) -> Computation:
    """`node` with the scalar graphs that `bodies` lists replaced."""
    count = len(values) - len(node.checks)
    checks = tuple(
        Check(condition=condition, message=check.message, error=check.error)
        for condition, check in zip(values[count:], node.checks, strict=True)
    )
    if isinstance(node, Scatter):
        end = 1 + len(node.indirect)
        mask = values[end] if node.mask is not None else None
        return replace(node, value=values[0], indirect=values[1:end], mask=mask, checks=checks)
    if isinstance(node, Scan):
        return replace(node, body=values[0], others=values[1:count], checks=checks)
    return replace(node, body=values[0], checks=checks)
