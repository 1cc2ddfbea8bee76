"""Processor seconds that a back end takes for a recorded graph, its compiler of C++ included."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._dynamo import lookup_backend
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor

from coilwork.caches import open_caches
from coilwork.compile_graph import GraphAttempt
from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork_runtime import Builder
from coilwork_tools.explain.report import StageClock
from coilwork_tools.op_fallback.retries import build_with_retries


def processor_seconds() -> float:
    """Return the seconds of this process and of those that it has waited for."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class ProcessorClock(StageClock):
    """Processor seconds by stage."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the body under `name`; times of one name add up."""
        start = processor_seconds()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + processor_seconds() - start


def time_coilwork(gm: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, float]:
    """Seconds by stage that Coilwork takes, from what AOTAutograd would hand it to a callable."""
    clock = ProcessorClock()
    options = CompileOptions(strict=True, cache=False)
    gc.disable()
    with clock.stage("open"):
        job = replace(open_job(gm, inputs, role="inference", options=options), clock=clock)
    store = open_caches(options)
    builder = Builder(store=store, workers=1)
    build_with_retries(GraphAttempt(job=job, builder=builder, store=store))
    gc.enable()
    return clock.seconds


def time_inductor(gm: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, float]:
    """The same of torch's own compiler."""
    compile_inner = _inductor()
    mode = next(value.fake_mode for value in inputs if isinstance(value, FakeTensor))
    clock = ProcessorClock()
    context = TracingContext(mode)
    with clock.stage("inductor"), tracing(context), mode, torch.no_grad():
        compile_inner(gm, inputs, is_inference=True)
    return clock.seconds


def _inductor() -> Callable[..., Any]:
    """Inductor's compiler of one ATen graph, which `torch.compile` reaches through AOTAutograd only."""
    gm = fx.symbolic_trace(torch.nn.Identity())
    lookup_backend("inductor")(gm, [torch.ones(1)])
    module: Any = sys.modules["torch._inductor.compile_fx"]
    compile_inner: Callable[..., Any] = module.compile_fx_inner
    return compile_inner


COMPILERS: dict[str, Callable[[fx.GraphModule, Sequence[Any]], dict[str, float]]] = {
    "coilwork": time_coilwork,
    "inductor": time_inductor,
}
