"""A backend that compiles a graph once and runs it at the level that it is told: an interpreter of an IR, or
generated code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from coilwork.backend import GraphStages
from coilwork.compile_graph import make_call
from coilwork.compile_options import CompileOptions
from coilwork.job import Job, open_job
from coilwork.registries import find_codegen
from coilwork.stages import Compiled, run_stages
from coilwork_cache import Store
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.capture.input_storages import compile_with_storages, find_misplaced_writes
from coilwork_frontend.capture.operator_fixes import broadcast_masked_select, read_tensor_indices
from coilwork_frontend.capture.unbacked_sizes import (
    SqueezeAssertions,
    copy_for_squeezed_sizes,
    guard_squeezed_sizes,
)
from coilwork_frontend.torch_compat.aot_autograd import compile_with_aot_autograd
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.target import TARGETS, Targets
from coilwork_lowering import LoweringOptions, decompositions, partition
from coilwork_runtime import Builder
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_tools.explain.report import StageClock
from integration_tests.all_levels import DRIVERS

Call = Callable[[list[Any]], Sequence[Any]]
# In the order of compilation: the first that is wrong names the stage. The last are as for an accelerator,
# though the tensors lie on the CPU: scheduled for one that is so small that small tensors are much to it, and
# compiled for a real one.
INTERPRETED = ("graph", "schedule", "program", "accelerator's schedule", "accelerator's program")
SMALL_ACCELERATOR = replace(TARGETS["sm_90"], multiprocessors=2, launch_us=1e-6, bandwidth_gb_s=1.0)
GENERATED = tuple(name for name, _, _ in DRIVERS)


@dataclass(slots=True, kw_only=True)
class Levels:
    """Use as a backend of `torch.compile`; every call runs at `level`.

    Attributes:
        options: settings of the compiler.
        store: keeps built kernels.
        drivers_store: keeps what runs them: the native executor and C++ wrappers.
        wrappers: which of `GENERATED` are built.
        level: where the next call runs.
        graphs: how many were compiled.
        refused: what C++ could not drive.
    """

    options: CompileOptions
    store: Store
    drivers_store: Store
    wrappers: tuple[str, ...] = ("python",)
    level: str = "python"
    graphs: int = 0
    refused: list[str] = field(default_factory=list)

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        # as `coilwork.backend` does; what it leaves to eager is right at every level
        squeezing, assertions = copy_for_squeezed_sizes(gm), SqueezeAssertions()
        read_tensor_indices(gm)
        broadcast_masked_select(gm)
        if find_misplaced_writes(gm)[1] is not None:
            return gm.forward
        GraphStages(self.options).rewrite(gm, example_inputs)
        compiler = partial(
            compile_with_aot_autograd,
            forward=assertions.watch_compiler(partial(self._compile, role="forward")),
            backward=partial(self._compile, role="backward"),
            inference=assertions.watch_compiler(partial(self._compile, role="inference")),
            decompositions=decompositions(LoweringOptions(numerics=self.options.numerics)),
            partition=partition,
        )
        return guard_squeezed_sizes(
            compile_with_storages(gm, example_inputs, compiler), squeezing, assertions
        )

    def _compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role) -> Call:
        job = open_job(gm, example_inputs, role=role, options=self.options)
        compiled = _emitted(job)
        constants = compiled.written.constants
        scheduling = ScheduleOptions(
            numerics=self.options.numerics,
            inline=self.options.fusion,
            fuse=self.options.fusion,
            combine=self.options.fusion,
        )
        scheduled = schedule(
            compiled.graph,
            declare_capabilities(Targets(main=TARGETS[compiled.target]), find_codegen),
            scheduling,
        )
        calls: dict[str, Call] = {
            "graph": lambda args: interpret_graph(compiled.graph, args, constants),
            "schedule": lambda args: interpret_schedule(scheduled, args, constants),
            "program": lambda args: interpret_program(compiled.program, args, constants),
        }
        builder = Builder(self.store, workers=1)
        for name, wrapper, executor in DRIVERS:
            if name not in self.wrappers:
                continue
            options = replace(self.options, wrapper=wrapper, executor=executor)
            driven = replace(job, options=options, clock=StageClock())
            try:
                calls[name] = make_call(compiled, driven, builder, self.drivers_store).call
            except EmitError as error:
                if wrapper != "cpp":
                    raise
                self.refused.append(error.what)
        calls = {name: job.finish_program(call) for name, call in calls.items()}
        calls |= self._for_an_accelerator(gm, example_inputs, role, scheduling)
        self.graphs += 1

        def call(args: list[Any]) -> Sequence[Any]:
            # What C++ cannot drive runs by Python.
            return (calls.get(self.level) or calls["python"])(args)

        call._boxed_call = True
        return call

    def _for_an_accelerator(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], role: Role, scheduling: ScheduleOptions
    ) -> dict[str, Call]:
        options = replace(self.options, triton_on_cpu=True)
        job = open_job(gm, example_inputs, role=role, options=options)
        compiled = _emitted(job)
        scheduled = schedule(
            compiled.graph, declare_capabilities(Targets(main=SMALL_ACCELERATOR), find_codegen), scheduling
        )
        calls: dict[str, Call] = {
            "accelerator's schedule": lambda args: interpret_schedule(
                scheduled, args, compiled.written.constants
            ),
            "accelerator's program": lambda args: interpret_program(
                compiled.program, args, compiled.written.constants
            ),
        }
        return {name: job.finish_program(call) for name, call in calls.items()}


def _emitted(job: Job) -> Compiled:
    """What the stages make of the job. What has no atomics is left to ATen: lowering sees to that by the
    tensors' device.
    """
    fallback: tuple[str, ...] = ()
    while True:
        try:
            return run_stages(job, fallback=fallback)
        except EmitError as error:
            fresh = {origin.op for origin in error.origins} - {*fallback}
            if error.code != "atomic" or not fresh:
                raise
            fallback = (*fallback, *sorted(fresh))
