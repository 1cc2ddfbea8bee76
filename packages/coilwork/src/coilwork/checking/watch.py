"""Which of the checks an option asks for, put around or in the place of a compiled call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coilwork.checking.divergence import with_check
from coilwork.checking.stepping import Stepper, stepper
from coilwork.checking.values import (
    Wanted,
    with_eager_results_checked,
    with_kernels_checked,
    with_results_checked,
)
from coilwork.executors import Call
from coilwork.job import Job
from coilwork.options import CompileOptions
from coilwork.stages import Compiled
from coilwork_runtime import Builder
from coilwork_runtime.loader import load_kernels


def watches(options: CompileOptions) -> bool:
    """Whether calls are looked at, for which the program is needed besides the module."""
    return options.check or options.check_nan != "off" or options.check_inf != "off"


def watched(
    call: Call, compiled: Compiled, job: Job, builder: Builder, finish: Callable[[Call], Call]
) -> Call:
    """`finish(call)` with the checks that the job's options ask for. `finish` adds what a program leaves to its caller.

    Raises:
        KernelBuildError: a kernel does not build.
    """
    if not watches(job.options):
        return finish(call)
    stepped = _stepper(compiled, job, builder)
    step_by_step = _wanted(job.options, "kernels")
    if step_by_step:
        call = with_kernels_checked(stepped, step_by_step, job.graph_id)
    call = finish(call)
    results = _wanted(job.options, "results")
    if results:
        call = with_results_checked(call, stepped, results, job.graph_id)
    if not job.options.check:
        return call
    return with_check(call, job.gm, stepped, job.graph_id, donated=job.donated)


def watched_in_eager(call: Callable[..., Any], options: CompileOptions, name: str) -> Callable[..., Any]:
    """`call`, which runs a graph in eager mode, with the check of its results that the options ask for."""
    wanted = Wanted(nan=options.check_nan != "off", inf=options.check_inf != "off")
    return with_eager_results_checked(call, wanted, name) if wanted else call


def _stepper(compiled: Compiled, job: Job, builder: Builder) -> Stepper:
    launchers = builder.build(load_kernels(compiled.kernels))
    return stepper(compiled.program, launchers, compiled.constants)


def _wanted(options: CompileOptions, where: str) -> Wanted:
    return Wanted(nan=options.check_nan == where, inf=options.check_inf == where)
