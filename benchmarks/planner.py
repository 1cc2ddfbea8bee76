"""Programs for a device that is not there: a torch.compile backend that plans and runs nothing.

What is captured on a CPU is lowered, scheduled and planned as if on a GPU, or for any CPU. No memory of the
graph's tensors is touched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork.registries import find_codegen
from coilwork.stage_settings import list_rewrites, make_layout_options
from coilwork.stages import lower_to_program
from coilwork_frontend.calling_convention.activation_strides import (
    lay_out_saved,
    list_chosen_strides,
    report_chosen_strides,
)
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.capture.operator_fixes import keep_resize_operators
from coilwork_frontend.likely_sizes import list_likely_arguments, list_likely_sizes
from coilwork_frontend.torch_compat.aot_autograd import compile_with_aot_autograd
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.machine import MachineModel
from coilwork_ir.program.nodes import Program
from coilwork_ir.target import TARGETS, Targets
from coilwork_lowering import (
    LoweringOptions,
    decompositions,
    lay_out_convolutions,
    lower,
    pad_products,
    partition,
)
from coilwork_lowering.rewrites import clean_up_copy
from coilwork_tools.explain.report import StageClock
from coilwork_tools.explain.trace_folder import Trace

GPU = torch.device("cuda", 0)


@dataclass(slots=True, kw_only=True)
class Planner:
    """A torch.compile backend that plans programs for `target`, a CPU or of `GPU`'s type, and runs none of
    them.

    `graphs` are those that the programs were made of, and `likely` what the kernels of each program are
    likely called with, by name.
    """

    target: str
    options: CompileOptions = field(default_factory=lambda: CompileOptions(strict=True))
    programs: list[Program] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    likely: list[dict[str, tuple[int, ...]]] = field(default_factory=list)

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        keep_resize_operators(gm)
        # Graphs of a training step are laid out before they are moved: what is said of a GPU holds for them,
        # too.
        joint = replace(make_layout_options(self.options), find_model=self._find_model)
        if self._is_gpu:
            joint = replace(joint, devices=("cuda", "cpu"))
        return compile_with_aot_autograd(
            gm,
            example_inputs,
            forward=partial(self._plan, role="forward"),
            backward=partial(self._plan, role="backward"),
            inference=partial(self._plan, role="inference"),
            decompositions=decompositions(LoweringOptions()),
            # captured on a CPU, where numbers would be drawn by ATen
            partition=partial(
                partition,
                layout=joint,
                lowering=LoweringOptions(
                    random="generated" if self._is_gpu else "auto", find_model=self._find_model
                ),
                rewrites=list_rewrites("aten", self.options, on_gpu=self._is_gpu),
            ),
        )

    @property
    def _is_gpu(self) -> bool:
        return TARGETS[self.target].is_gpu

    def _find_model(self, device: str) -> MachineModel:
        """The figures of the target, wherever tensors are while the graph is captured."""
        return TARGETS[self.target].machine

    def _plan(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role
    ) -> Callable[[list[Any]], Sequence[Any]]:
        options = self.options
        if role == "inference":
            gm, _ = clean_up_copy(gm, list_rewrites("aten", options, on_gpu=self._is_gpu))
        if role == "backward":
            example_inputs = lay_out_saved(gm, example_inputs)
        reports_strides = role == "forward"
        job = open_job(gm, example_inputs, role=role, options=options, reports_strides=reports_strides)
        gm = job.gm
        layout = replace(job.layout, find_model=self._find_model)
        laid_out, _ = lay_out_convolutions(move_to_gpu(gm) if self._is_gpu else gm, layout)
        laid_out, _ = pad_products(laid_out, layout)
        lowering = LoweringOptions(
            numerics=options.numerics,
            accumulation=options.accumulation,
            updates_in_place=options.reuse,
            find_model=self._find_model,
        )
        lowered = lower(laid_out, name=job.graph_id, options=lowering, example_strides=job.strides)
        graph = lowered.graph if job.convention.free else replace(lowered.graph, free_results=())
        self.graphs.append(graph)
        likely = list_likely_sizes(lowered.symbols, gm)
        boundary = job.describe_boundary(graph, laid_out, lowered.symbols)
        boundary = replace(boundary, likely=likely, marked_results=0)
        self.programs.append(
            lower_to_program(
                graph,
                declare_capabilities(Targets(main=TARGETS[self.target]), find_codegen),
                options,
                trace=Trace(None),
                clock=StageClock(),
                boundary=boundary,
            )
        )
        self.likely.append(list_likely_arguments(self.programs[-1], likely))
        report_chosen_strides(gm, list_chosen_strides(graph, self.programs[-1]))
        return UntouchedResults(gm)


def move_to_gpu(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm`, captured on a CPU, as if on a GPU: lowering chooses by device. No tensor but a fake
    one is made.
    """
    # constants stay: a copy of them would be a fake one
    moved = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    moved.meta.update(gm.meta)
    for node in moved.graph.nodes:
        node.meta["val"] = pytree.tree_map_only(FakeTensor, _fake_on_gpu, node.meta.get("val"))
        if isinstance(node.kwargs.get("device"), torch.device):
            node.update_kwarg("device", GPU)
    moved.recompile()
    return moved


def _fake_on_gpu(value: FakeTensor) -> Tensor:
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)


class UntouchedResults:
    """Stands for a compiled graph: tensors of the right shapes, whose memory nobody writes."""

    _boxed_call = True

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        (output,) = gm.graph.find_nodes(op="output")
        self._results = [
            node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in output.args[0]
        ]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        args.clear()
        return [
            torch.empty_strided(_restore_open_sizes(r.shape), _restore_open_sizes(r.stride()), dtype=r.dtype)
            if isinstance(r, Tensor)
            else r
            for r in self._results
        ]


def _restore_open_sizes(sizes: Sequence[int]) -> list[int]:
    """`sizes`, those that are open as they were when the graph was captured."""
    nodes = [getattr(size, "node", None) for size in sizes]
    return [size if node is None else node.hint for size, node in zip(sizes, nodes, strict=True)]
