"""Saved tensors that lie otherwise than captured: told to autograd, and made so where kernels do not run.

The scheduler chooses the strides of what only the backward graph sees. Autograd hands these strides on, and
the backward graph is compiled for them. Its operators were captured with others, and the forward graph's
operators make others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import report_output_strides
from coilwork_ir.buffers import Ref
from coilwork_ir.graph_marks import FREE_STRIDES
from coilwork_ir.index import as_int
from coilwork_ir.loops.access import defined
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import buffers
from coilwork_ir.roles import InputRole, OutputRole, Value

Strides: TypeAlias = tuple[int, ...]


def list_free_results(gm: fx.GraphModule, returned: int) -> tuple[int, ...]:
    """Positions of results of the forward graph `gm`, behind the first `returned`, that may lie
    as it likes.
    """
    results = gm.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    return tuple(k for k, node in enumerate(results) if k >= returned and _has_free_strides(node))


def _has_free_strides(node: object) -> bool:
    return isinstance(node, fx.Node) and bool(node.meta.get(FREE_STRIDES))


def list_chosen_strides(graph: Graph, program: Program) -> dict[int, Strides]:
    """Strides of the results of `program` that differ from those of `graph`, which it computes,
    by position.
    """
    if not graph.free_results:
        return {}
    made = buffers(program)
    captured = {buffer.name: buffer.strides for node in graph.nodes for buffer in defined(node)}
    found: dict[int, Strides] = {}
    for position, output in enumerate(graph.outputs):
        if isinstance(output, Ref) and output.name in graph.free_results:
            strides = made[output.name].strides
            if strides != captured[output.name]:
                found[position] = tuple(int(as_int(stride) or 0) for stride in strides)
    return found


def report_chosen_strides(gm: fx.GraphModule, chosen: Mapping[int, Strides]) -> None:
    """Tell autograd how results of the forward graph `gm` lie that lie otherwise than captured."""
    if chosen:
        results = gm.graph.output_node().args[0]
        assert isinstance(results, list | tuple)
        report_output_strides([chosen.get(position) for position in range(len(results))])


def list_captured_strides(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> dict[int, Strides]:
    """Strides with which inputs of the backward graph `gm` were captured that it gets with others, by
    position.
    """
    inputs = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    found: dict[int, Strides] = {}
    for position, (captured, given) in enumerate(zip(inputs, example_inputs, strict=False)):
        strides = _static_strides(captured)
        if strides is not None and strides != (_static_strides(given) or strides):
            found[position] = strides
    return found


def make_stride_input_roles(strides: Mapping[int, Strides]) -> tuple[InputRole, ...]:
    """The roles of inputs at these positions that may lie otherwise than they are taken."""
    return tuple(
        InputRole(value=Value("in", position), kind="strided", strides=wanted)
        for position, wanted in strides.items()
    )


def make_stride_result_roles(strides: Mapping[int, Strides]) -> tuple[OutputRole, ...]:
    """The roles of results at these positions that are to have these strides."""
    return tuple(
        OutputRole(value=Value("out", position), kind="strided", strides=wanted)
        for position, wanted in strides.items()
    )


def _static_strides(value: object) -> Strides | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    strides = value.stride()
    return tuple(strides) if all(type(stride) is int for stride in strides) else None
