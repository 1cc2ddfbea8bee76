"""`widen_convolutions` makes convolutions over one dimension calls over two, the first of one element.

ATen copies what a convolution over one dimension reads to row-major memory, however it lies. A call over two
dimensions takes channels-last operands as they are, so the layout pass has a choice. Of row-major operands
both calls run the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, ListValue, Ref, SymbolOutput
from coilwork_ir.device_traits import CPU_LIBRARIES, CUDNN
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import as_expr, as_int
from coilwork_ir.loops import Extern, Graph, Node, View
from coilwork_ir.loops.layouts import find_dense_order
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.layouts.convolutions import FORMS
from coilwork_scheduler.settings import Settings

_TYPES: Final = (DType.BF16, DType.F16, DType.F32)


def widen_convolutions(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with each convolution over one dimension, and its gradients, as calls over two.

    Calls stay where their layouts do: with captured layouts, strict numerics and batch invariance.
    """
    options = settings.options
    is_kept = options.convolution_layout == "auto" and options.numerics == "strict"
    if is_kept or options.convolution_layout == "captured" or options.batch_invariant:
        return graph
    names = facts.fresh_names()
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _widen(node, facts, settings, names) if isinstance(node, Extern) else (node,)
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes))


def _widen(node: Extern, facts: Dependence, settings: Settings, names: FreshNames) -> Sequence[Node]:
    """`node` with views around it, if it is a call over one dimension; else `node` alone."""
    form = FORMS.get(node.implements)
    if form is None or len(node.args) <= form.groups:
        return (node,)
    given = [node.args[position] for position in form.read]
    read = [facts.buffers[argument.name] for argument in given if isinstance(argument, Ref)]
    made = [b for b in node.outputs if isinstance(b, Buffer) and len(b.shape) == 3]
    # of activations: a weight of one tap, or of single channels, lies in both orders
    activations = [*read[:-1], *(b for b in made if b.shape != read[-1].shape)] if read else []
    if len(read) != len(form.read) or not made or not all(map(_has_choice, activations)):
        return (node,)
    target = settings.targets.of(made[0].device)
    if any(len(b.shape) != 3 or b.dtype not in _TYPES for b in read) or not (
        target.has(CUDNN) or target.has(CPU_LIBRARIES)
    ):
        return (node,)
    if not all(map(_is_row_major, made)):
        return (node,)
    before: list[Node] = []
    behind: list[Node] = []
    args = list(node.args)
    for position, buffer in zip(form.read, read, strict=True):
        view = replace(_add_dimension(buffer), name=names.close_to(buffer.name))
        before.append(View(output=view, source=buffer.name, offset=as_expr(0), origins=node.origins))
        args[position] = Ref(view.name)
    # of the added dimension: a stride of 1, no padding, a dilation of 1; behind the flag what a transposed
    # convolution adds to its result, here nothing
    for position, number in ((-3, 1), (-2, 0), (-1, 1), (1, 0)):
        args[form.transposed + position] = _prepend(args[form.transposed + position], number)
    outputs: list[Buffer | SymbolOutput | None] = []
    for output in node.outputs:
        if not isinstance(output, Buffer) or len(output.shape) != 3:
            outputs.append(output)
            continue
        wide = replace(_add_dimension(output), name=names.close_to(output.name))
        behind.append(View(output=output, source=wide.name, offset=as_expr(0), origins=node.origins))
        outputs.append(wide)
    call = replace(node, args=tuple(args), outputs=tuple(outputs))
    return (*before, call, *behind)


def _has_choice(buffer: Buffer) -> bool:
    """Tell if strides say in which order channels and places lie."""
    return as_int(buffer.shape[1]) != 1 and as_int(buffer.shape[2]) != 1


def _is_row_major(buffer: Buffer) -> bool:
    """Tell if dimensions fill memory in their order; where those of one element stand does not matter."""
    order = find_dense_order(buffer)
    several = [d for d in order or () if as_int(buffer.shape[d]) != 1]
    return order is not None and several == sorted(several)


def _add_dimension(buffer: Buffer) -> Buffer:
    """`buffer` with a dimension of one element in front of its last, under torch's stride for it."""
    (*outer, length), (*far, step) = buffer.shape, buffer.strides
    return replace(buffer, shape=(*outer, as_expr(1), length), strides=(*far, length * step, step))


def _prepend(argument: Argument, number: int) -> ListValue:
    assert isinstance(argument, ListValue), "a convolution has a list of numbers here"
    return ListValue((number, *argument.items))
