"""Copies between layouts: put in around the calls for which they were chosen. Kernels that make what is
copied store the copy as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coilwork_ir.buffers import Buffer, Ref, SymbolOutput
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import symbol
from coilwork_ir.loops import Extern, Graph, Node, Pointwise
from coilwork_ir.loops.access import buffers_defined_by
from coilwork_ir.scalar import load
from coilwork_scheduler.layouts.sites import Copy


def put_in_copies(graph: Graph, copied: Iterable[Copy], names: FreshNames) -> Graph:
    """`graph` with each copy in `copied` in front of its call or behind it."""
    by_call: dict[int, list[Copy]] = {}
    for copy in copied:
        by_call.setdefault(copy.position, []).append(copy)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        before: list[Node] = []
        behind: list[Node] = []
        for copy in by_call.get(position, ()):
            assert isinstance(node, Extern), "only calls are given copies"
            current = copy.buffer
            if copy.is_result:
                # as it is laid out by now
                current = next(b for b in buffers_defined_by(node) if b.name == copy.buffer.name)
            other = replace(current, name=names.close_to(current.name), strides=copy.strides)
            if copy.is_result:
                node = replace(node, outputs=tuple(_rename(b, current.name, other) for b in node.outputs))
                behind.append(_copy(other, current, node))
            else:
                given = Ref(current.name)
                node = replace(node, args=tuple(Ref(other.name) if a == given else a for a in node.args))
                before.append(_copy(current, other, node))
        nodes += [*before, node, *behind]
    return replace(graph, nodes=tuple(nodes))


def _rename(output: Buffer | SymbolOutput | None, name: str, other: Buffer) -> Buffer | SymbolOutput | None:
    return other if isinstance(output, Buffer) and output.name == name else output


def _copy(source: Buffer, made: Buffer, like: Extern) -> Pointwise:
    ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(made.shape))
    return Pointwise(
        output=made, ranges=ranges, body=load(source.name, ranges, source.dtype), origins=like.origins
    )
