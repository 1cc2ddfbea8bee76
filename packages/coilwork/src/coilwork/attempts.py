"""One graph as retries see it (`coilwork_tools.op_fallback`): what compiles and builds it, and whose fault an
error is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork.drive import make_call
from coilwork.errors import CoilworkError
from coilwork.job import Job
from coilwork.stages import Compiled, lowering_context, run_stages
from coilwork_cache import Store
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.loc import Origin
from coilwork_ir.program.walk import all_kernels
from coilwork_lowering import LoweringError, MistracedError
from coilwork_lowering.prepare import list_calls
from coilwork_runtime import (
    Builder,
    DeviceError,
    ExecutorUnavailableError,
    KernelBuildError,
    MissingCompilerError,
    MissingTritonError,
    ScratchFolderError,
)
from coilwork_runtime.executor.choice import Driven
from coilwork_tools.explain.trace import Trace
from coilwork_tools.op_fallback.retries import Plan

# No choice of calls changes these: the program is not the user's, a setting is wrong, the machine lacks
# something.
_NOT_OF_CALLS: Final = (
    MistracedError,
    CoilworkError,
    DeviceError,
    ExecutorUnavailableError,
    MissingCompilerError,
    MissingTritonError,
    ScratchFolderError,
    MemoryError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """The graph of `job`; `store` keeps what is built."""

    job: Job
    builder: Builder
    store: Store

    @property
    def graph_id(self) -> str:
        return self.job.graph_id

    @property
    def fallback(self) -> tuple[str, ...]:
        return self.job.options.fallback

    @property
    def may_retry(self) -> bool:
        return not (self.job.options.strict or self.job.options.batch_invariant)

    def is_refused(self) -> bool:
        return self.job.is_refused()

    def compile(self, plan: Plan) -> Compiled:
        return run_stages(self._planned(plan), fallback=plan.remedy.operators)

    def build(self, compiled: Compiled, plan: Plan) -> Driven:
        job = self._planned(plan)
        with job.clock.stage("build"):
            return make_call(compiled, job, self.builder, self.store)

    def list_calls(self, plan: Plan, *, views: bool) -> tuple[Origin, ...]:
        context = replace(lowering_context(self._planned(plan), ()), write=None)
        return list_calls(self.job.gm, context, views=views)

    def is_of_calls(self, error: Exception) -> bool:
        return not isinstance(error, _NOT_OF_CALLS)

    def is_of_one_node(self, error: Exception) -> bool:
        return isinstance(error, LoweringError)

    def list_named(self, error: Exception, compiled: Compiled | None) -> Sequence[Origin]:
        origins: Sequence[Origin] = ()
        if isinstance(error, CoilworkIRError):
            origins = error.origins
        elif isinstance(error, KernelBuildError) and compiled is not None:
            kernels = {kernel.name: kernel.origins for kernel in all_kernels(compiled.program)}
            origins = kernels.get(error.kernel, ())
        return tuple(dict.fromkeys(origin for origin in origins if "." in origin.op))

    def _planned(self, plan: Plan) -> Job:
        trace = self.job.trace if plan.is_traced else Trace(None)
        remedy = plan.remedy
        is_rewritten = self.job.is_rewritten and plan.is_rewritten
        return replace(
            self.job, left_to_aten=remedy.nodes, apart=remedy.apart, is_rewritten=is_rewritten, trace=trace
        )
