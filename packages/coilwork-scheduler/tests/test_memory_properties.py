"""Random programs: reuse never raises the peak, the prediction is what an allocator measures, results stay
right.
"""

from __future__ import annotations

from random import Random

import pytest
import torch
from allocator_simulation import measured_peak
from declared import schedule
from graph_builder import Builder
from known_values import number_of

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_expr, as_int
from coilwork_ir.loops import Graph, View
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import Alloc, Reinterpret, Reuse
from coilwork_ir.program.verify import verify_program
from coilwork_ir.scalar import op
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.memory import PlanOptions, plan

# 24, 24, 12 and 4 elements: some memory fits what comes next, some does not
SHAPES = ((4, 6), (24,), (2, 6), (4,))


class Programs:
    """Adds random steps to an empty graph: kernels, calls with and without `out`, views,
    overwritten memory.
    """

    def __init__(self, build: Builder, seed: int) -> None:
        self.build = build
        self.rng = Random(seed)
        self.live: list[str] = []
        self.root: dict[str, str] = {}
        for shape in SHAPES:
            name = f"x{len(self.live)}"
            build.input(name, *shape)
            self.add(name, name)

    def add(self, name: str, root: str) -> None:
        self.live.append(name)
        self.root[name] = root

    def shape(self, name: str) -> list[int]:
        return [number_of(e) for e in self.build.buffers[name].shape]

    def step(self, name: str) -> None:
        rng, build = self.rng, self.build
        # mostly what was made lately, so that memory dies
        source = rng.choice(self.live[-5:] if rng.random() < 0.8 else self.live)
        shape = self.shape(source)
        alike = [n for n in self.live if self.shape(n) == shape]
        other = rng.choice(alike)
        choice = rng.random()
        if choice < 0.5:
            build.pointwise(
                name, shape, lambda *at: op("tanh", op("sub", build.at(source, *at), build.at(other, *at)))
            )
        elif choice < 0.6:
            build.reduce(name, "sum", shape[:1], shape[1:], lambda *at: build.at(source, *at))
        elif choice < 0.75:
            build.extern(
                "aten.neg.default",
                [source],
                [build.buffer(name, *shape)],
                out_overload="aten.neg.out",
                out_names=("out",),
            )
        elif choice < 0.85:
            build.extern("aten.exp.default", [source], [build.buffer(name, *shape)], fresh=rng.random() < 0.5)
        elif choice < 0.93 and shape[0] > 1:
            layout = build.buffers[source].strides
            rest = (as_expr(shape[0] - 1), *build.buffers[source].shape[1:])
            view = Buffer(name=name, dtype=build.buffers[source].dtype, shape=rest, strides=layout)
            build.buffers[name] = view
            build.nodes.append(View(output=view, source=source, offset=layout[0]))
            self.add(name, self.root[source])
            return
        elif layout_is_plain(build.buffers[source]):
            root = self.root[source]
            build.pointwise(
                name, shape, lambda *at: op("add", build.at(source, *at), build.at(source, *at)), into=source
            )
            self.live = [n for n in self.live if self.root[n] != root]
            self.add(name, root)
            return
        else:
            return
        self.add(name, name)

    def graph(self, steps: int) -> Graph:
        for k in range(steps):
            self.step(f"b{k}")
        made = [n for n in self.live if self.root[n].startswith("b")]
        return self.build.graph(*self.rng.sample(made, min(3, len(made))))


def layout_is_plain(buffer: Buffer) -> bool:
    """True if `buffer` has the layout that the builder gives a result."""
    return len(buffer.shape) < 2 or buffer.strides[0] is buffer.shape[1]


def inputs() -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    return [torch.rand(shape, generator=made, dtype=torch.float64) for shape in SHAPES]


