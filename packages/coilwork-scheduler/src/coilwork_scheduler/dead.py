"""Removal of nodes that nobody needs."""

from __future__ import annotations

from dataclasses import replace

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.index import Expr
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import buffers_overwritten_by, buffers_read_by
from coilwork_scheduler.dependence import Dependence, is_effect, symbols_used


def remove_dead(graph: Graph, facts: Dependence) -> Graph:
    """`graph`, of which `facts` are known, without the nodes whose results nobody uses.

    Kept whatever their use: effects, random calls (each one advances the generator), run-time checks, and
    what overwrites memory of an input or constant.
    """
    needed = [must_run(node, facts) for node in graph.nodes]

    def need_symbols(symbols: frozenset[Expr]) -> None:
        for symbol in symbols:
            if symbol in facts.symbol_definer:
                needed[facts.symbol_definer[symbol]] = True

    for output in graph.outputs:
        match output:
            case Ref(name) if name in facts.definer:
                needed[facts.definer[name]] = True
            case Expr():
                need_symbols(output.free_symbols)
            case _:
                pass
    for position in reversed(range(len(graph.nodes))):
        if not needed[position]:
            continue
        node = graph.nodes[position]
        for name in (*facts.reads[position], *(old for old, _ in buffers_overwritten_by(node))):
            if name in facts.definer:
                needed[facts.definer[name]] = True
        if facts.symbol_definer:
            need_symbols(symbols_used(node))
    kept = tuple(node for node, keep in zip(graph.nodes, needed, strict=True) if keep)
    nodes = _without_unused_results(kept, graph)
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _without_unused_results(nodes: tuple[Node, ...], graph: Graph) -> tuple[Node, ...]:
    """External calls that return several results no longer name those that nobody uses.

    Some operators return nothing where their meta function promises a tensor (a workspace for a backward pass
    that will not happen), so a result that is not needed must not be touched.
    """
    used = {output.name for output in graph.outputs if isinstance(output, Ref)}
    for node in nodes:
        used.update(buffers_read_by(node))
        used.update(old for old, _ in buffers_overwritten_by(node))
    return tuple(_trimmed(node, used) if isinstance(node, Extern) else node for node in nodes)


def _trimmed(node: Extern, used: set[str]) -> Extern:
    if node.single or node.out_overload:
        return node
    kept = {number for number, _ in node.aliases} | {number for _, number, _ in node.binds}
    used = used.union(node.in_flight)
    outputs = tuple(
        None if isinstance(o, Buffer) and o.name not in used and number not in kept else o
        for number, o in enumerate(node.outputs)
    )
    return node if outputs == node.outputs else replace(node, outputs=outputs)


def must_run(node: Node, facts: Dependence) -> bool:
    """True if `node` may not be removed even when nobody reads what it defines."""
    if is_effect(node) or (isinstance(node, Extern) and node.random):
        return True
    if isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter) and node.checks:
        return True
    return any(facts.root[old] in facts.external for old, _ in buffers_overwritten_by(node))
