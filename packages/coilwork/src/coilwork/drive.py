"""From a compiled program to the callable that drives its kernels: a Python module, an FX graph, or C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from coilwork.errors import warn_of_driver
from coilwork.job import Job
from coilwork.package_options import executor_options
from coilwork.stages import Compiled
from coilwork.targets import devices_of
from coilwork_cache import Store
from coilwork_ir.program.walk import all_kernels
from coilwork_runtime import Builder, KernelBuildError, Launcher, MissingCompilerError, generated, guard_call
from coilwork_runtime.executor.choice import Driven, Loadable, load
from coilwork_runtime.loader import load_kernels
from coilwork_runtime.tensor_kinds import Call
from coilwork_wrapper import emit_fx


def make_call(compiled: Compiled, job: Job, builder: Builder, store: Store) -> Driven:
    """Build the kernels and return what calls them, by the boxed convention: one list of inputs, which is emptied.

    `store` keeps what a C++ wrapper builds. A program that FX or C++ cannot drive is driven by Python, with a
    warning.

    Raises:
        KernelBuildError: a kernel does not build.
        EmitError: FX or C++ cannot drive this program, and `strict` is on.
    """
    match job.options.wrapper:
        case "fx":
            launchers = builder.build(load_kernels(compiled.kernels))
            call = _try_driver(compiled, job, "FX", lambda: _fx_call(compiled, job, launchers))
            if call is not None:
                return Driven(call=call, executor="fx", python_calls={})
        case "cpp":
            call = _try_driver(compiled, job, "C++", lambda: _cpp_call(compiled, job, store))
            if call is not None:
                return Driven(call=call, executor="cpp", python_calls={})
        case "python":
            pass
    graph = Loadable(
        name=job.graph_id,
        module=compiled.module,
        kernels=compiled.kernels,
        program=compiled.native,
        refusal=compiled.refusal,
        constants=compiled.constants,
        devices=devices_of(job.gm),
        operators=job.operators(compiled.saved_strides),
        kinds=job.kinds(),
    )
    return load(
        graph, options=executor_options(job.options), builder=builder, store=store, warn=warn_of_driver
    )


def _try_driver(compiled: Compiled, job: Job, language: str, make: Callable[[], Call]) -> Call | None:
    """The driver that `make` makes; without `strict`, None with a warning where it cannot."""
    try:
        return guard_call(make(), job.operators(compiled.saved_strides), job.kinds())
    # Python drives every program: a fault of another driver costs no call. One of a kernel is not the
    # driver's.
    except Exception as error:
        kernels = {kernel.name for kernel in all_kernels(compiled.program)}
        of_kernel = isinstance(error, KernelBuildError) and error.kernel in kernels
        if job.options.strict or of_kernel or isinstance(error, MissingCompilerError):
            raise
        warn_of_driver(job.graph_id, language, error)
        return None


def _fx_call(compiled: Compiled, job: Job, launchers: Mapping[str, Launcher]) -> Call:
    calls = {name: launcher.call for name, launcher in launchers.items()}
    graph = emit_fx(compiled.program, calls, compiled.constants, runtime=generated)
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
