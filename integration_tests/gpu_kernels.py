"""A torch.compile backend that emits the kernels a GPU would run, from models on the CPU, and runs none of
them.

Use as `torch.compile(..., backend=KernelsFor(("sm_90", "gfx942")))`; afterwards `specs` holds what the
wrapper's Python module would hand to the runtime, each kernel once however many graphs it occurs in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coilwork.compile_options import CompileOptions, Contractions
from coilwork.job import open_job
from coilwork.registries import find_codegen
from coilwork.stages import lower_to_program, open_generation
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.calling_convention.input_memory import name_inputs
from coilwork_ir.calling_convention import Boundary
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.loops import Graph, Sort
from coilwork_ir.target import TARGETS, Targets
from coilwork_lowering import lower
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.module_loader import execute_module
from coilwork_tools.emit_kernels import emit_kernels
from coilwork_tools.explain.report import StageClock
from coilwork_tools.explain.trace_folder import Trace
from coilwork_wrapper import emit_python
from integration_tests.aot_backend import compile_by_role

Call = Callable[[list[Any]], Sequence[Any]]


@dataclass(slots=True, kw_only=True)
class KernelsFor:
    """Attributes:

    targets: names of GPUs.
    contractions: who computes matrix products.
    specs: the kernels, by target, and what makes them differ.
    graphs: the roles of the graphs that were lowered.
    """

    targets: tuple[str, ...]
    contractions: Contractions = "auto"
    specs: dict[tuple[str, ...], KernelSpec] = field(default_factory=dict)
    graphs: list[Role] = field(default_factory=list)

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        return compile_by_role(gm, example_inputs, self._compile)

    def _compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role) -> Call:
        options = CompileOptions(strict=True, verify=True, contractions=self.contractions)
        job = open_job(gm, example_inputs, role=role, options=options)
        lowered = lower(gm, name=job.graph_id, example_strides=job.strides)
        graph = _choose_as_on_gpus(lowered.graph)
        for name in self.targets:
            targets = declare_capabilities(Targets(main=TARGETS[name]), find_codegen)
            quiet = Trace(None)
            program = lower_to_program(
                graph,
                targets,
                options,
                trace=quiet,
                clock=StageClock(),
                boundary=Boundary(donated=name_inputs(graph, job.convention.donated)),
            )
            sources = emit_kernels(program, open_generation(program, targets, options), quiet)
            module = emit_python(program, sources, target=name)
            for spec in execute_module(module, job.graph_id).specs:
                if not spec.is_triton:
                    raise AssertionError(f"{spec.name} is no Triton kernel")
                self.specs.setdefault((name, *identity(spec)), spec)
        self.graphs.append(role)
        return _blank_results(gm)


def _choose_as_on_gpus(graph: Graph) -> Graph:
    """`graph`, which was captured on a CPU, with the choice among equal elements that GPUs make."""
    nodes = [replace(node, as_topk=False) if isinstance(node, Sort) else node for node in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


def identity(spec: KernelSpec) -> tuple[str, ...]:
    """What the compiler sees of a kernel: its text without the heading, which names lines of the model."""
    _heading, separator, code = spec.source.partition("\nimport triton\n")
    if not separator:
        raise AssertionError(f"{spec.name} does not import triton")
    return (code, repr(spec.args), repr(spec.configs))


def _blank_results(gm: torch.fx.GraphModule) -> Call:
    """A stand-in for the compiled graph that returns zeros of the right shapes: nothing here is
    about values.
    """
    (output,) = gm.graph.find_nodes(op="output")
    results = [node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in output.args[0]]

    def call(args: list[Any]) -> Sequence[Any]:
        args.clear()
        return [
            torch.empty_strided(r.shape, r.stride(), dtype=r.dtype).zero_() if isinstance(r, Tensor) else r
            for r in results
        ]

    call._boxed_call = True
    return call
