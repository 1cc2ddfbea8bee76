"""The callable that drives a program, by the wrapper that is asked for.

Python drives every program. So a program that another wrapper cannot drive costs a warning and no call,
unless the fault is one of a kernel, which no driver helps. Needs `coilwork-wrapper[runtime]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import all_kernels
from coilwork_ir.wrapper import Artifact, Launcher, Wrapper
from coilwork_runtime import KernelBuildError, MissingCompilerError, guard_call
from coilwork_runtime.executor.choice import Driven
from coilwork_runtime.module_loader import load_kernels
from coilwork_runtime.tensor_kinds import refuse_operators
from coilwork_wrapper.module_wrapper import PYTHON, ModuleOptions, ModuleWrapper


def drive_program(
    wrapper: Wrapper, program: Program, sources: Mapping[str, KernelSource], options: ModuleOptions
) -> Driven:
    """Build the kernels of `program`, and return what calls them by the boxed convention: one list of inputs,
    which is emptied.

    Raises:
        KernelBuildError: a kernel does not build.
        EmitError: the wrapper refuses this program, and `options.settings.strict` is on.
    """
    kernels = _Kernels(options)
    options = replace(options, build=kernels.build)
    if not isinstance(wrapper, ModuleWrapper):
        artifact = _try_wrapper(wrapper, program, sources, options, kernels)
        if artifact is not None:
            graph = options.graph
            call = guard_call(artifact, graph.operators or refuse_operators, graph.kinds)
            return Driven(call=call, executor=wrapper.name, python_calls={})
        wrapper = PYTHON
    return wrapper.emit(program, sources, options).driven


@dataclass(slots=True)
class _Kernels:
    """The kernels of a program, built when a wrapper asks; `fault` is what a failed build raised."""

    options: ModuleOptions
    fault: Exception | None = field(init=False, default=None)

    def build(self) -> Mapping[str, Launcher]:
        try:
            launchers = self.options.builder.build(load_kernels(self.options.graph.kernels))
        except Exception as error:
            self.fault = error
            raise
        return {name: launcher.call for name, launcher in launchers.items()}


def _try_wrapper(
    wrapper: Wrapper,
    program: Program,
    sources: Mapping[str, KernelSource],
    options: ModuleOptions,
    kernels: _Kernels,
) -> Artifact | None:
    """Return what `wrapper` makes of the program; without `strict`, None with a warning where it cannot."""
    try:
        refused = wrapper.refuses(program)
        if refused:
            raise EmitError("wrapper-refuses", f"program @{program.name}: {refused}")
        return wrapper.emit(program, sources, options)
    # A fault of another driver than Python costs no call. One of a kernel is not the driver's.
    except Exception as error:
        names = {kernel.name for kernel in all_kernels(program)}
        of_kernel = error is kernels.fault or (isinstance(error, KernelBuildError) and error.kernel in names)
        if options.settings.strict or of_kernel or isinstance(error, MissingCompilerError):
            raise
        options.warn(options.graph.name, f"wrapper={wrapper.name!r}", error)
        return None