@pytest.mark.parametrize("seed", range(80))
def test_reuse_keeps_results_and_the_peak_is_predicted(build: Builder, seed: int) -> None:
    graph = Programs(build, seed).graph(6 + seed % 25)
    options = ScheduleOptions(inline=False, fuse=seed % 3 == 0)
    made = schedule(graph, get_target(("sm_90", "x86-64-avx2")[seed % 2]), options)
    peaks = {}
    expected_inputs = inputs()
    expected = interpret_graph(graph, expected_inputs)
    for reuse in (False, True):
        program = plan(made, PlanOptions(reuse=reuse))
        verify_program(program)
        peaks[reuse] = measured_peak(program)
        assert program.peak_bytes is not None and as_int(program.peak_bytes) == peaks[reuse]
        given = inputs()
        for got, wanted in zip(interpret_program(program, given), expected, strict=True):
            torch.testing.assert_close(got, wanted)
        for got, wanted in zip(given, expected_inputs, strict=True):
            torch.testing.assert_close(got, wanted)
    assert peaks[True] <= peaks[False]
    program = plan(
        made, PlanOptions(donated_inputs=tuple(b.name for b in graph.inputs if isinstance(b, Buffer)))
    )
    verify_program(program)
    assert program.peak_bytes is not None and as_int(program.peak_bytes) == measured_peak(program)
    assert measured_peak(program) <= peaks[True]
    for got, wanted in zip(interpret_program(program, inputs()), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_random_programs_hand_memory_on_in_both_ways(build: Builder) -> None:
    """The property above would hold of a planner that reuses nothing."""
    counts = {Reuse: 0, Reinterpret: 0}
    for seed in range(60):
        fresh = type(build)()
        made = schedule(
            Programs(fresh, seed).graph(20), get_target("sm_90"), ScheduleOptions(inline=False, fuse=False)
        )
        with_reuse, without = (plan(made, PlanOptions(reuse=reuse)) for reuse in (True, False))
        for kind in counts:
            counts[kind] += sum(isinstance(i, kind) for i in with_reuse.instructions)
            counts[kind] -= sum(isinstance(i, kind) for i in without.instructions)
    assert counts[Reuse] > 20 and counts[Reinterpret] > 20


@pytest.mark.parametrize("seed", range(60))
def test_pools_keep_results_and_the_peak(build: Builder, seed: int) -> None:
    graph = Programs(build, seed).graph(8 + seed % 40)
    made = schedule(graph, get_target("sm_90"), ScheduleOptions(inline=False, fuse=seed % 3 == 0))
    slack = (0, 128)[seed % 2]
    plain, pooled = (
        plan(made, PlanOptions(pools=pools, pool_slack_bytes=slack, small_pool_slack_bytes=0))
        for pools in (False, True)
    )
    verify_program(pooled)
    assert measured_peak(pooled) <= measured_peak(plain, granule=64) + slack
    assert pooled.peak_bytes is not None and as_int(pooled.peak_bytes) == measured_peak(pooled)
    for got, wanted in zip(
        interpret_program(pooled, inputs()), interpret_graph(graph, inputs()), strict=True
    ):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("seed", range(60))
def test_pools_keep_the_peak_of_all_that_is_given_away(build: Builder, seed: int) -> None:
    graph = Programs(build, seed).graph(8 + seed % 40)
    names = tuple(b.name for b in graph.inputs if isinstance(b, Buffer))
    options = ScheduleOptions(inline=False, fuse=seed % 3 == 0, donated_inputs=names)
    made = schedule(graph, get_target("sm_90"), options)
    plain, pooled = (
        plan(
            made,
            PlanOptions(pools=pools, pool_slack_bytes=0, small_pool_slack_bytes=0, donated_inputs=names),
        )
        for pools in (False, True)
    )
    verify_program(pooled)
    assert measured_peak(pooled, granule=64, counted=names) <= measured_peak(plain, granule=64, counted=names)
    for got, wanted in zip(
        interpret_program(pooled, inputs()), interpret_graph(graph, inputs()), strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_random_programs_come_to_have_pools(build: Builder) -> None:
    """The property above would hold of programs without any."""
    allocations = {False: 0, True: 0}
    for seed in range(40):
        made = schedule(
            Programs(type(build)(), seed).graph(30),
            get_target("sm_90"),
            ScheduleOptions(inline=False, fuse=False),
        )
        for pools in allocations:
            program = plan(made, PlanOptions(pools=pools))
            allocations[pools] += sum(isinstance(i, Alloc) for i in program.instructions)
    assert allocations[True] < 0.7 * allocations[False]
