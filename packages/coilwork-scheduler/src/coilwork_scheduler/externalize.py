"""Sorts that kernels of the target do not do become operator calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coilwork_ir.buffers import Buffer, Ref, contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import as_int, extent_of, symbol
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Sort
from coilwork_ir.loops.access import buffers_defined_by
from coilwork_ir.scalar import Load, load
from coilwork_ir.target import Sorting
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings
from coilwork_scheduler.sizes import SizeHints


def externalize_sorts(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with each sort that a kernel cannot do replaced by a call on a buffer that holds its operand.

    That is `aten.sort.stable`, or `aten.topk` for the first elements of rows if these may be any of equal
    ones.
    """
    if not any(isinstance(node, Sort) for node in graph.nodes):
        return graph
    names = facts.fresh_names()
    nodes: list[Node] = []
    for node in graph.nodes:
        if not isinstance(node, Sort):
            nodes.append(node)
            continue
        sorting = settings.targets.capabilities_of(buffers_defined_by(node)[0].device).sorting
        why = _refused(node, sorting, settings.sizes)
        in_memory = sorting is not None and sorting.longest is None
        length = as_int(extent_of(node.axis))
        settings.journal.note(
            "sort",
            tuple(buffer.name for buffer in buffers_defined_by(node)),
            not why,
            why or ("rows are sorted in memory" if in_memory else "rows stay on chip"),
            length=-1 if length is None else length,
            longest=(sorting.longest if sorting is not None else 0) or 0,
        )
        if not why:
            nodes.append(node)
            continue
        source = None if node.checks else _whole_buffer(node, facts.buffers)
        if source is None:
            operand = _operand(node, names)
            nodes.append(operand)
            source = operand.output.name
        if node.count is not None and node.stable:
            nodes += _first_of_all(node, source, names)
        else:
            nodes.append(_call(node, source))
    return replace(graph, nodes=tuple(nodes))


def _refused(node: Sort, sorting: Sorting | None, sizes: SizeHints) -> str:
    """Why a kernel does not do `node`; empty if it does."""
    length = as_int(extent_of(node.axis))
    if sorting is None:
        return "kernels of the target sort nothing"
    if node.body.dtype.itemsize > sorting.most_bytes or node.body.dtype in (DType.F8E4M3, DType.F8E5M2):
        return f"kernels do not sort {node.body.dtype.text}"
    if sorting.longest is None:
        if length is None and node.count is not None:
            return "how long rows are is not known"
        return "rows without elements" if length == 0 else ""
    if length is None:
        return "how long rows are is not known"
    if not 0 < length <= sorting.longest:
        return "rows do not fit on chip"
    if node.count is not None:
        # first elements take a fraction of the time
        return ""
    if sorting.longest_whole is not None and length > sorting.longest_whole:
        return "rows this long are sorted faster by digits"
    rows = sizes.numel(tuple(extent_of(r) for r in node.ranges if r is not node.axis))
    if rows < sorting.many and sorting.short is not None and length > sorting.short:
        return "a program per row would leave the device idle"
    return ""


def _whole_buffer(node: Sort, buffers: Mapping[str, Buffer]) -> str | None:
    """The buffer that the sort's operand already is, element for element."""
    body = node.body
    if not isinstance(body, Load) or body.indirect or body.mask is not None or body.index != node.ranges:
        return None
    buffer = buffers[body.buffer]
    same = all(size is symbol.extent for size, symbol in zip(buffer.shape, node.ranges, strict=True))
    return body.buffer if same else None


def _operand(node: Sort, names: FreshNames) -> Pointwise:
    like = buffers_defined_by(node)[0]
    shape = tuple(extent_of(r) for r in node.ranges)
    buffer = Buffer(
        name=names.close_to(f"{like.name}_operand"),
        dtype=node.body.dtype,
        shape=shape,
        strides=contiguous_strides(shape),
        device=like.device,
    )
    return Pointwise(
        output=buffer, ranges=node.ranges, body=node.body, checks=node.checks, origins=node.origins
    )


def _call(node: Sort, source: str) -> Extern:
    both = all(output is not None for output in node.outputs)
    dim = node.ranges.index(node.axis)
    if node.count is None:
        return Extern(
            target="aten.sort.stable",
            args=(Ref(source),),
            kwargs=(("stable", node.stable), ("dim", dim), ("descending", node.descending)),
            outputs=node.outputs,
            single=False,
            out_overload="aten.sort.values_stable" if both else "",
            out_names=("values", "indices") if both else (),
            origins=node.origins,
        )
    return Extern(
        target="aten.topk.default",
        args=(Ref(source), node.count),
        kwargs=(("dim", dim), ("largest", node.descending)),
        outputs=node.outputs,
        single=False,
        out_overload="aten.topk.values" if both else "",
        out_names=("values", "indices") if both else (),
        origins=node.origins,
    )


def _first_of_all(node: Sort, source: str, names: FreshNames) -> list[Node]:
    """A call that sorts all of each row, and copies of the first elements."""
    shape = tuple(extent_of(r) for r in node.ranges)
    whole: list[Buffer | None] = []
    copies: list[Node] = []
    for output in node.outputs:
        if output is None:
            whole.append(None)
            continue
        name = names.close_to(f"{output.name}_all")
        made = replace(output, name=name, shape=shape, strides=contiguous_strides(shape))
        ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(output.shape))
        whole.append(made)
        copies.append(
            Pointwise(
                output=output, ranges=ranges, body=load(name, ranges, output.dtype), origins=node.origins
            )
        )
    return [_call(replace(node, outputs=(whole[0], whole[1]), count=None), source), *copies]
