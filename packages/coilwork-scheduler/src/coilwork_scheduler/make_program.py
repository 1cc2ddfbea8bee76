"""Compile a graph of loops to a program, with nested graphs of control flow: `PROGRAM_STAGES`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from coilwork_ir.calling_convention import NOTHING_KNOWN, Boundary
from coilwork_ir.kernels.nodes import Schedule
from coilwork_ir.kernels.text import format_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.loops.text import format_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.text import format_program
from coilwork_ir.program.verify import verify_program
from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.registry import REGISTRY, Registry
from coilwork_scheduler.layouts.assign import explain_layouts
from coilwork_scheduler.memory import PlanOptions, plan
from coilwork_scheduler.optimization_remarks import explain
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.pipeline import schedule

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramContext:
    """Settings and hooks that the stages read.

    Attributes:
        targets: of the graph's devices.
        scheduling: settings of the scheduler.
        planning: settings of the memory planner.
        boundary: what the program's caller promises and takes; it stands for the fields of `scheduling` and
            `planning` that say the same of a graph alone.
        registry: what may compute products, convolutions and attention.
        verify: check every IR between the stages.
        stage: a context around each stage, by name, which may time it.
        write: gets the name and the text of each file that explains what was done, if anyone wants them.
    """

    targets: Targets
    scheduling: ScheduleOptions
    planning: PlanOptions
    boundary: Boundary = NOTHING_KNOWN
    registry: Registry = REGISTRY
    verify: bool = False
    stage: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    write: Callable[[str, str], None] | None = None

    def check(self, value: _T, verify: Callable[[_T], None]) -> None:
        """Have `value` verified, if that is asked for."""
        if self.verify:
            with self.stage("verify"):
                verify(value)

    def nest(self) -> ProgramContext:
        """Return the context of nested graphs, whose inputs nobody aligns or gives away."""
        return replace(self, boundary=self.boundary.nest())

    def schedule_options(self) -> ScheduleOptions:
        """Return the settings of the scheduler for these inputs."""
        boundary = self.boundary
        return replace(
            self.scheduling,
            aligned_inputs=boundary.aligned + boundary.updated,
            donated_inputs=boundary.donated,
            size_hints=boundary.likely,
        )

    def plan_options(self) -> PlanOptions:
        """Return the settings of the memory planner for these inputs and results."""
        boundary = self.boundary
        return replace(
            self.planning,
            aligned_inputs=boundary.aligned,
            donated_inputs=boundary.donated,
            marked_results=boundary.marked_results,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramDraft:
    """A graph of loops on its way to a program."""

    graph: Graph
    schedule: Schedule | None = None
    program: Program | None = None


def _schedule(draft: ProgramDraft, context: ProgramContext) -> ProgramDraft:
    graph, write, options = draft.graph, context.write, context.schedule_options()
    context.check(graph, verify_graph)
    if write is not None:
        write(f"{graph.name}.loops.txt", format_graph(graph))
    steps: list[tuple[str, Graph]] = []
    watch = None if write is None else lambda name, made: steps.append((name, made))
    with context.stage("schedule"):
        scheduled = schedule(graph, context.targets, options, observe=watch, registry=context.registry)
    context.check(scheduled, verify_schedule)
    if write is not None:
        write(f"{graph.name}.schedule.txt", format_schedule(scheduled))
        write(f"{graph.name}.decisions.txt", explain(scheduled.decisions))
        layouts = explain_layouts(steps, scheduled.decisions, targets=context.targets, options=options)
        write(f"{graph.name}.layouts.txt", layouts)
    return replace(draft, schedule=scheduled)


def _plan(draft: ProgramDraft, context: ProgramContext) -> ProgramDraft:
    assert draft.schedule is not None, "the graph is scheduled"
    with context.stage("plan"):
        options = context.plan_options()
        program = plan(draft.schedule, options, region=lambda graph: make_program(graph, context.nest()))
    context.check(program, verify_program)
    if context.write is not None:
        context.write(f"{draft.graph.name}.program.txt", format_program(program))
    return replace(draft, program=program)


PROGRAM_STAGES: Final[PassTable[ProgramDraft, ProgramContext]] = PassTable(
    passes=(
        Pass(name="schedule", run=_schedule, why="what shares a kernel keeps its values in registers"),
        Pass(name="plan", run=_plan, why="memory that nobody reads any more serves again"),
    ),
    order=(Before("schedule", "plan", "lifetimes follow the order of launches"),),
)


def make_program(graph: Graph, context: ProgramContext) -> Program:
    """Return the program that computes `graph`.

    Raises:
        ScheduleError: the graph holds what cannot be scheduled.
        VerifyError: a stage made something that is not well-formed.
    """
    program = PROGRAM_STAGES.run(ProgramDraft(graph=graph), context).program
    assert program is not None, "the last stage makes one"
    return program
