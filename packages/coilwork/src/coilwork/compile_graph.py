"""Compile one ATen graph to a callable: through the graph cache, the stages, and the runtime's loader.

`GraphAttempt` is the graph as retries around faults (`coilwork_tools.op_fallback`) see it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import torch

from coilwork.caches import list_key_parts, open_caches
from coilwork.compile_options import OPTIONS, CompileOptions
from coilwork.errors import OptionError
from coilwork.job import DECIDED, Job, open_job
from coilwork.registries import WRAPPERS, find_device_backend, find_language
from coilwork.stage_settings import make_executor_options, make_search
from coilwork.stages import Compiled, make_lowering_context, run_stages
from coilwork.targets import describe_devices
from coilwork_cache import Entry, GraphCache, GraphEntry, RemedyCache, Store
from coilwork_frontend.calling_convention.activation_strides import report_chosen_strides
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.calling_convention.result_aliasing import SharedMemory
from coilwork_frontend.capture.eager_fallback import judge_fault, warn_of_driver
from coilwork_frontend.capture.eager_trial import RefusedCallError
from coilwork_frontend.capture.user_kernels import call_kernel_operators
from coilwork_frontend.source_lines import list_source_lines
from coilwork_ir.loc import Origin
from coilwork_ir.program.walk import list_kernels
from coilwork_lowering import AddedGuard, GuardWatch, LayoutOptions, LoweringError, MistracedError
from coilwork_lowering.guard_watch import list_guards
from coilwork_lowering.pipeline import list_calls
from coilwork_lowering.rewrites import Fired, Prepared
from coilwork_lowering.unsupported_calls import list_uncallable
from coilwork_runtime import (
    Builder,
    generated,
    warm_executor,
)
from coilwork_runtime.executor.choice import Driven, Loadable
from coilwork_runtime.module_loader import load_kernels
from coilwork_runtime.tensor_kinds import Call
from coilwork_runtime.triton_kernels.user_kernels import define_kernel
from coilwork_tools.check_mode.watch import Watched, watch_call
from coilwork_tools.explain.report import (
    CompiledGraph,
    CompileReport,
    StageClock,
    announce,
    open_clock,
    report_program,
)
from coilwork_tools.explain.trace_folder import Trace, log_search
from coilwork_tools.op_fallback.cut_graph import Cuts, compile_cut, cut_around, cut_at, run_in_eager
from coilwork_tools.op_fallback.faults import FaultKinds
from coilwork_tools.op_fallback.retries import Plan, SubjectFacts, build_with_retries
from coilwork_tools.stored_graphs import add_record, complete_loadable, load_graph, restore_graph
from coilwork_tools.stored_traces import StoredTraces, record_used
from coilwork_wrapper.module_wrapper import ModuleOptions, drive_program, load_stored, write_text

# ---- Attempts ----


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAttempt:
    """Attempts to compile the graph of `job`; `store` keeps the kernels that are built."""

    job: Job
    builder: Builder
    store: Store

    @property
    def facts(self) -> SubjectFacts:
        options = self.job.options
        return SubjectFacts(
            graph_id=self.job.graph_id,
            fallback=options.fallback,
            may_retry=not options.promises.must_compile,
            is_refused=self.job.is_refused,
            # a mistraced graph is not the user's program, so no operator is at fault
            faults=FaultKinds(of_nodes=(LoweringError,), of_programs=(MistracedError,)),
        )

    def compile(self, plan: Plan) -> Compiled:
        return run_stages(self._apply_plan(plan), fallback=plan.remedy.operators)

    def build(self, compiled: Compiled, plan: Plan) -> Driven:
        job = self._apply_plan(plan)
        with job.clock.stage("build"):
            return make_call(compiled, job, self.builder, self.store)

    def list_calls(self, plan: Plan, *, views: bool) -> tuple[Origin, ...]:
        context = replace(make_lowering_context(self._apply_plan(plan)), write=None)
        return list_calls(self.job.gm, context, views=views)

    def list_kernels(self, compiled: Compiled) -> Mapping[str, Sequence[Origin]]:
        return {kernel.name: kernel.origins for kernel in list_kernels(compiled.program)}

    def _apply_plan(self, plan: Plan) -> Job:
        job, remedy = self.job, plan.remedy
        trace = job.trace if plan.is_traced else Trace(None)
        is_rewritten = job.is_rewritten and plan.is_rewritten
        return replace(
            job, left_to_aten=remedy.nodes, apart=remedy.apart, is_rewritten=is_rewritten, trace=trace
        )


def make_call(compiled: Compiled, job: Job, builder: Builder, store: Store) -> Driven:
    """Build the kernels and return the call of the program; `store` keeps a wrapper's builds."""
    options = ModuleOptions(
        target=compiled.target,
        constants=compiled.written.constants,
        runtime=generated,
        write=job.trace.write,
        store=store,
        workers=job.options.workers,
        emitter=job.options.fx_emitter,
        graph=complete_loadable(compiled.written, job, job.graph_id, compiled.saved_strides),
        builder=builder,
        settings=make_executor_options(job.options),
        executors=store,
        warn=warn_of_driver,
    )
    return drive_program(WRAPPERS.find(job.options.wrapper), compiled.program, compiled.sources, options)


