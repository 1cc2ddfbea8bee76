"""From a compiled program to the callable that drives its kernels: what the wrapper of the options makes of
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coilwork.errors import warn_of_driver
from coilwork.job import Job
from coilwork.package_options import executor_options
from coilwork.stages import Compiled
from coilwork.targets import devices_of
from coilwork.wrappers import WRAPPERS
from coilwork_cache import Store
from coilwork_ir.errors import EmitError
from coilwork_ir.program.walk import all_kernels
from coilwork_ir.wrapper import Artifact, Launcher, Wrapper
from coilwork_runtime import Builder, KernelBuildError, MissingCompilerError, generated, guard_call
from coilwork_runtime.executor.choice import Driven, Loadable
from coilwork_runtime.loader import load_kernels
from coilwork_runtime.tensor_kinds import Call
from coilwork_wrapper.module_wrapper import PYTHON, ModuleOptions, ModuleWrapper


def make_call(compiled: Compiled, job: Job, builder: Builder, store: Store) -> Driven:
    """Build the kernels and return what calls them, by the boxed convention: one list of inputs, which is
    emptied.

    `store` keeps what a wrapper builds. A program that another wrapper than ours cannot drive is driven by
    Python, with a warning.

    Raises:
        KernelBuildError: a kernel does not build.
        EmitError: the wrapper refuses this program, and `strict` is on.
    """
    wrapper = WRAPPERS.find(job.options.wrapper)
    kernels = _Kernels(compiled=compiled, builder=builder)
    options = ModuleOptions(
        target=compiled.target,
        constants=compiled.constants,
        build=kernels.build,
        runtime=generated,
        write=job.trace.write,
        store=store,
        workers=job.options.workers,
        graph=_loadable(compiled, job),
        builder=builder,
        settings=executor_options(job.options),
        executors=store,
        warn=warn_of_driver,
    )
    if not isinstance(wrapper, ModuleWrapper):
        artifact = _try_wrapper(wrapper, options, kernels, compiled, job)
        if artifact is not None:
            call = guard_call(artifact, job.operators(compiled.saved_strides), job.kinds())
            return Driven(call=call, executor=wrapper.name, python_calls={})
        wrapper = PYTHON
    return wrapper.emit(compiled.program, compiled.sources, options).driven


@dataclass(slots=True, kw_only=True)
class _Kernels:
    """The kernels of a program, built when a wrapper asks; `fault` is what a failed build raised."""

    compiled: Compiled
    builder: Builder
    fault: Exception | None = field(init=False, default=None)

    def build(self) -> Mapping[str, Launcher]:
        try:
            launchers = self.builder.build(load_kernels(self.compiled.kernels))
        except Exception as error:
            self.fault = error
            raise
        return {name: launcher.call for name, launcher in launchers.items()}


def _try_wrapper(
    wrapper: Wrapper, options: ModuleOptions, kernels: _Kernels, compiled: Compiled, job: Job
) -> Artifact | None:
    """What `wrapper` makes of the program; without `strict`, None with a warning where it cannot."""
    try:
        refused = wrapper.refuses(compiled.program)
        if refused:
            raise EmitError("wrapper-refuses", f"program @{compiled.program.name}: {refused}")
        return wrapper.emit(compiled.program, compiled.sources, options)
    # Python drives every program: a fault of another driver costs no call. One of a kernel is not the
    # driver's.
    except Exception as error:
        names = {kernel.name for kernel in all_kernels(compiled.program)}
        of_kernel = error is kernels.fault or (isinstance(error, KernelBuildError) and error.kernel in names)
        if job.options.strict or of_kernel or isinstance(error, MissingCompilerError):
            raise
        warn_of_driver(job.graph_id, f"wrapper={wrapper.name!r}", error)
        return None


def _loadable(compiled: Compiled, job: Job) -> Loadable:
    return Loadable(
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


def boxed(graph: torch.fx.GraphModule) -> Call:
    """`graph`, called with one list of inputs, which is emptied."""

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        results: Sequence[Any] = graph(*values)
        return results

    return call
