"""The stages between the captured graph and the generated module, each timed and traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from coilwork.codegens import codegen_for
from coilwork.compile_options import CompileOptions
from coilwork.errors import OptionError, warn_of_driver
from coilwork.job import Job
from coilwork.module_wrapper import runs_natively
from coilwork.rewriting import rewrites_of
from coilwork.targets import choose_targets, resident_bytes
from coilwork_frontend.calling_convention.alignment import aligned_inputs
from coilwork_frontend.calling_convention.negated_inputs import resolve_constant
from coilwork_frontend.calling_convention.saved_strides import Strides, chosen_strides
from coilwork_frontend.calling_convention.updates import names_at
from coilwork_frontend.likely_sizes import likely_arguments, likely_sizes
from coilwork_ir.codegen import Codegen, Describing
from coilwork_ir.errors import CoilworkIRError, EmitError
from coilwork_ir.index import as_int
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel, Schedule
from coilwork_ir.kernels.text import format_kernel, format_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loc import Origin
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.loops.text import format_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.manifest import write_kernels
from coilwork_ir.program.nodes import ExternCall, Launch, Program
from coilwork_ir.program.text import format_program
from coilwork_ir.program.verify import verify_program
from coilwork_ir.program.walk import all_kernels, buffers, walk
from coilwork_ir.target import Target, Targets
from coilwork_lowering import (
    AddedGuard,
    LoweringOptions,
    lay_out_convolutions,
    list_generated_calls,
    lower,
    pad_products,
)
from coilwork_lowering.rewrites import Fired, cleaned_up
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_scheduler.explain import explain
from coilwork_scheduler.layouts.table import explain_layouts
from coilwork_scheduler.memory import PlanOptions, plan
from coilwork_tools.check_mode.batch_invariance import check_batch_invariant
from coilwork_tools.explain.clock import StageClock
from coilwork_tools.explain.trace import MAPPING_SUFFIX, Trace
from coilwork_wrapper import emit_native, emit_python

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the stages produce: a graph, its program, the kernels' sources, and what drives them.

    `module` is the Python module; `kernels` are the manifests and texts of its kernels; `native` is the program
    for the native executor, empty if it refuses the program, and `refusal` says why. `mappings` say how each kernel runs, as text, if there is a trace. `rewrites` are
    those done by the stages themselves; `saved_strides` are those of results that lie otherwise than
    captured, by position.
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


def run_stages(job: Job, *, fallback: tuple[str, ...]) -> Compiled:
    """Compile the job's graph to a module. `fallback` are operators to leave to ATen.

    Raises:
        LoweringError, ScheduleError, EmitError, VerifyError: a stage cannot do its part.
    """
    options, trace, clock = job.options, job.trace, job.clock
    gm, fired = _rewrite(job)
    lowering = replace(lowering_options(options, fallback), fallback_nodes=job.left_to_aten)
    resident = resident_bytes(gm, options)
    if resident is not None:
        lowering = replace(lowering, resident_bytes=resident)
    with clock.stage("lower"):
        lowered = lower(gm, name=job.graph_id, options=lowering, example_strides=job.strides)
    if not job.convention.free:
        lowered = replace(lowered, graph=replace(lowered.graph, free_results=()))
    if trace.wanted and lowered.updates:
        trace.write("updates.txt", "".join(f"{update.text}\n" for update in lowered.updates))
    if trace.wanted and lowered.copies:
        trace.write("copies.txt", "".join(f"{copy}\n" for copy in lowered.copies))
    targets = choose_targets(lowered.graph, options)
    aligned = aligned_inputs(lowered.graph, gm, returned=job.convention.returned)
    updates = names_at(lowered.graph, job.aligned_updates)
    likely = likely_sizes(lowered.symbols, gm)
    program = lower_to_program(
        lowered.graph,
        targets,
        options,
        trace=trace,
        clock=clock,
        aligned=aligned,
        updates=updates,
        donated=names_at(lowered.graph, job.convention.donated),
        apart=frozenset(job.apart),
        likely=likely,
        marked_results=job.convention.marked_results,
    )
    if options.batch_invariant:
        check_batch_invariant(program)
    with clock.stage("codegen"):
        sources = emit_kernels(program, targets, options, trace=trace, likely=likely)
    mappings = describe_kernels(program, targets, options, likely) if trace.wanted else {}
    for name, told in mappings.items():
        trace.write(f"kernels/{name}{MAPPING_SUFFIX}", told)
    with clock.stage("wrap"):
        module = emit_python(program, sources, target=targets.main.name)
        kernels = write_kernels((sources[kernel.name], kernel.origins) for kernel in all_kernels(program))
        native, refusal = _native(program, options)
    trace.write("module.py", module)
    return Compiled(
        graph=lowered.graph,
        program=program,
        sources=sources,
        module=module,
        kernels=kernels,
        native=native,
        refusal=refusal,
        mappings=mappings,
        constants={name: resolve_constant(value) for name, value in lowered.constants.items()},
        target=targets.main.name,
        rewrites=fired,
        guards=lowered.guards,
        saved_strides=chosen_strides(lowered.graph, program),
    )


def list_calls(job: Job, *, views: bool) -> tuple[Origin, ...]:
    """The calls of the graph that is lowered which generated code computes, as `list_generated_calls`."""
    gm, _ = _rewrite(replace(job, trace=Trace(None)))
    return list_generated_calls(gm, views=views)


def _rewrite(job: Job) -> tuple[torch.fx.GraphModule, tuple[Fired, ...]]:
    """The graph that is lowered: with rewrites and layouts that nobody has decided on before."""
    gm, trace, clock = job.gm, job.trace, job.clock
    if trace.wanted:
        trace.write("aten.txt", _readable(gm))
    fired: tuple[Fired, ...] = ()
    if not job.is_rewritten:
        return gm, fired
    if job.role == "inference":
        with clock.stage("rewrite"):
            gm, fired = cleaned_up(gm, rewrites_of("aten", job.options))
        if trace.wanted and fired:
            trace.write("aten.rewritten.txt", _readable(gm))
    with clock.stage("layout"):
        gm, decision = lay_out_convolutions(gm, job.layout)
        gm, padding = pad_products(gm, job.layout)
    if trace.wanted:
        trace.write("layout.txt", "\n".join((decision.reason, *padding.reasons)) + "\n")
        if decision.channels_last or decision.dense_copies or padding.padded or padding.by_rows:
            trace.write("aten.laid_out.txt", _readable(gm))
    return gm, fired


def _native(program: Program, options: CompileOptions) -> tuple[bytes, str]:
    """The program for the native executor, or why there is none.

    Python drives what the executor refuses, and with a warning what stumbles over a fault; `strict` raises
    that.
    """
    try:
        return emit_native(program), ""
    except EmitError as error:
        return b"", str(error)
    # Python drives every program, so no call has to run otherwise because of this.
    except Exception as error:
        if runs_natively(options):
            if options.strict:
                raise
            warn_of_driver(program.name, "the native executor", error)
        return b"", f"{type(error).__name__}: {error}"


def _readable(gm: torch.fx.GraphModule) -> str:
    return str(gm.print_readable(print_output=False, include_stride=True, include_device=True))


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
    _checked(graph, verify_graph, options, clock)
    if trace.wanted:
        trace.write(f"{graph.name}.loops.txt", format_graph(graph))
    with clock.stage("schedule"):
        settings = replace(_schedule_options(options, aligned + updates, donated, likely), apart=apart)
        steps: list[tuple[str, Graph]] = []
        watch = (lambda name, made: steps.append((name, made))) if trace.wanted else None
        scheduled: Schedule = schedule(graph, targets, settings, observe=watch)
    _checked(scheduled, verify_schedule, options, clock)
    if trace.wanted:
        trace.write(f"{graph.name}.schedule.txt", format_schedule(scheduled))
        trace.write(f"{graph.name}.decisions.txt", explain(scheduled.decisions))
        layouts = explain_layouts(steps, scheduled.decisions, targets=targets, options=settings)
        trace.write(f"{graph.name}.layouts.txt", layouts)

    def region(nested: Graph) -> Program:
        return lower_to_program(
            nested, targets, options, trace=trace, clock=clock, apart=apart, likely=likely
        )

    with clock.stage("plan"):
        planning = PlanOptions(
            reuse=options.reuse,
            aligned_inputs=aligned,
            donated_inputs=donated,
            pools=options.pools,
            marked_results=marked_results,
        )
        program = plan(scheduled, planning, region=region)
    _checked(program, verify_program, options, clock)
    if trace.wanted:
        trace.write(f"{graph.name}.program.txt", format_program(program))
    return program


def emit_kernels(
    program: Program,
    targets: Targets,
    options: CompileOptions,
    *,
    trace: Trace,
    likely: tuple[tuple[str, int], ...] = (),
) -> dict[str, KernelSource]:
    """Source text for every kernel of `program`, by name; each for the device its buffers are on. `likely` are
    values of size symbols, by which generators propose versions.
    """
    devices, sizes = _kernel_devices(program), likely_arguments(program, likely)
    sources: dict[str, KernelSource] = {}
    for kernel in all_kernels(program):
        target = targets.of(devices[kernel.name])
        source = _emit(kernel, target, options, sizes.get(kernel.name, ()))
        sources[kernel.name] = source
        suffix = "cpp" if source.language == "cpp" else "py"
        trace.write(f"kernels/{kernel.name}.{suffix}", source.text)
        if trace.wanted:
            trace.write(f"kernels/{kernel.name}.kernel.txt", format_kernel(kernel))
    return sources


def describe_kernels(
    program: Program,
    targets: Targets,
    options: CompileOptions,
    likely: tuple[tuple[str, int], ...] = (),
) -> dict[str, str]:
    """How every kernel of `program` runs, as text, by name; those are left out whose generator does not say."""
    devices, sizes = _kernel_devices(program), likely_arguments(program, likely)
    told: dict[str, str] = {}
    for kernel in all_kernels(program):
        target = targets.of(devices[kernel.name])
        codegen = codegen_for(target, options)
        if isinstance(codegen, Describing):
            settings = _kernel_options(codegen, target, options, sizes.get(kernel.name, ()))
            told[kernel.name] = codegen.describe(kernel, target, settings)
    return told


def _emit(
    kernel: Kernel, target: Target, options: CompileOptions, likely: tuple[int, ...] = ()
) -> KernelSource:
    """The kernel's source; an error that does not say whose fault it is names the kernel's operators."""
    codegen = codegen_for(target, options)
    try:
        return codegen.emit(kernel, target, _kernel_options(codegen, target, options, likely))
    except CoilworkIRError as error:
        if options.mappings and error.code.startswith("mapping"):
            # the user's, who is to hear of it
            raise OptionError(
                error.code, error.what, reason=error.reason or error.node, remedy=error.remedy
            ) from error
        if error.origins:
            raise
        raise EmitError(
            error.code, error.what, node=f"kernel @{kernel.name}", origins=kernel.origins
        ) from error
    # A fault of the generator's is as much about these calls, which the graph can do without kernels for.
    except Exception as error:
        raise EmitError(
            "codegen-failed",
            f"no kernel can be generated: {type(error).__name__}: {error}",
            node=f"kernel @{kernel.name}",
            origins=kernel.origins,
        ) from error


def _kernel_options(
    codegen: Codegen, target: Target, options: CompileOptions, likely: tuple[int, ...]
) -> dict[str, object]:
    """The settings of `codegen` for a kernel whose sizes are `likely` such: generators of other packages need
    not know one that nobody asks for.
    """
    asked: dict[str, object] = {"batch_invariant": True} if options.batch_invariant else {}
    if options.mappings:
        asked["mappings"] = options.mappings
    if likely and codegen.capabilities(target).versions_by_size:
        asked["likely"] = likely
    return asked


def _kernel_devices(program: Program) -> dict[str, str]:
    """Kernel name -> device of the buffers it is launched on; the CPU for a kernel without any, which checks sizes."""
    devices: dict[str, str] = {}
    for part in walk(program):
        known = buffers(part)
        for instruction in part.instructions:
            if isinstance(instruction, Launch):
                device = known[instruction.args[0]].device if instruction.args else "cpu"
                devices.setdefault(instruction.kernel, device)
    return devices


def lowering_options(options: CompileOptions, fallback: tuple[str, ...]) -> LoweringOptions:
    """The settings of lowering. `fallback` are operators to leave to ATen."""
    return LoweringOptions(
        fallback=fallback,
        numerics=options.numerics,
        accumulation=options.accumulation,
        random=options.random,
        sorting=options.sorting,
        sorts_in_memory=not options.triton_on_cpu,
        decompose_sdpa=options.batch_invariant,
        sum_products=options.batch_invariant,
        updates_in_place=options.reuse,
    )


def _schedule_options(
    options: CompileOptions,
    aligned_inputs: tuple[str, ...],
    donated_inputs: tuple[str, ...],
    size_hints: tuple[tuple[str, int], ...],
) -> ScheduleOptions:
    return ScheduleOptions(
        numerics=options.numerics,
        inline=options.fusion,
        fuse=options.fusion,
        combine=options.fusion and options.combine,
        contractions=options.contractions,
        convolution_layouts=options.conv_layout != "captured",
        batch_invariant=options.batch_invariant,
        aligned_inputs=aligned_inputs,
        donated_inputs=donated_inputs,
        size_hints=size_hints,
    )


def _checked(value: _T, verify: Callable[[_T], None], options: CompileOptions, clock: StageClock) -> None:
    if options.verify:
        with clock.stage("verify"):
            verify(value)
