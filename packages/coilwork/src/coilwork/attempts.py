"""One graph as retries see it (`coilwork_tools.op_fallback`), and the callable of what was compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coilwork.job import Job
from coilwork.package_options import executor_options
from coilwork.registries import WRAPPERS
from coilwork.stages import Compiled, lowering_context, run_stages
from coilwork_cache import Store
from coilwork_frontend.capture.eager_fallback import warn_of_driver
from coilwork_ir.loc import Origin
from coilwork_ir.program.walk import all_kernels
from coilwork_lowering import LoweringError, MistracedError
from coilwork_lowering.prepare import list_calls
from coilwork_runtime import Builder, generated
from coilwork_runtime.executor.choice import Driven
from coilwork_tools.explain.trace import Trace
from coilwork_tools.op_fallback.faults import FaultKinds
from coilwork_tools.op_fallback.retries import Plan, SubjectFacts
from coilwork_wrapper.drive import drive_program
from coilwork_wrapper.module_wrapper import ModuleOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """The graph of `job`; `store` keeps what is built."""

    job: Job
    builder: Builder
    store: Store

    @property
    def facts(self) -> SubjectFacts:
        options = self.job.options
        return SubjectFacts(
            graph_id=self.job.graph_id,
            fallback=options.fallback,
            may_retry=not options.promises.only_compiled,
            is_refused=self.job.is_refused,
            # what is mistraced is not the user's program
            faults=FaultKinds(of_nodes=(LoweringError,), of_programs=(MistracedError,)),
        )

    def compile(self, plan: Plan) -> Compiled:
        return run_stages(self._planned(plan), fallback=plan.remedy.operators)

    def build(self, compiled: Compiled, plan: Plan) -> Driven:
        job = self._planned(plan)
        with job.clock.stage("build"):
            return make_call(compiled, job, self.builder, self.store)

    def list_calls(self, plan: Plan, *, views: bool) -> tuple[Origin, ...]:
        context = replace(lowering_context(self._planned(plan)), write=None)
        return list_calls(self.job.gm, context, views=views)

    def list_kernels(self, compiled: Compiled) -> Mapping[str, Sequence[Origin]]:
        return {kernel.name: kernel.origins for kernel in all_kernels(compiled.program)}

    def _planned(self, plan: Plan) -> Job:
        job, remedy = self.job, plan.remedy
        trace = job.trace if plan.is_traced else Trace(None)
        is_rewritten = job.is_rewritten and plan.is_rewritten
        return replace(
            job, left_to_aten=remedy.nodes, apart=remedy.apart, is_rewritten=is_rewritten, trace=trace
        )


def make_call(compiled: Compiled, job: Job, builder: Builder, store: Store) -> Driven:
    """Build the kernels and return what calls them, as `drive_program`; `store` keeps a wrapper's builds."""
    options = ModuleOptions(
        target=compiled.target,
        constants=compiled.written.constants,
        runtime=generated,
        write=job.trace.write,
        store=store,
        workers=job.options.workers,
        graph=job.complete(compiled.written, compiled.saved_strides),
        builder=builder,
        settings=executor_options(job.options),
        executors=store,
        warn=warn_of_driver,
    )
    return drive_program(WRAPPERS.find(job.options.wrapper), compiled.program, compiled.sources, options)