log = logging.getLogger("coilwork")


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    role: Role,
    options: CompileOptions,
    rewrites: tuple[Fired, ...] = (),
    guards: tuple[AddedGuard, ...] = (),
    layout: LayoutOptions | None = None,
    prepared: Prepared | None = None,
    shared: Sequence[SharedMemory] = (),
    is_refused: Callable[[], bool] = lambda: False,
) -> CompiledGraph:
    """Compile `gm`; when that fails, warn and return it as an eager callable (or raise, with `strict`).

    `rewrites` have been done and `guards` added already; `layout` is as in `open_job`. `shared` are the
    results that share memory, as captured. With `prepared`, `gm` is its main graph, and the returned call
    takes the inputs of the whole graph. `is_refused` tells if eager refuses the call that is compiled for.

    Raises:
        RefusedCallError: the graph cannot be compiled, and eager refuses the call.
        CompileError: the graph cannot be compiled and `options.strict` is on.
        MistracedError: `gm` is not what the program does: what Dynamo captured has to run instead.
    """
    call_kernel_operators(gm, define_kernel)
    job = open_job(
        gm,
        example_inputs,
        role=role,
        options=options,
        rewrites=rewrites,
        layout=layout,
        reports_strides=role == "forward",
        is_refused=is_refused,
    )
    uncallable = list_uncallable(job.gm)
    try:
        compiled = _compile_parts(job, cut_at(job.gm, uncallable)) if uncallable else _compile(job)
    except (MistracedError, RefusedCallError, OptionError):
        raise
    # Whatever a stage raises is the compiler's fault, not the user's. Here, and nowhere else, it becomes a
    # warning and the eager graph. It is raised in strict mode, and if eager would break batch invariance.
    except Exception as error:
        fault = judge_fault(
            error, job.graph_id, only_compiled=options.promises.must_compile, is_refused=is_refused
        )
        if fault is error:
            raise
        if fault is not None:
            raise fault from error
        cuts = cut_around(job.gm, job.graph_id, error)
        report = CompileReport(graph_id=job.graph_id, role=job.role, seconds=job.clock.seconds)
        checks = job.options.checks
        compiled = run_in_eager(job, report, error, checks) if cuts is None else _compile_parts(job, cuts)
    report_chosen_strides(job.gm, compiled.report.strides_by_position)
    outer = job.call_roles(shared, prepared)
    if prepared is not None:
        compiled = replace(compiled, refusal="a part of it is computed once per process")
    elif job.options.keeps_traces:
        targets = describe_devices(job.devices, job.options)
        compiled = add_record(job, job.graph_id, targets, compiled, outer, guards)
    compiled = compiled.apply_roles(outer)
    if guards:
        texts = [*announce(job.graph_id, guards), *filter(None, [compiled.report.guards])]
        compiled = compiled.change_report(guards="\n".join(texts))
    if prepared is not None:
        compiled = compiled.change_report(prepared=len(prepared.values), prepared_bytes=prepared.size_bytes)
    job.clock.finish(compiled.report, job.trace)
    record_used(open_caches(job.options))
    return compiled


def _compile(job: Job) -> CompiledGraph:
    store = open_caches(job.options)
    graphs = GraphCache(store)
    builder = _open_builder(store, job.options, job.graph_id, job.clock)
    OPTIONS.warn_of_devices(job.options, job.graph_id, job.devices)
    parts = None
    if job.key_text is not None and job.options.keeps_graphs:
        targets = describe_devices(job.devices, job.options)["key"]
        parts = list_key_parts(job.key_text, targets, job.options)
    key = None if parts is None else graphs.key(*parts.values())
    log.debug("graph %s: %s", job.graph_id, "not cached" if key is None else f"cache key {key}")
    if key is not None:
        restored = _restore(job, key, graphs, builder)
        if restored is not None:
            return restored
    for language in {name for device in job.devices for name in find_device_backend(device).languages}:
        builder.warm_up(language)
    if job.options.runs_natively:
        warm_executor(store)
    watch = GuardWatch(job.gm)
    attempted = GraphAttempt(job=job, builder=builder, store=store)
    remedies = RemedyCache(store)
    remedy = Entry(remedies, None if key is None else remedies.key(key))
    built = build_with_retries(attempted, remedy)
    compiled, driven = built.compiled, built.driven
    # with each guard the graph serves fewer sizes than was captured
    guards = announce(job.graph_id, list_guards(compiled.guards, watch))
    roles = job.program_roles()
    report = _report(job, compiled, driven, guards)
    # a graph from the cache would repeat neither guards nor warnings
    if key is not None and not guards and not built.steps:
        entry = GraphEntry(
            module=compiled.written.module,
            kernels=compiled.written.kernels,
            program=compiled.written.program,
            refusal=compiled.written.refusal,
            text=write_text(WRAPPERS.find(job.options.wrapper), compiled.program),
            roles=str(roles.convention),
            constant_keys=tuple(compiled.written.constants),
            report=asdict(report),
            lines=tuple(list_source_lines(job.gm)),
            key_parts=parts or {},
        )
        graphs.put(key, entry)
    else:
        key = None
    if job.options.checks.has_any:
        return CompiledGraph(_add_checks(driven.call, compiled, job, builder), report)
    return CompiledGraph(driven.call, report, driven.direct, roles, key=key)


