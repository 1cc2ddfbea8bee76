"""Strides of tensors that a forward graph saves for its backward graph (saved activations).

The scheduler chooses these strides, since only the backward graph sees the tensors. Autograd is told, and has
the backward graph compiled for them. Where captured operators run instead of kernels, they expect and make
the captured strides, and roles convert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import report_output_strides
from coilwork_ir.buffers import Ref
from coilwork_ir.calling_convention import InputRole, OutputRole, Value
from coilwork_ir.fx_metadata import FREE_STRIDES
from coilwork_ir.index import as_int
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import index_buffers

Strides: TypeAlias = tuple[int, ...]


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
            strides = program_buffers[output.name].strides
            if strides != captured[output.name]:
                chosen[position] = tuple(int(as_int(stride) or 0) for stride in strides)
    return chosen


def report_chosen_strides(gm: fx.GraphModule, chosen: Mapping[int, Strides]) -> None:
    """Tell autograd the `chosen` strides of results of the forward graph `gm`, by position."""
    if chosen:
        results = gm.graph.output_node().args[0]
        assert isinstance(results, list | tuple)
        report_output_strides([chosen.get(position) for position in range(len(results))])


def list_captured_strides(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> dict[int, Strides]:
    """Return the captured strides of inputs that the backward graph `gm` gets with others, by position."""
    inputs = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    changed: dict[int, Strides] = {}
    for position, (captured, example) in enumerate(zip(inputs, example_inputs, strict=False)):
        strides = _static_strides(captured)
        if strides is not None and strides != (_static_strides(example) or strides):
            changed[position] = strides
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
