"""Rewrite what no kernel of the target can compute: long sorts, and writes that overlap reads.

A sort that does not fit on chip becomes a call of `aten.sort` or `aten.topk`. A node that overwrites memory
it also reads gets a temporary: the loop IR computes all values before it writes any, but a kernel may
overwrite an element that another point has yet to read. Only a read of the very element that a point writes
is safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, as_int, find_stride, get_extent, symbol
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Scatter, Sort
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.scalar import Load, Scalar, list_loads, load
from coilwork_ir.target import Sorting
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings

# ---- Sorts ----


def call_library_sorts(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Replace each sort that a kernel cannot do by a call on a buffer that holds its operand.

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
        sorting = settings.targets.capabilities_of(list_defined_buffers(node)[0].device).sorting
        why = _why_library(node, sorting, settings.sizes)
        in_memory = sorting is not None and sorting.longest is None
        length = as_int(get_extent(node.axis))
        settings.remarks.note(
            "sort",
            tuple(buffer.name for buffer in list_defined_buffers(node)),
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
            nodes += _sort_then_slice(node, source, names)
        else:
            nodes.append(_call(node, source))
    return replace(graph, nodes=tuple(nodes))


def _why_library(node: Sort, sorting: Sorting | None, sizes: SizeHints) -> str:
    """Say why a kernel cannot do `node`; empty if it can."""
    length = as_int(get_extent(node.axis))
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
    rows = sizes.numel(tuple(get_extent(r) for r in node.ranges if r is not node.axis))
    if rows < sorting.many and sorting.short is not None and length > sorting.short:
        return "a program per row would leave the device idle"
    return ""


def _whole_buffer(node: Sort, buffers: Mapping[str, Buffer]) -> str | None:
    """Return the buffer that the sort's operand already is, element for element."""
    body = node.body
    if not isinstance(body, Load) or body.indirect or body.mask is not None or body.index != node.ranges:
        return None
    buffer = buffers[body.buffer]
    same = all(size is symbol.extent for size, symbol in zip(buffer.shape, node.ranges, strict=True))
    return body.buffer if same else None


def _operand(node: Sort, names: FreshNames) -> Pointwise:
    like = list_defined_buffers(node)[0]
    shape = tuple(get_extent(r) for r in node.ranges)
    buffer = Buffer(
        name=names.close_to(f"{like.name}_operand"),
        dtype=node.body.dtype,
        shape=shape,
        strides=make_contiguous_strides(shape),
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


def _sort_then_slice(node: Sort, source: str, names: FreshNames) -> list[Node]:
    """Return a call that sorts all of each row, and copies of the first elements."""
    shape = tuple(get_extent(r) for r in node.ranges)
    whole: list[Buffer | None] = []
    copies: list[Node] = []
    for output in node.outputs:
        if output is None:
            whole.append(None)
            continue
        name = names.close_to(f"{output.name}_all")
        made = replace(output, name=name, shape=shape, strides=make_contiguous_strides(shape))
        ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(output.shape))
        whole.append(made)
        copies.append(
            Pointwise(
                output=output, ranges=ranges, body=load(name, ranges, output.dtype), origins=node.origins
            )
        )
    return [_call(replace(node, outputs=(whole[0], whole[1]), count=None), source), *copies]


# ---- Overlapping writes ----


def break_overlaps(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Compute values into temporaries first where a node overwrites memory that it reads elsewhere."""
    if not any(isinstance(n, Scatter) or (isinstance(n, Pointwise) and n.into) for n in graph.nodes):
        return graph
    names = facts.fresh_names()
    nodes: list[Node] = []
    for node in graph.nodes:
        match node:
            case Pointwise(into=str(old)) if _overlaps(node.body, old, facts, node.ranges):
                before, (body,) = _materialize_operands(node, (node.body,), names)
                nodes += [*before, replace(node, body=body)]
            case Scatter(into=str(old)):
                mask = () if node.mask is None else (node.mask,)
                roots = (node.value, *node.indirect, *mask)
                if any(_overlaps(root, old, facts, _find_own_element(node)) for root in roots):
                    before, values = _materialize_operands(node, roots, names)
                    nodes.extend(before)
                    count = 1 + len(node.indirect)
                    node = replace(
                        node, value=values[0], indirect=values[1:count], mask=values[count] if mask else None
                    )
                nodes.append(node)
            case _:
                nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _find_own_element(node: Scatter) -> tuple[Expr, ...] | None:
    """Return the element that a point of `node` writes, if it is known to write one that no other point
    does.
    """
    moving = [[s for s in node.ranges if s in place.free_symbols] for place in node.index]
    alone = {
        found[0]
        for place, found in zip(node.index, moving)
        if len(found) == 1 and find_stride(place, found[0]) is not None
    }
    several = {s for s in node.ranges if as_int(get_extent(s)) != 1}
    return node.index if not node.indirect and several <= alone else None


def _overlaps(body: Scalar, old: str, facts: Dependence, element: tuple[Expr, ...] | None) -> bool:
    """Tell if `body` reads memory of `old` elsewhere than at `element`."""
    root = facts.root[old]
    for access in list_loads((body,)):
        if facts.root[access.buffer] != root:
            continue
        same_element = access.buffer == old and not access.indirect and access.index == element
        if not same_element:
            return True
    return False


def _materialize_operands(
    node: Pointwise | Scatter, roots: tuple[Scalar, ...], names: FreshNames
) -> tuple[list[Pointwise], tuple[Scalar, ...]]:
    shape = tuple(get_extent(symbol) for symbol in node.ranges)
    before: list[Pointwise] = []
    values: list[Scalar] = []
    for root in roots:
        if not list_loads((root,)):
            values.append(root)
            continue
        buffer = Buffer(
            name=names.close_to(f"{node.output.name}_value"),
            dtype=root.dtype,
            shape=shape,
            strides=make_contiguous_strides(shape),
            device=node.output.device,
        )
        before.append(Pointwise(output=buffer, ranges=node.ranges, body=root, origins=node.origins))
        values.append(load(buffer.name, node.ranges, root.dtype))
    return before, tuple(values)
