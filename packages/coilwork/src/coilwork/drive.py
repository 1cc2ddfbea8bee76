"""From a compiled program to the callable that drives its kernels: a Python module, an FX graph, or C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork.job import Job
from coilwork.stages import Compiled
from coilwork_runtime import Builder, load_python
from coilwork_runtime.loader import execute_module
from coilwork_wrapper import emit_fx

Call = Callable[[list[Any]], Sequence[Any]]


def make_call(compiled: Compiled, job: Job, builder: Builder) -> Call:
    """Build the kernels and return what calls them, by the boxed convention: one list of inputs, which is emptied.

    Raises:
        KernelBuildError: a kernel does not build.
    """
    match job.options.wrapper:
        case "fx":
            return _fx_call(compiled, job, builder)
        case _:
            return load_python(
                compiled.module, builder=builder, constants=compiled.constants, name=job.graph_id
            )


def _fx_call(compiled: Compiled, job: Job, builder: Builder) -> Call:
    launchers = builder.build(execute_module(compiled.module, job.graph_id).specs)
    graph = emit_fx(compiled.program, launchers, compiled.constants)
    job.trace.write("fx.py", graph.code)
    return boxed(graph)


def boxed(graph: torch.fx.GraphModule) -> Call:
    """`graph`, called with one list of inputs, which is emptied."""

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        results: Sequence[Any] = graph(*values)
        return results

    return call
