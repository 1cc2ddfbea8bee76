"""Strides of tensors that a forward graph saves for its backward graph (saved activations).

The scheduler chooses these strides, since only the backward graph sees the tensors. Autograd is told, and has
the backward graph compiled for them. Autograd takes numbers alone: of tensors with open sizes the order of
dimensions goes from the forward graph's results to the backward graph's inputs by a mark that both have.
Where captured operators run instead of kernels, they expect and make the captured strides, and roles convert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import report_output_strides
from coilwork_frontend.torch_compat.sizes import is_same_size
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.calling_convention import InputRole, OutputRole, Value
from coilwork_ir.fx_metadata import FREE_STRIDES
from coilwork_ir.index import as_expr, as_int
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import index_buffers
from coilwork_ir.saved_layouts import SAVED_LAYOUT, SavedLayout, find_order, nest_strides

Strides: TypeAlias = tuple[int, ...]
"""Numbers; or below zero, where sizes are open, the order of dimensions: -1 the innermost, without gaps."""


def list_free_results(gm: fx.GraphModule, returned: int) -> tuple[int, ...]:
    """Return the positions of saved results of the forward graph `gm` whose strides are free.

    The first `returned` results go to the caller.
    """
    results = gm.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    return tuple(k for k, node in enumerate(results) if k >= returned and _has_free_strides(node))


def _has_free_strides(node: object) -> bool:
    return isinstance(node, fx.Node) and bool(node.meta.get(FREE_STRIDES))


def list_chosen_strides(graph: Graph, program: Program) -> dict[int, Strides]:
    """Return the strides of results of `program` that differ from those of its `graph`, by position."""
    if not graph.free_results:
        return {}
    program_buffers = index_buffers(program)
    captured = {buffer.name: buffer.strides for node in graph.nodes for buffer in list_defined_buffers(node)}
    chosen: dict[int, Strides] = {}
    for position, output in enumerate(graph.outputs):
        if isinstance(output, Ref) and output.name in graph.free_results:
            buffer = program_buffers[output.name]
            if buffer.strides != captured[output.name]:
                chosen[position] = _spell_strides(buffer)
    return chosen


def _spell_strides(buffer: Buffer) -> Strides:
    numbers = [as_int(stride) for stride in buffer.strides]
    if None not in numbers:
        return tuple(int(number or 0) for number in numbers)
    order = find_order(buffer.shape, buffer.strides, lambda one, other: as_expr(one) is as_expr(other))
    assert order is not None, f"nothing says how %{buffer.name} lies"
    return order


def report_chosen_strides(gm: fx.GraphModule, chosen: Mapping[int, Strides]) -> None:
    """Tell autograd the `chosen` strides of results of the forward graph `gm`, by position, or the backward
    graph how they lie."""
    if not chosen:
        return
    results = gm.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    numbers: list[Strides | None] = [None] * len(results)
    for position, strides in chosen.items():
        if any(step < 0 for step in strides):
            saved = results[position]
            assert isinstance(saved, fx.Node)
            saved.meta[SAVED_LAYOUT].order = strides
        else:
            numbers[position] = strides
    report_output_strides(numbers)


def find_saved_order(node: fx.Node) -> Strides | None:
    """Return the order of dimensions in which the forward graph leaves what `node`, an input of the backward
    graph, is; None: as captured, or as autograd is told."""
    mark = node.meta.get(SAVED_LAYOUT)
    return mark.order if isinstance(mark, SavedLayout) else None


def lay_out_saved(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """Return inputs of the backward graph `gm`, those of open sizes as the forward graph lays them out."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return [
        example
        if (order := find_saved_order(node)) is None
        else example.new_empty_strided(example.shape, nest_strides(example.shape, order))
        for node, example in zip(inputs, example_inputs, strict=True)
    ]


def list_captured_strides(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> dict[int, Strides]:
    """Return the captured strides of inputs that the backward graph `gm` gets with others, by position."""
    inputs = gm.graph.find_nodes(op="placeholder")
    changed: dict[int, Strides] = {}
    for position, (node, example) in enumerate(zip(inputs, example_inputs, strict=False)):
        captured = node.meta.get("val")
        strides = _static_strides(captured)
        if strides is not None and strides != (_static_strides(example) or strides):
            changed[position] = strides
        elif strides is None and find_saved_order(node) is not None:
            order = find_order(captured.shape, captured.stride(), is_same_size)
            assert order is not None, "what has gaps is laid out as captured"
            changed[position] = order
    return changed


def make_stride_input_roles(strides: Mapping[int, Strides]) -> tuple[InputRole, ...]:
    """Return the roles of inputs that must have the given strides, by position."""
    return tuple(
        InputRole(value=Value("in", position), kind="strided", strides=wanted)
        for position, wanted in strides.items()
    )


def make_stride_result_roles(strides: Mapping[int, Strides]) -> tuple[OutputRole, ...]:
    """Return the roles of results that must have the given strides, by position."""
    return tuple(
        OutputRole(value=Value("out", position), kind="strided", strides=wanted)
        for position, wanted in strides.items()
    )


def _static_strides(value: object) -> Strides | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    strides = value.stride()
    return tuple(strides) if all(type(stride) is int for stride in strides) else None
