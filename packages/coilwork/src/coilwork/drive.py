"""From a compiled program to the callable that drives its kernels: a Python module, an FX graph, or C++."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from coilwork.errors import CoilworkFallbackWarning
from coilwork.executors import Call, Driven, Loadable, load
from coilwork.job import Job
from coilwork.stages import Compiled
from coilwork.targets import devices_of
from coilwork_cache import Store
from coilwork_ir.errors import EmitError
from coilwork_runtime import Builder, generated, guarded
from coilwork_runtime.loader import execute_module
from coilwork_wrapper import emit_fx


def make_call(compiled: Compiled, job: Job, builder: Builder, store: Store) -> Driven:
    """Build the kernels and return what calls them, by the boxed convention: one list of inputs, which is emptied.

    `store` keeps what a C++ wrapper builds. A program that C++ cannot drive yet is driven by Python, with a warning.

    Raises:
        KernelBuildError: a kernel does not build.
        EmitError: C++ cannot drive this program, and `strict` is on.
    """
    match job.options.wrapper:
        case "fx":
            fx_call = guarded(_fx_call(compiled, job, builder), job.operators(), job.kinds())
            return Driven(call=fx_call, executor="fx", python_calls={})
        case "cpp":
            try:
                cpp_call = guarded(_cpp_call(compiled, job, store), job.operators(), job.kinds())
                return Driven(call=cpp_call, executor="cpp", python_calls={})
            except EmitError as error:
                if job.options.strict:
                    raise
                warnings.warn(
                    f"graph {job.graph_id} is driven by Python instead of C++: {error}",
                    CoilworkFallbackWarning,
                    stacklevel=2,
                )
        case "python":
            pass
    graph = Loadable(
        name=job.graph_id,
        module=compiled.module,
        program=compiled.native,
        refusal=compiled.refusal,
        constants=compiled.constants,
        devices=devices_of(job.gm),
        operators=job.operators(),
        kinds=job.kinds(),
    )
    return load(graph, options=job.options, builder=builder, store=store)


def _fx_call(compiled: Compiled, job: Job, builder: Builder) -> Call:
    launchers = builder.build(execute_module(compiled.module, job.graph_id).specs)
    graph = emit_fx(compiled.program, launchers, compiled.constants, runtime=generated)
    job.trace.write("fx.py", graph.code)
    return boxed(graph)


def _cpp_call(compiled: Compiled, job: Job, store: Store) -> Call:
    # few want it, and it is no small import
    from coilwork_cpp_wrapper import build_cpp, emit_cpp

    program = emit_cpp(compiled.program, compiled.sources)
    job.trace.write("program.cpp", program.text)
    return build_cpp(program, constants=compiled.constants, store=store, workers=job.options.workers)


def boxed(graph: torch.fx.GraphModule) -> Call:
    """`graph`, called with one list of inputs, which is emptied."""

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        results: Sequence[Any] = graph(*values)
        return results

    return call