def _open_builder(store: Store, options: CompileOptions, graph_id: str, clock: StageClock) -> Builder:
    return Builder(
        store=store,
        workers=options.workers,
        progress=clock.count_kernels,
        search=make_search(options, partial(log_search, graph_id)),
        find_language=find_language,
    )


def _add_checks(call: Call, compiled: Compiled, job: Job, builder: Builder) -> Call:
    """Return `call` with its roles and the checks that options ask for around it."""
    graph = Watched(
        name=job.graph_id,
        gm=job.gm,
        program=compiled.program,
        launchers=builder.build(load_kernels(compiled.written.kernels)),
        constants=compiled.written.constants,
        donated=job.convention.donated,
    )
    return watch_call(call, job.options.checks, graph, job.finish_program)


def _restore(job: Job, key: str, graphs: GraphCache, builder: Builder) -> CompiledGraph | None:
    """Return the graph from the cache, or None; an entry that does not load is dropped with a warning."""
    load = partial(_load, options=job.options, builder=builder, store=graphs.store)
    restored = restore_graph(job, job.graph_id, key, graphs, load, trace=job.trace, clock=job.clock)
    if restored is not None and job.trace.is_wanted:
        # the cache keeps no text of a stage
        run_stages(replace(job, clock=StageClock()), fallback=job.options.fallback)
    return restored


def _load(graph: Loadable, options: CompileOptions, builder: Builder, store: Store) -> Driven:
    settings = make_executor_options(options)
    wrapper, emitter = WRAPPERS.find(options.wrapper), options.fx_emitter
    load = partial(load_stored, wrapper, graph, options=settings, builder=builder, store=store)
    return load(warn=warn_of_driver, emitter=emitter)


def open_traces(
    options: CompileOptions, keys: list[str] | None = None, *, compiled_for: str = "key"
) -> StoredTraces:
    """Return the records of graphs that earlier processes traced so, or, with `keys`, one that only gets what
    is traced now. `compiled_for`, of `describe_devices`, has to be the same there and here."""
    store, own = open_caches(options), "" if keys is None else uuid4().hex

    def load_record(record: Mapping[str, Any], lines: Sequence[str]) -> CompiledGraph | None:
        if describe_devices(record["devices"], options)[compiled_for] != record["targets"][compiled_for]:
            return None
        OPTIONS.warn_of_devices(options, record["name"], record["devices"])
        clock = open_clock(record["name"], is_shown=options.progress)
        builder = _open_builder(store, options, record["name"], clock)
        load = partial(_load, options=options, builder=builder, store=store)
        return load_graph(record, lines, GraphCache(store), load, clock)

    return StoredTraces(
        store=store,
        list_parts=lambda text: list_key_parts(text + own, "", options).values(),
        load_graph=load_record,
        keys=[] if keys is None else keys,
    )


def _report(job: Job, compiled: Compiled, driven: Driven, guards: tuple[str, ...]) -> CompileReport:
    report = report_program(compiled.program, graph_id=job.graph_id, role=job.role).name_driver(driven)
    return replace(
        report,
        seconds=job.clock.seconds,
        mappings=compiled.mappings,
        saved_strides=[(position, list(strides)) for position, strides in compiled.saved_strides.items()],
        rewrites=[{**asdict(one), "sources": [*one.sources]} for one in (*job.rewrites, *compiled.rewrites)],
        guards="\n".join(guards),
    )


def _compile_parts(job: Job, cuts: Cuts) -> CompiledGraph:
    """Compile the parts of the captured graph between `cuts`."""
    layout = None if job.role == "inference" else DECIDED
    compile_part = partial(compile_graph, role="inference", options=job.options, layout=layout)
    whole = CompileReport(graph_id=job.graph_id, role=job.role, seconds=job.clock.seconds)
    return compile_cut(job, whole, cuts, compile_part)
