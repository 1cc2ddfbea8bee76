"""The stages between the captured graph and the generated module, as a table: `STAGES`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import torch

from coilwork.compile_options import CompileOptions
from coilwork.job import Job
from coilwork.registries import find_codegen, find_target_backend
from coilwork.stage_settings import (
    list_rewrites,
    make_generator_settings,
    make_lowering_options,
    make_schedule_options,
)
from coilwork.targets import choose_targets, count_resident_bytes
from coilwork_frontend.calling_convention.activation_strides import Strides, list_chosen_strides
from coilwork_frontend.calling_convention.lazy_conjugation import resolve_constant
from coilwork_frontend.capture.eager_fallback import warn_of_module
from coilwork_frontend.likely_sizes import list_likely_arguments
from coilwork_ir import emission
from coilwork_ir.calling_convention import NOTHING_KNOWN, Boundary
from coilwork_ir.emission import Generation
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.program.nodes import Program
from coilwork_ir.target import Targets
from coilwork_lowering import AddedGuard, Lowered
from coilwork_lowering.pipeline import LoweringContext, lower_captured
from coilwork_lowering.rewrites import Fired
from coilwork_runtime.executor.choice import Loadable
from coilwork_scheduler.contractions.registry import collect_implementations
from coilwork_scheduler.make_program import ProgramContext, make_program
from coilwork_scheduler.memory import PlanOptions
from coilwork_tools.check_mode.watch import check_batch_invariant
from coilwork_tools.emit_kernels import emit_kernels
from coilwork_tools.explain.report import StageClock
from coilwork_tools.explain.trace_folder import MAPPING_SUFFIX, Trace
from coilwork_wrapper.module_wrapper import write_graph

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The product of the stages: a graph, its program, the sources of its kernels, and the loadable form.

    Attributes:
        written: the program and its kernels, as an executor loads them.
        mappings: the mapping of each kernel as text, if there is a trace.
        rewrites: rewrites that the stages did.
        saved_strides: strides of results that differ from the captured ones, by position.
    """

    graph: Graph
    program: Program
    sources: Mapping[str, KernelSource]
    written: Loadable
    mappings: Mapping[str, str] = field(default_factory=dict)
    target: str
    rewrites: tuple[Fired, ...] = ()
    guards: tuple[AddedGuard, ...] = ()
    saved_strides: Mapping[int, Strides] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A graph on its way through the stages; each stage adds its product.

    Attributes:
        gm: the graph that is lowered.
        boundary: facts about the inputs and results of the loop graph.
        mappings: as in `Compiled`.
    """

    gm: torch.fx.GraphModule
    rewrites: tuple[Fired, ...] = ()
    lowered: Lowered | None = None
    targets: Targets | None = None
    boundary: Boundary = NOTHING_KNOWN
    program: Program | None = None
    sources: Mapping[str, KernelSource] = field(default_factory=dict)
    mappings: Mapping[str, str] = field(default_factory=dict)
    compiled: Compiled | None = None


def run_stages(job: Job, *, fallback: tuple[str, ...]) -> Compiled:
    """Compile the job's graph to a module. `fallback` are operators to leave to ATen.

    Raises:
        LoweringError, ScheduleError, EmitError, VerifyError: a stage cannot do its part.
    """
    return _require(STAGES.run(Draft(gm=job.gm), replace(job, fallback=fallback)).compiled)


def make_lowering_context(job: Job) -> LoweringContext:
    """Return the context of lowering. Graphs of a training step were rewritten with their joint graph."""
    settings = replace(make_lowering_options(job.options, job.fallback), fallback_nodes=job.left_to_aten)
    resident = count_resident_bytes(job.gm, job.options)
    is_open = job.is_rewritten and job.role == "inference"
    return LoweringContext(
        name=job.graph_id,
        options=settings if resident is None else replace(settings, resident_bytes=resident),
        rewrites=list_rewrites("aten", job.options) if is_open else None,
        layout=job.layout if job.is_rewritten else None,
        strides=job.strides,
        stage=job.clock.stage,
        write=job.trace.write if job.trace.is_wanted else None,
    )


def _require(value: _T | None) -> _T:
    assert value is not None, "a stage before has made it"
    return value


def _lower(draft: Draft, job: Job) -> Draft:
    gm, fired, lowered = lower_captured(draft.gm, make_lowering_context(job))
    if not job.convention.free:
        lowered = replace(lowered, graph=replace(lowered.graph, free_results=()))
    boundary = job.describe_boundary(lowered.graph, gm, lowered.symbols)
    return replace(draft, gm=gm, rewrites=fired, lowered=lowered, boundary=boundary)


def _choose_targets(draft: Draft, job: Job) -> Draft:
    return replace(draft, targets=choose_targets(_require(draft.lowered).graph, job.options))


def _make_program(draft: Draft, job: Job) -> Draft:
    program = lower_to_program(
        _require(draft.lowered).graph,
        _require(draft.targets),
        job.options,
        trace=job.trace,
        clock=job.clock,
        boundary=draft.boundary,
        apart=frozenset(job.apart),
    )
    return replace(draft, program=program)


def _check_batches(draft: Draft, job: Job) -> Draft:
    if job.options.batch_invariant:
        check_batch_invariant(_require(draft.program))
    return draft


def _generate(draft: Draft, job: Job) -> Draft:
    program = _require(draft.program)
    generation = open_generation(program, _require(draft.targets), job.options, draft.boundary.likely)
    with job.clock.stage("codegen"):
        sources = emit_kernels(program, generation, job.trace, mappings=job.options.mappings)
    if not job.trace.is_wanted:
        return replace(draft, sources=sources)
    mappings = emission.describe_kernels(program, generation)
    for name, text in mappings.items():
        job.trace.write(f"kernels/{name}{MAPPING_SUFFIX}", text)
    return replace(draft, sources=sources, mappings=mappings)


def _wrap(draft: Draft, job: Job) -> Draft:
    lowered, program = _require(draft.lowered), _require(draft.program)
    target = _require(draft.targets).main.name
    constants = {name: resolve_constant(value) for name, value in lowered.constants.items()}
    on_fault = partial(warn_of_module, graph=job.graph_id, strict=job.options.strict)
    with job.clock.stage("wrap"):
        written = write_graph(program, draft.sources, target=target, constants=constants, on_fault=on_fault)
    job.trace.write_graph(written)
    compiled = Compiled(
        graph=lowered.graph,
        program=program,
        sources=draft.sources,
        written=written,
        mappings=draft.mappings,
        target=target,
        rewrites=draft.rewrites,
        guards=lowered.guards,
        saved_strides=list_chosen_strides(lowered.graph, program),
    )
    return replace(draft, compiled=compiled)


STAGES: Final[PassTable[Draft, Job]] = PassTable(
    passes=(
        Pass(name="lower", run=_lower, why="loop IR has neither views nor operators' names"),
        Pass(name="choose targets", run=_choose_targets, why="what is fast depends on the devices"),
        Pass(name="make program", run=_make_program, why="fused operations save memory traffic"),
        Pass(
            name="check batches", run=_check_batches, why="batch invariance that cannot be kept is an error"
        ),
        Pass(name="generate", run=_generate, why="each device has its language"),
        Pass(name="wrap", run=_wrap, why="a program runs by bytes, and is read as a module"),
    ),
    order=(
        Before("lower", "choose targets", "the devices are those of the buffers"),
        Before("choose targets", "make program", "costs are the targets'"),
        Before("make program", "check batches", "the check reads kernels and calls"),
        Before("check batches", "generate", "a rejected program needs no source text"),
        Before("generate", "wrap", "the wrapper names the kernels' arguments"),
    ),
)
"""From a captured graph to `Compiled`."""


def lower_to_program(
    graph: Graph,
    targets: Targets,
    options: CompileOptions,
    *,
    trace: Trace,
    clock: StageClock,
    boundary: Boundary = NOTHING_KNOWN,
    apart: frozenset[str] = frozenset(),
) -> Program:
    """Schedule a loop graph and make its program. `apart` are calls that share no kernel with others."""
    context = ProgramContext(
        targets=targets,
        scheduling=make_schedule_options(options, apart=apart),
        planning=PlanOptions(reuse=options.reuse, pools=options.pools, check_inputs=options.size_asserts),
        boundary=boundary,
        registry=collect_implementations(targets, find_target_backend),
        verify=options.verify,
        stage=clock.stage,
        write=trace.write if trace.is_wanted else None,
    )
    return make_program(graph, context)


def open_generation(
    program: Program, targets: Targets, options: CompileOptions, likely: tuple[tuple[str, int], ...] = ()
) -> Generation:
    """Return how the kernels of `program` are generated; generators propose versions for `likely` sizes."""
    settings, known = make_generator_settings(options), list_likely_arguments(program, likely)
    return Generation(targets=targets, find=find_codegen, settings=settings, likely=known)
