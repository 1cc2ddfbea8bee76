"""Schedules on streams: whatever runs first, memory is handed on only when nothing uses it."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest
import torch
from declared import schedule
from graph_builder import Builder
from test_memory_properties import Programs, inputs

from coilwork_ir.buffers import Ref
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.nodes import Step
from coilwork_ir.kernels.text import format_schedule, parse_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.program import Return
from coilwork_ir.program.interpreter import Hooks, interpret_program
from coilwork_ir.program.nodes import Alloc, Launch, PoolView, Reinterpret, Reuse
from coilwork_ir.program.verify import verify_program
from coilwork_ir.streams import ForkStream, JoinStream, RecordEvent, WaitEvent
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.memory import PlanOptions, plan
from coilwork_scheduler.memory.liveness import analyse_liveness, list_step_definitions, list_step_uses

GPU = "cuda:0"
STREAMS = ("s", "t")


def on_streams(made: Schedule, rng: Random) -> Schedule:
    """`made` with its kernels on random streams, and waits for what touched the same memory; beside them few
    others.

    The waits order values. Where memory goes is the planner's business.
    """
    roles = {kernel.name: tuple(arg.role for arg in kernel.args) for kernel in made.kernels}
    table = analyse_liveness(made)
    last: dict[int, set[str]] = {}
    steps: list[Step] = [ForkStream(stream=stream, device=GPU) for stream in STREAMS]
    events = 0

    def wait(stream: str, others: set[str]) -> None:
        nonlocal events
        for other in sorted(others - {stream}):
            events += 1
            steps.append(RecordEvent(event=f"e{events}", device=GPU, stream=other))
            steps.append(WaitEvent(event=f"e{events}", stream=stream))

    for step in made.steps:
        stream = rng.choice(("", *STREAMS)) if isinstance(step, KernelCall) else ""
        pieces = {
            table.positions[name] for name in (*list_step_uses(step), *list_step_definitions(step, roles))
        }
        wait(stream, {other for piece in pieces for other in last.get(piece, ())})
        if rng.random() < 0.3:
            wait(rng.choice(("", *STREAMS)), {rng.choice(("", *STREAMS))})
        steps.append(replace(step, stream=stream) if isinstance(step, KernelCall) else step)
        for piece in pieces:
            last.setdefault(piece, set()).add(stream)
    steps += [JoinStream(stream=stream) for stream in STREAMS]
    return replace(made, steps=tuple(steps))


def on_gpu(graph: Graph) -> Graph:
    """`graph` with all of its buffers on a GPU."""
    return parse_graph(re.sub(r"(%\w+: f64\[[^\]]*\](\{[^}]*\})?)", rf"\1 @{GPU}", format_graph(graph)))


@pytest.mark.parametrize("pools", [False, True])
def test_memory_of_streams_is_handed_on_when_nothing_uses_it(build: Builder, pools: bool) -> None:
    counts = {Reuse: 0, Reinterpret: 0, PoolView: 0, Launch: 0}
    for seed in range(40):
        graph = on_gpu(Programs(type(build)(), seed).graph(6 + seed % 20))
        options = ScheduleOptions(inline=False, fuse=seed % 3 == 0)
        made = on_streams(schedule(graph, get_target("sm_90"), options), Random(seed))
        verify_schedule(made)
        assert parse_schedule(format_schedule(made)) == made
        program = plan(made, PlanOptions(pools=pools))
        verify_program(program)
        for kind in counts:
            counts[kind] += sum(isinstance(i, kind) for i in program.instructions)
        expected_inputs = inputs()
        expected = interpret_graph(graph, expected_inputs)
        for turn in range(3):
            given = inputs()
            found = interpret_program(program, given, hooks=Hooks(turns=Random(f"{seed} {turn}")))
            for got, wanted in zip((*found, *given), (*expected, *expected_inputs), strict=True):
                torch.testing.assert_close(got, wanted)
    assert counts[Launch] > 150 and counts[Reuse] > 10
    assert counts[PoolView] > 30 or not pools


TWO = """
graph @g {
  input %x: f32[64, 64] @cuda:0
  %a: f32[64, 64] @cuda:0 = pointwise [i0: 64, i1: 64] {
    t0 = load %x[i0, i1] : f32
    t1 = cos(t0)
    yield t1
  }
  extern "aten.mm.default" (%a, %a) aten defines (%b: f32[64, 64] @cuda:0) out "aten.mm.out" ("out")
  %c: f32[64, 64] @cuda:0 = pointwise [i0: 64, i1: 64] {
    t0 = load %b[i0, i1] : f32
    t1 = sin(t0)
    yield t1
  }
  return (%c)
}
"""


def test_memory_is_allocated_before_the_event_that_its_stream_is_behind(build: Builder) -> None:
    made = schedule(parse_graph(TWO), get_target("sm_90"), ScheduleOptions())
    first, product, last = made.steps
    assert isinstance(first, KernelCall) and isinstance(last, KernelCall)
    steps = (
        ForkStream(stream="s", device="cuda:0"),
        replace(first, stream="s"),
        RecordEvent(event="done", device="cuda:0", stream="s"),
        WaitEvent(event="done"),
        product,
        RecordEvent(event="made", device="cuda:0"),
        WaitEvent(event="made", stream="s"),
        replace(last, stream="s"),
        JoinStream(stream="s"),
    )
    program = plan(replace(made, steps=steps), PlanOptions())
    verify_program(program)
    kinds = [
        (type(i).__name__, i.buffer.name if isinstance(i, Alloc | Reuse) else None)
        for i in program.instructions
        if isinstance(i, Alloc | Reuse | ForkStream | RecordEvent | WaitEvent)
    ]
    end = program.instructions[-1]
    assert isinstance(end, Return)
    returned = end.values[0]
    assert isinstance(returned, Ref)
    names = [name for _, name in kinds if name]
    assert [kind for kind, _ in kinds][:2] == ["Alloc", "ForkStream"]
    # the last result has the memory of the first, which the product was the last to read
    assert kinds[-3:] == [("Reuse", returned.name), ("RecordEvent", None), ("WaitEvent", None)]
    assert len(names) == 3
