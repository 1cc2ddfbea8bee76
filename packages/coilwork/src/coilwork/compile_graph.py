"""One graph from AOTAutograd to a callable: through the graph cache, the stages, and the runtime's loader."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from coilwork.attempts import Attempted
from coilwork.backends.registry import backend_of_device, find_language
from coilwork.caches import graph_key, open_caches
from coilwork.compile_options import OPTIONS, CompileOptions
from coilwork.drive import boxed
from coilwork.errors import (
    CoilworkError,
    CoilworkFallbackWarning,
    CompileError,
    OptionError,
    describe,
    warn_of_driver,
)
from coilwork.job import Job, open_job
from coilwork.package_options import executor_options, search_of
from coilwork.stages import Compiled
from coilwork.targets import devices_of, targets_text
from coilwork_cache import Entry, GraphCache, GraphEntry, RemedyCache
from coilwork_frontend.calling_convention.convention import Role, Roles
from coilwork_frontend.calling_convention.negated_inputs import resolve_constant
from coilwork_frontend.calling_convention.saved_strides import Strides, report_chosen_strides
from coilwork_frontend.calling_convention.shared_results import SharedMemory
from coilwork_frontend.capture.refused_calls import RefusedCallError
from coilwork_frontend.torch_compat.autograd import BoxedCallable
from coilwork_lowering import AddedGuard, GuardWatch, LayoutOptions, MistracedError
from coilwork_lowering.rewrites import Fired, Prepared
from coilwork_runtime import (
    Builder,
    KernelBuildError,
    ProgramBytesError,
    bind_roles,
    warm_executor,
)
from coilwork_runtime.executor.choice import Driven, Loadable, load
from coilwork_runtime.loader import load_kernels
from coilwork_runtime.tensor_kinds import Call
from coilwork_tools.check_mode.watch import Watched, watch_call, watch_in_eager
from coilwork_tools.explain.added_guards import announced
from coilwork_tools.explain.progress import log_progress, log_search
from coilwork_tools.explain.report import CompileReport, read_report
from coilwork_tools.op_fallback.retries import build_with_retries

log = logging.getLogger("coilwork")


class CompiledGraph:
    """A compiled graph, called with one list of inputs, which it empties (AOTAutograd's boxed convention).

    `direct`, if there is one, takes the inputs one by one. `roles` are those around both that are not applied
    yet, if there are such.
    """

    _boxed_call = True

    def __init__(
        self,
        call: Call,
        report: CompileReport,
        direct: Callable[..., Sequence[Any]] | None = None,
        roles: Roles | None = None,
    ) -> None:
        self.call = call
        self.report = report
        self.direct = direct
        self.roles = roles

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self.call(args)


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
) -> BoxedCallable:
    """Compile `gm`; when that fails, warn and return it as an eager callable (or raise, with `strict`).

    `rewrites` have been done and `guards` added already; `layout` as in `open_job`. `shared` are
    the results that share memory, as captured. With `prepared`, `gm` is its main graph, and what is
    returned takes the inputs of the whole. `is_refused` tells if eager refuses the call that is compiled for.

    Raises:
        RefusedCallError: the graph cannot be compiled, and it does.
        CompileError: the graph cannot be compiled and `options.strict` is on.
        MistracedError: `gm` is not what the program does: what Dynamo captured has to run instead.
    """
    job = open_job(
        gm,
        example_inputs,
        role=role,
        options=options,
        rewrites=rewrites,
        layout=layout,
        reports_strides=role == "forward",
    )
    job = replace(job, is_refused=is_refused)
    try:
        compiled = _compile(job)
    except (MistracedError, RefusedCallError, OptionError):
        raise
    # Whatever a stage raises is the compiler's fault, not the user's: this is the one place where any failure
    # becomes a warning and the eager graph. Strict mode shows it instead, and so it is where eager would break a promise.
    except Exception as error:
        if is_refused():
            raise RefusedCallError(str(error)) from error
        if options.strict or options.batch_invariant:
            if isinstance(error, CoilworkError):
                raise
            raise CompileError(
                "graph-failed", f"graph {job.graph_id} cannot be compiled", reason=describe(error)
            ) from error
        compiled = _eager(job, error)
    report_chosen_strides(job.gm, _saved_strides(compiled.report))
    compiled = _with_roles(compiled, job.call_roles(shared, prepared))
    if guards:
        texts = [*announced(job.graph_id, guards), *filter(None, [compiled.report.guards])]
        report = replace(compiled.report, guards="\n".join(texts))
        compiled = CompiledGraph(compiled.call, report, compiled.direct)
    if prepared is not None:
        told = replace(compiled.report, prepared=len(prepared.values), prepared_bytes=prepared.size_bytes)
        compiled = CompiledGraph(compiled.call, told, compiled.direct)
    job.trace.write("report.json", compiled.report.to_json())
    log.info("graph %s: %s", job.graph_id, compiled.report.summary())
    return compiled


def _with_roles(compiled: CompiledGraph, outer: Roles) -> CompiledGraph:
    """`compiled` with `outer` around it, and with its own roles: all of them are interpreted at once."""
    roles = outer if compiled.roles is None else compiled.roles.wrap(outer)
    bound = bind_roles(compiled.call, str(roles.convention), roles.functions, direct=compiled.direct)
    return CompiledGraph(bound.call, compiled.report, bound.direct)


def _compile(job: Job) -> CompiledGraph:
    store = open_caches(job.options)
    graphs = GraphCache(store)
    builder = Builder(
        store=store,
        workers=job.options.workers,
        progress=partial(log_progress, job.graph_id),
        search=search_of(job.options, partial(log_search, job.graph_id)),
        find_language=find_language,
    )
    OPTIONS.warn_of_devices(job.options, job.graph_id, devices_of(job.gm))
    key = _cache_key(job, graphs)
    log.debug("graph %s: %s", job.graph_id, "not cached" if key is None else f"cache key {key}")
    if key is not None:
        restored = _restored(job, key, graphs, builder)
        if restored is not None:
            return restored
    for language in {name for device in devices_of(job.gm) for name in backend_of_device(device).languages}:
        builder.warm_up(language)
    if job.options.runs_natively:
        warm_executor(store)
    watch = GuardWatch(job.gm)
    attempted = Attempted(job=job, builder=builder, store=store)
    remedies = RemedyCache(store)
    remedy = Entry(remedies, None if key is None else remedies.key(key))
    built = build_with_retries(attempted, remedy)
    compiled, driven = built.compiled, built.driven
    guards = _guards(job, compiled, watch)
    roles = job.program_roles()
    report = _report(job, compiled, driven, guards)
    # a graph from the cache would repeat neither the guards nor the warnings
    if key is not None and not guards and not built.steps:
        entry = GraphEntry(
            module=compiled.module,
            kernels=compiled.kernels,
            program=compiled.native,
            refusal=compiled.refusal,
            roles=str(roles.convention),
            constant_keys=tuple(compiled.constants),
            report=asdict(report),
        )
        graphs.put(key, entry)
    if job.options.checks.has_any:
        return CompiledGraph(_watched(driven.call, compiled, job, builder), report)
    return CompiledGraph(driven.call, report, driven.direct, roles)


def _watched(call: Call, compiled: Compiled, job: Job, builder: Builder) -> Call:
    """`call`, finished, with the checks that the options ask for."""
    graph = Watched(
        name=job.graph_id,
        gm=job.gm,
        program=compiled.program,
        launchers=builder.build(load_kernels(compiled.kernels)),
        constants=compiled.constants,
        donated=job.convention.donated,
    )
    return watch_call(call, job.options.checks, graph, job.finish_program)


def _cache_key(job: Job, graphs: GraphCache) -> str | None:
    """The job's key in the graph cache; `None` if it is not cached whole."""
    # Only programs as bytes are restored; other wrappers find their kernels in the cache. Checks look at the
    # program as instructions, which is not cached.
    restorable = job.options.makes_module and not job.options.checks.has_any
    if job.key_text is None or not job.options.cache or not restorable:
        return None
    targets = targets_text(job.gm, job.options)
    return graph_key(graphs, job.key_text, targets, job.options)


def _restored(job: Job, key: str, graphs: GraphCache, builder: Builder) -> CompiledGraph | None:
    """The graph from the cache. An entry that does not load is dropped with a warning, and the graph compiled."""
    with job.clock.stage("cache"):
        entry = graphs.get(key)
    if entry is None:
        return None
    roles = job.program_roles()
    if entry.roles != str(roles.convention):
        graphs.drop(key, "its program was compiled for another calling convention")
        return None
    try:
        told = read_report(entry.report)
        constants = {name: resolve_constant(job.constant(name)) for name in entry.constant_keys}
        with job.clock.stage("build"):
            graph = Loadable(
                name=job.graph_id,
                module=entry.module,
                kernels=entry.kernels,
                program=entry.program,
                refusal=entry.refusal,
                constants=constants,
                devices=devices_of(job.gm),
                operators=job.operators(_saved_strides(told)),
                kinds=job.kinds(),
                is_stored=True,
            )
            driven = load(
                graph,
                options=executor_options(job.options),
                builder=builder,
                store=graphs.store,
                warn=warn_of_driver,
            )
    except (ProgramBytesError, KernelBuildError, KeyError, TypeError) as error:
        graphs.drop(key, f"its program does not load: {error}")
        return None
    job.trace.write("module.py", entry.module)
    job.trace.write_bytes("kernels.bin", entry.kernels)
    job.trace.write_bytes("program.bin", entry.program)
    report = replace(
        told,
        graph_id=job.graph_id,
        role=job.role,
        cache_hit=True,
        seconds=job.clock.seconds,
        **_executor_facts(driven),
    )
    return CompiledGraph(driven.call, report, driven.direct, roles)


def _guards(job: Job, compiled: Compiled, watch: GuardWatch) -> tuple[str, ...]:
    """Demands on sizes that compiling added, each with a warning in the log: the graph serves fewer sizes than was captured."""
    own = {(guard.condition, guard.where) for guard in compiled.guards}
    others = [guard for guard in watch.added() if (guard.condition, guard.where) not in own]
    return announced(job.graph_id, (*compiled.guards, *others))


def _executor_facts(driven: Driven) -> dict[str, Any]:
    return {
        "executor": driven.executor,
        "executor_reason": driven.reason,
        "python_calls": dict(driven.python_calls),
    }


def _report(job: Job, compiled: Compiled, driven: Driven, guards: tuple[str, ...]) -> CompileReport:
    return CompileReport(
        graph_id=job.graph_id,
        role=job.role,
        kernels=compiled.launches,
        distinct_kernels=len(compiled.sources),
        extern_calls=compiled.extern_calls,
        seconds=job.clock.seconds,
        mappings=compiled.mappings,
        saved_strides=[(position, list(strides)) for position, strides in compiled.saved_strides.items()],
        peak_bytes_predicted=compiled.peak_bytes,
        rewrites=[
            {**asdict(item), "sources": list(item.sources)} for item in (*job.rewrites, *compiled.rewrites)
        ],
        guards="\n".join(guards),
        **_executor_facts(driven),
    )


def _saved_strides(report: CompileReport) -> dict[int, Strides]:
    return {int(position): tuple(strides) for position, strides in report.saved_strides}


def _eager(job: Job, error: Exception) -> CompiledGraph:
    """The captured graph as it is, with a warning that says why."""
    log.debug("graph %s falls back to eager", job.graph_id, exc_info=True)
    warnings.warn(
        f"graph {job.graph_id} runs in eager mode: {describe(error)}\n"
        f'  try     options={{"strict": True}} for the traceback, COILWORK_TRACE=dir for every stage',
        CoilworkFallbackWarning,
        stacklevel=3,
    )
    report = CompileReport(
        graph_id=job.graph_id,
        role=job.role,
        seconds=job.clock.seconds,
        fallback=str(error) or type(error).__name__,
    )
    return CompiledGraph(
        watch_in_eager(
            job.as_captured(boxed(job.gm)),
            job.options.checks,
            f"graph {job.graph_id}",
        ),
        report,
    )
