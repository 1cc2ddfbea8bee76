"""Sorts become operator calls: kernels have no sort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coilwork_ir.buffers import Buffer, Ref, contiguous_strides
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Sort
from coilwork_ir.loops.access import defined
from coilwork_ir.scalar import Load
from coilwork_scheduler.dependence import analyse


def externalize_sorts(graph: Graph) -> Graph:
    """`graph` with each sort replaced by `aten.sort.stable` on a buffer that holds its operand."""
    if not any(isinstance(node, Sort) for node in graph.nodes):
        return graph
    facts = analyse(graph)
    taken = set(facts.buffers)
    nodes: list[Node] = []
    for node in graph.nodes:
        if not isinstance(node, Sort):
            nodes.append(node)
            continue
        source = _whole_buffer(node, facts.buffers)
        if source is None:
            operand = _operand(node, taken)
            nodes.append(operand)
            source = operand.output.name
        nodes.append(_call(node, source))
    return replace(graph, nodes=tuple(nodes))


def _whole_buffer(node: Sort, buffers: Mapping[str, Buffer]) -> str | None:
    """The buffer that the sort's operand already is, element for element."""
    body = node.body
    if not isinstance(body, Load) or body.indirect or body.mask is not None or body.index != node.ranges:
        return None
    buffer = buffers[body.buffer]
    same = all(size is symbol.extent for size, symbol in zip(buffer.shape, node.ranges, strict=True))
    return body.buffer if same else None


def _operand(node: Sort, taken: set[str]) -> Pointwise:
    like = defined(node)[0]
    name = fresh_name(f"{like.name}_operand", taken)
    buffer = Buffer(
        name=name,
        dtype=node.body.dtype,
        shape=like.shape,
        strides=contiguous_strides(like.shape),
        device=like.device,
    )
    return Pointwise(output=buffer, ranges=node.ranges, body=node.body, origins=node.origins)


def _call(node: Sort, source: str) -> Extern:
    both = all(output is not None for output in node.outputs)
    return Extern(
        target="aten.sort.stable",
        args=(Ref(source),),
        kwargs=(
            ("stable", node.stable),
            ("dim", node.ranges.index(node.axis)),
            ("descending", node.descending),
        ),
        outputs=node.outputs,
        single=False,
        out_overload="aten.sort.values_stable" if both else "",
        out_names=("values", "indices") if both else (),
        origins=node.origins,
    )


def fresh_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, with a number if it is `taken`; the result is taken from then on."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name
