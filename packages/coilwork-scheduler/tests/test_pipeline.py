"""What `schedule` itself promises: the order of passes, their graphs, equal results for equal arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from declared import schedule
from graph_builder import Builder

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels.text import format_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.passes import Before
from coilwork_ir.scalar import const, op
from coilwork_ir.target import get_target
from coilwork_scheduler import KernelWork, RooflineCost, ScheduleError, ScheduleOptions
from coilwork_scheduler.pipeline import PASSES

H200 = get_target("sm_90")


@pytest.fixture
def overwriting(build: Builder) -> Graph:
    """A transposed update in place, a chain that is inlined, and a value that nobody needs."""
    at = build.at
    build.input("x", 4, 4)
    build.pointwise("unused", [4, 4], lambda i, j: op("exp", at("x", i, j)))
    build.pointwise("a", [4, 4], lambda i, j: op("add", at("x", i, j), at("x", i, j)))
    build.pointwise("b", [4, 4], lambda i, j: op("tanh", at("a", i, j)))
    build.pointwise("y", [4, 4], lambda i, j: op("add", at("x", j, i), at("b", i, j)), into="x")
    return build.graph("y")


def test_every_pass_leaves_a_graph_that_verifies(overwriting: Graph) -> None:
    seen = []

    def check(name: str, graph: Graph) -> None:
        verify_graph(graph)
        seen.append((name, len(graph.nodes)))

    schedule(overwriting, H200, observe=check)
    assert tuple(name for name, _ in seen) == PASSES.names[: PASSES.names.index("fuse")]
    counts = dict(seen)
    assert counts["separate"] == 5 and counts["dead"] == 4 and counts["dead-after-inline"] == 2


def test_equal_arguments_give_equal_results(overwriting: Graph) -> None:
    assert format_schedule(schedule(overwriting, H200)) == format_schedule(schedule(overwriting, H200))


def test_without_inlining_the_graph_keeps_its_nodes(overwriting: Graph) -> None:
    counts = {}
    schedule(
        overwriting,
        H200,
        ScheduleOptions(inline=False),
        observe=lambda n, g: counts.update({n: len(g.nodes)}),
    )
    assert counts["dead-after-inline"] == counts["dead"] == 4


def test_reading_what_was_overwritten_is_refused(build: Builder) -> None:
    at = build.at
    build.input("x", 4)
    build.pointwise("y", [4], lambda i: op("exp", at("x", i)), into="x")
    build.pointwise("z", [4], lambda i: op("exp", at("x", i)))
    with pytest.raises(ScheduleError, match="overwritten"):
        schedule(build.graph("y", "z"), H200)


@dataclass
class Counting:
    """A cost model that counts how often it is asked."""

    inner: RooflineCost
    asked: int = 0

    def kernel_us(self, work: KernelWork) -> float:
        self.asked += 1
        return self.inner.kernel_us(work)


def chain(build: Builder, count: int) -> Graph:
    last = "x"
    for k in range(count):
        build.pointwise(f"c{k}", [64], lambda i, s=last: op("mul", build.at(s, i), build.at("x", i)))
        last = f"c{k}"
    return build.graph(last)


def wide(build: Builder, count: int) -> Graph:
    for k in range(count):
        build.pointwise(f"w{k}", [64], lambda i, k=k: op("mul", build.at("x", i), const(float(k), DType.F64)))
    return build.graph(*(f"w{k}" for k in range(count)))


def layers(build: Builder, count: int) -> Graph:
    last = "x"
    for k in range(count // 4):
        build.reduce(f"s{k}", "sum", [], [64], lambda r, s=last: build.at(s, r))
        build.pointwise(f"n{k}", [64], lambda i, s=last, k=k: op("div", build.at(s, i), build.at(f"s{k}")))
        build.extern("test.neg", [f"n{k}"], [build.buffer(f"e{k}", 64)])
        build.pointwise(f"o{k}", [64], lambda i, s=last, k=k: op("add", build.at(f"e{k}", i), build.at(s, i)))
        last = f"o{k}"
    return build.graph(last)


@pytest.mark.parametrize("shape", [chain, wide, layers])
def test_four_times_the_nodes_are_four_times_the_questions(
    build: Builder, shape: Callable[[Builder, int], Graph]
) -> None:
    asked = []
    for count in (200, 800):
        fresh = type(build)()
        fresh.input("x", 64)
        model = Counting(RooflineCost(target=H200))
        schedule(shape(fresh, count), H200, ScheduleOptions(repeat=False), model=model)
        asked.append(model.asked)
    assert asked[0] >= 200 and asked[1] <= 4.5 * asked[0]


def test_more_equal_layers_ask_nothing_more(build: Builder) -> None:
    asked = []
    for count in (200, 800):
        fresh = type(build)()
        fresh.input("x", 64)
        model = Counting(RooflineCost(target=H200))
        schedule(layers(fresh, count), H200, ScheduleOptions(repeat=True), model=model)
        asked.append(model.asked)
    assert 0 < asked[1] == asked[0]


def test_every_place_has_a_reason() -> None:
    assert PASSES.violations() == ()
    assert all(row.why for row in PASSES.passes)


@pytest.mark.parametrize("row", PASSES.order, ids=lambda row: f"{row.first} before {row.second}")
def test_every_reason_is_broken_by_some_other_order(row: Before) -> None:
    swap = {row.first: row.second, row.second: row.first}
    by_name = {one.name: one for one in PASSES.passes}
    swapped = replace(PASSES, passes=tuple(by_name[swap.get(name, name)] for name in PASSES.names))
    assert any(row.why in text for text in swapped.violations())
