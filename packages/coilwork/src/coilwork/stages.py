"""The stages between the captured graph and the generated module, as a table: `STAGES`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import torch

from coilwork.backends.registry import codegen_for, collect_implementations
from coilwork.compile_options import CompileOptions
from coilwork.errors import OptionError, warn_of_module
from coilwork.job import Job
from coilwork.package_options import generator_settings, lowering_options, rewrites_of, schedule_options
from coilwork.targets import choose_targets, resident_bytes
from coilwork_frontend.calling_convention.alignment import aligned_inputs
from coilwork_frontend.calling_convention.negated_inputs import resolve_constant
from coilwork_frontend.calling_convention.saved_strides import Strides, chosen_strides
from coilwork_frontend.calling_convention.updates import names_at
from coilwork_frontend.likely_sizes import likely_arguments, likely_sizes
from coilwork_ir import emission
from coilwork_ir.emission import Generation
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.index import as_int
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.manifest import write_kernels
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.program.nodes import ExternCall, Launch, Program
from coilwork_ir.program.walk import all_kernels
from coilwork_ir.target import Targets
from coilwork_lowering import AddedGuard, Lowered
from coilwork_lowering.prepare import LoweringContext, lower_captured
from coilwork_lowering.rewrites import Fired
from coilwork_scheduler.make_program import ProgramContext, make_program
from coilwork_scheduler.memory import PlanOptions
from coilwork_tools.check_mode.batch_invariance import check_batch_invariant
from coilwork_tools.explain.clock import StageClock
from coilwork_tools.explain.trace import MAPPING_SUFFIX, Trace
from coilwork_wrapper import emit_python, encode_program

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the stages produce: a graph, its program, the kernels' sources, and what drives them.

    Attributes:
        module: the Python module, which people read.
        kernels: the manifests and texts of its kernels.
        native: the program as bytes.
        refusal: why the native executor refuses it, if it does.
        mappings: how each kernel runs, as text, if there is a trace.
        rewrites: those done by the stages themselves.
        saved_strides: of results that lie otherwise than captured, by position.
    """

    graph: Graph
    program: Program
    sources: Mapping[str, KernelSource]
    module: str
    kernels: bytes = b""
    native: bytes = b""
    refusal: str = ""
    mappings: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor]
    target: str
    rewrites: tuple[Fired, ...] = ()
    guards: tuple[AddedGuard, ...] = ()
    saved_strides: Mapping[int, Strides] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        """Launches of generated kernels in one call."""
        return sum(isinstance(i, Launch) for i in self.program.instructions)

    @property
    def extern_calls(self) -> int:
        """Calls of torch's own operators in one call."""
        return sum(isinstance(i, ExternCall) for i in self.program.instructions)

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak of allocated memory, if it is known before the call."""
        return None if self.program.peak_bytes is None else as_int(self.program.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A graph on its way through the stages, of which each adds what it makes.

    Attributes:
        gm: the graph that is lowered.
        likely: values of size symbols, for costs only.
        mappings: as in `Compiled`.
    """

    gm: torch.fx.GraphModule
    rewrites: tuple[Fired, ...] = ()
    lowered: Lowered | None = None
    targets: Targets | None = None
    likely: tuple[tuple[str, int], ...] = ()
    program: Program | None = None
    sources: Mapping[str, KernelSource] = field(default_factory=dict)
    mappings: Mapping[str, str] = field(default_factory=dict)
    compiled: Compiled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every stage reads: the job, and the operators that are left to ATen."""

    job: Job
    fallback: tuple[str, ...] = ()


def run_stages(job: Job, *, fallback: tuple[str, ...]) -> Compiled:
    """Compile the job's graph to a module. `fallback` are operators to leave to ATen.

    Raises:
        LoweringError, ScheduleError, EmitError, VerifyError: a stage cannot do its part.
    """
    return _made(STAGES.run(Draft(gm=job.gm), Context(job=job, fallback=fallback)).compiled)


def lowering_context(job: Job, fallback: tuple[str, ...]) -> LoweringContext:
    """What lowering reads. The graphs of a training step come rewritten with their joint graph."""
    settings = replace(lowering_options(job.options, fallback), fallback_nodes=job.left_to_aten)
    resident = resident_bytes(job.gm, job.options)
    is_open = job.is_rewritten and job.role == "inference"
    return LoweringContext(
        name=job.graph_id,
        options=settings if resident is None else replace(settings, resident_bytes=resident),
        rewrites=rewrites_of("aten", job.options) if is_open else None,
        layout=job.layout if job.is_rewritten else None,
        strides=job.strides,
        stage=job.clock.stage,
        write=job.trace.write if job.trace.wanted else None,
    )


def _made(value: _T | None) -> _T:
    assert value is not None, "a stage before has made it"
    return value


def _lower(draft: Draft, context: Context) -> Draft:
    job = context.job
    gm, fired, lowered = lower_captured(draft.gm, lowering_context(job, context.fallback))
    if not job.convention.free:
        lowered = replace(lowered, graph=replace(lowered.graph, free_results=()))
    return replace(draft, gm=gm, rewrites=fired, lowered=lowered, likely=likely_sizes(lowered.symbols, gm))


def _choose_targets(draft: Draft, context: Context) -> Draft:
    return replace(draft, targets=choose_targets(_made(draft.lowered).graph, context.job.options))


def _make_program(draft: Draft, context: Context) -> Draft:
    job, graph = context.job, _made(draft.lowered).graph
    program = lower_to_program(
        graph,
        _made(draft.targets),
        job.options,
        trace=job.trace,
        clock=job.clock,
        aligned=aligned_inputs(graph, draft.gm, returned=job.convention.returned),
        updates=names_at(graph, job.aligned_updates),
        donated=names_at(graph, job.convention.donated),
        apart=frozenset(job.apart),
        likely=draft.likely,
        marked_results=job.convention.marked_results,
    )
    return replace(draft, program=program)


def _check_batches(draft: Draft, context: Context) -> Draft:
    if context.job.options.batch_invariant:
        check_batch_invariant(_made(draft.program))
    return draft


def _generate(draft: Draft, context: Context) -> Draft:
    job, program, targets = context.job, _made(draft.program), _made(draft.targets)
    with job.clock.stage("codegen"):
        sources = emit_kernels(program, targets, job.options, trace=job.trace, likely=draft.likely)
    if not job.trace.wanted:
        return replace(draft, sources=sources)
    generation = _open_generation(program, targets, job.options, draft.likely)
    mappings = emission.describe_kernels(program, generation)
    for name, told in mappings.items():
        job.trace.write(f"kernels/{name}{MAPPING_SUFFIX}", told)
    return replace(draft, sources=sources, mappings=mappings)


def _wrap(draft: Draft, context: Context) -> Draft:
    job, lowered, program = context.job, _made(draft.lowered), _made(draft.program)
    target = _made(draft.targets).main.name
    with job.clock.stage("wrap"):
        module = _write_module(program, draft.sources, target, job)
        kernels = write_kernels(
            (draft.sources[kernel.name], kernel.origins) for kernel in all_kernels(program)
        )
        encoded = encode_program(program)
    job.trace.write("module.py", module)
    job.trace.write_bytes("kernels.bin", kernels)
    job.trace.write_bytes("program.bin", encoded.data)
    compiled = Compiled(
        graph=lowered.graph,
        program=program,
        sources=draft.sources,
        module=module,
        kernels=kernels,
        native=encoded.data,
        refusal="" if encoded.refusal is None else str(encoded.refusal),
        mappings=draft.mappings,
        constants={name: resolve_constant(value) for name, value in lowered.constants.items()},
        target=target,
        rewrites=draft.rewrites,
        guards=lowered.guards,
        saved_strides=chosen_strides(lowered.graph, program),
    )
    return replace(draft, compiled=compiled)


def _write_module(program: Program, sources: Mapping[str, KernelSource], target: str, job: Job) -> str:
    """The module for people; a text that says why there is none, with a warning, unless `strict` is on."""
    try:
        return emit_python(program, sources, target=target)
    # nothing runs by it, so no call has to run otherwise because of this
    except Exception as error:
        if job.options.strict:
            raise
        warn_of_module(job.graph_id, error)
        return f"# Graph {program.name} could not be written as a module: {type(error).__name__}.\n"


STAGES: Final[PassTable[Draft, Context]] = PassTable(
    passes=(
        Pass(name="lower", run=_lower, why="loops say what is computed, without views and operators' names"),
        Pass(name="choose targets", run=_choose_targets, why="what is fast is the devices' to say"),
        Pass(name="make program", run=_make_program, why="fused operations spare memory traffic"),
        Pass(name="check batches", run=_check_batches, why="a promise that cannot be kept is an error"),
        Pass(name="generate", run=_generate, why="each device has its language"),
        Pass(name="wrap", run=_wrap, why="a program runs by bytes, and is read as a module"),
    ),
    order=(
        Before("lower", "choose targets", "the devices are those of the buffers"),
        Before("choose targets", "make program", "costs are the targets'"),
        Before("make program", "check batches", "what could depend on the batch are kernels and calls"),
        Before("check batches", "generate", "what is refused needs no text"),
        Before("generate", "wrap", "what drives kernels names their arguments"),
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
    aligned: tuple[str, ...] = (),
    updates: tuple[str, ...] = (),
    donated: tuple[str, ...] = (),
    apart: frozenset[str] = frozenset(),
    likely: tuple[tuple[str, int], ...] = (),
    marked_results: int | None = 0,
) -> Program:
    """Loop graph -> schedule -> program; nested graphs of control flow likewise.

    `aligned` are inputs that kernels may take to start at multiples of 16 bytes, as the program sees to;
    `updates` are others, which it overwrites, as its caller sees to; `donated` are those whose memory the
    program may have. `apart` are calls that share no kernel with others. `likely` are values of size symbols,
    for costs only. The first `marked_results` results (`None`: all) may come back as negated or conjugated.
    """
    context = ProgramContext(
        targets=targets,
        scheduling=schedule_options(
            options, aligned_inputs=aligned + updates, donated_inputs=donated, size_hints=likely, apart=apart
        ),
        planning=PlanOptions(
            reuse=options.reuse,
            aligned_inputs=aligned,
            donated_inputs=donated,
            pools=options.pools,
            marked_results=marked_results,
        ),
        registry=collect_implementations(targets),
        verify=options.verify,
        stage=clock.stage,
        write=trace.write if trace.wanted else None,
    )
    return make_program(graph, context)


def _open_generation(
    program: Program, targets: Targets, options: CompileOptions, likely: tuple[tuple[str, int], ...]
) -> Generation:
    return Generation(
        targets=targets,
        find=codegen_for,
        settings=generator_settings(options),
        likely=likely_arguments(program, likely),
    )


def emit_kernels(
    program: Program,
    targets: Targets,
    options: CompileOptions,
    *,
    trace: Trace,
    likely: tuple[tuple[str, int], ...] = (),
) -> dict[str, KernelSource]:
    """Source text for every kernel of `program`, by name. `likely` are values of size symbols, by which
    generators propose versions.

    Raises:
        OptionError: a kernel cannot run as the option `mappings` says.
        EmitError: a generator cannot express a kernel.
    """
    try:
        return emission.emit_kernels(
            program,
            _open_generation(program, targets, options, likely),
            write=trace.write if trace.wanted else None,
        )
    except CoilworkIRError as error:
        if not options.mappings or not error.code.startswith("mapping"):
            raise
        reason = error.reason or error.node
        raise OptionError(error.code, error.what, reason=reason, remedy=error.remedy) from error
