"""One graph from AOTAutograd to a callable: through the graph cache, the stages, and the runtime's loader."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from coilwork import __version__
from coilwork.errors import CoilworkError, CoilworkFallbackWarning, CompileError
from coilwork.graph_cache import CachedGraph, Caches, open_caches
from coilwork.graph_key import UnkeyableGraphError, graph_key_text
from coilwork.options import CompileOptions
from coilwork.report import CompileReport
from coilwork.stages import Compiled, StageClock, run_stages
from coilwork.torch_compat import BoxedCallable
from coilwork.trace import Trace, open_trace
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.loc import Origin
from coilwork_lowering.errors import LoweringError
from coilwork_runtime import Builder, KernelBuildError, load_python

Role = Literal["forward", "backward", "inference"]

log = logging.getLogger("coilwork")

MOST_RETRIES = 3
"""How often a graph is lowered again with the operators that failed left to ATen."""


class CompiledGraph:
    """A compiled graph, called with one list of inputs, which it empties (AOTAutograd's boxed convention)."""

    _boxed_call = True

    def __init__(self, call: Callable[[list[Any]], Sequence[Any]], report: CompileReport) -> None:
        self._call = call
        self.report = report

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._call(args)


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role, options: CompileOptions
) -> BoxedCallable:
    """Compile `gm`; when that fails, warn and return it as an eager callable (or raise, with `strict`).

    Raises:
        CompileError: the graph cannot be compiled and `options.strict` is on.
    """
    graph_id = f"{role}_{_digest(gm, example_inputs, options)[:10]}"
    trace = open_trace(options.trace, graph_id)
    clock = StageClock()
    try:
        return _compile(
            gm, example_inputs, graph_id=graph_id, role=role, options=options, trace=trace, clock=clock
        )
    # Whatever a stage raises is the compiler's fault, not the user's: this is the one place where any failure
    # becomes a warning and the eager graph. Strict mode shows it instead.
    except Exception as error:
        if options.strict:
            if isinstance(error, CoilworkError):
                raise
            raise CompileError(
                "graph-failed", f"graph {graph_id} cannot be compiled", reason=str(error)
            ) from error
        report = CompileReport(graph_id=graph_id, role=role, seconds=clock.seconds, fallback=str(error))
        trace.write("report.json", report.to_json())
        log.debug("graph %s falls back to eager", graph_id, exc_info=True)
        warnings.warn(
            f"graph {graph_id} runs in eager mode: {type(error).__name__}: {error}\n"
            f'  try     options={{"strict": True}} for the traceback, COILWORK_TRACE=dir for every stage',
            CoilworkFallbackWarning,
            stacklevel=2,
        )
        return _eager(gm, report)


def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    graph_id: str,
    role: Role,
    options: CompileOptions,
    trace: Trace,
    clock: StageClock,
) -> BoxedCallable:
    caches = open_caches(options)
    with clock.stage("cache"):
        cached = _lookup(gm, example_inputs, options, caches)
    builder = Builder(store=caches.kernels, workers=options.workers)
    if cached.entry is not None:
        constants = {key: _attribute(gm, key) for key in cached.entry.constant_keys}
        with clock.stage("build"):
            call = load_python(cached.entry.module, builder=builder, constants=constants, name=graph_id)
        trace.write("module.py", cached.entry.module)
        report = replace(cached.entry.report, graph_id=graph_id, cache_hit=True, seconds=clock.seconds)
    else:
        compiled, call = _build_with_retries(gm, example_inputs, graph_id, options, builder, trace, clock)
        report = _report(graph_id, role, compiled, clock)
        if cached.key is not None:
            entry = CachedGraph(
                module=compiled.module, constant_keys=tuple(compiled.constants), report=report
            )
            caches.put_graph(cached.key, entry)
    trace.write("report.json", report.to_json())
    log.info("graph %s: %s", graph_id, report.to_json())
    return CompiledGraph(call, report)


def _build_with_retries(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    graph_id: str,
    options: CompileOptions,
    builder: Builder,
    trace: Trace,
    clock: StageClock,
) -> tuple[Compiled, Callable[[list[Any]], Sequence[Any]]]:
    """Compile and build; operators whose kernels cannot be generated or built go to ATen, and it is tried again."""
    fallback = options.fallback
    for attempt in range(MOST_RETRIES + 1):
        try:
            compiled = run_stages(
                gm,
                name=graph_id,
                options=options,
                fallback=fallback,
                example_strides=[_strides(value) for value in example_inputs],
                trace=trace,
                clock=clock,
            )
        except (CoilworkIRError, LoweringError) as error:
            culprits = _operators(error.origins)
            failure: Exception = error
        else:
            try:
                with clock.stage("build"):
                    call = load_python(
                        compiled.module, builder=builder, constants=compiled.constants, name=graph_id
                    )
                return compiled, call
            except KernelBuildError as error:
                origins = {kernel.name: kernel.origins for kernel in compiled.program.kernels}
                culprits = _operators(origins.get(error.kernel, ()))
                failure = error
        fresh = tuple(name for name in culprits if name not in fallback)
        if options.strict or not fresh or attempt == MOST_RETRIES:
            raise failure
        warnings.warn(
            f"{', '.join(fresh)} run as ATen's own kernels in graph {graph_id}: {failure}",
            CoilworkFallbackWarning,
            stacklevel=2,
        )
        fallback = (*fallback, *fresh)
    raise AssertionError("the last attempt returns or raises")


def _operators(origins: Sequence[Origin]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(origin.op for origin in origins if "." in origin.op))


class _Found:
    """A cache lookup: the key, unless the graph has none, and the entry, if there is one."""

    __slots__ = ("entry", "key")

    def __init__(self, key: str | None, entry: CachedGraph | None) -> None:
        self.key = key
        self.entry = entry


def _lookup(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, caches: Caches
) -> _Found:
    if not options.cache:
        return _Found(None, None)
    try:
        text = graph_key_text(gm, example_inputs)
    except UnkeyableGraphError as error:
        log.info("not cached: %s", error)
        return _Found(None, None)
    key = caches.graph_key(text, options, torch.__version__, __version__)
    return _Found(key, caches.get_graph(key))


def _digest(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> str:
    """A short name for the graph that is the same in every process."""
    try:
        text = graph_key_text(gm, example_inputs)
    except UnkeyableGraphError:
        text = gm.code
    return hashlib.sha256((options.key_text() + text).encode()).hexdigest()


def _report(graph_id: str, role: Role, compiled: Compiled, clock: StageClock) -> CompileReport:
    return CompileReport(
        graph_id=graph_id,
        role=role,
        kernels=compiled.launches,
        distinct_kernels=len(compiled.sources),
        extern_calls=compiled.extern_calls,
        seconds=clock.seconds,
        peak_bytes_predicted=compiled.peak_bytes,
    )


def _strides(value: object) -> tuple[int, ...] | None:
    """Strides of a static tensor input; `None` leaves what the captured graph says."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    strides = value.stride()
    return strides if all(type(s) is int for s in strides) else None


def _attribute(gm: torch.fx.GraphModule, path: str) -> torch.Tensor:
    value: object = gm
    for part in path.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise CompileError("constant-missing", f"the graph's attribute {path} is not a tensor")
    return value


def _eager(gm: torch.fx.GraphModule, report: CompileReport) -> CompiledGraph:
    forward = gm.forward

    def call(args: list[Any]) -> Sequence[Any]:
        values = list(args)
        args.clear()
        result: Sequence[Any] = forward(*values)
        return result

    return CompiledGraph(call, report)
