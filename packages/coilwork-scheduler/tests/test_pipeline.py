"""What `schedule` itself promises: the order of passes, their graphs, equal results for equal arguments."""

from __future__ import annotations

import pytest

from coilwork_ir.kernels.text import format_schedule
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import op
from coilwork_ir.target import target
from coilwork_scheduler import ScheduleError, ScheduleOptions, schedule
from coilwork_scheduler.pipeline import GRAPH_PASSES

H200 = target("sm_90")


@pytest.fixture
def overwriting(build):
    """A transposed update in place, a chain that is inlined, and a value that nobody needs."""
    at = build.at
    build.input("x", 4, 4)
    build.pointwise("unused", [4, 4], lambda i, j: op("exp", at("x", i, j)))
    build.pointwise("a", [4, 4], lambda i, j: op("add", at("x", i, j), at("x", i, j)))
    build.pointwise("b", [4, 4], lambda i, j: op("tanh", at("a", i, j)))
    build.pointwise("y", [4, 4], lambda i, j: op("add", at("x", j, i), at("b", i, j)), into="x")
    return build.graph("y")


def test_every_pass_leaves_a_graph_that_verifies(overwriting):
    seen = []

    def check(name, graph):
        verify_graph(graph)
        seen.append((name, len(graph.nodes)))

    schedule(overwriting, H200, observe=check)
    assert [name for name, _ in seen] == [graph_pass.name for graph_pass in GRAPH_PASSES]
    counts = dict(seen)
    assert counts["separate"] == 5 and counts["dead"] == 4 and counts["dead-after-inline"] == 2


def test_equal_arguments_give_equal_results(overwriting):
    assert format_schedule(schedule(overwriting, H200)) == format_schedule(schedule(overwriting, H200))


def test_without_inlining_the_graph_keeps_its_nodes(overwriting):
    counts = {}
    schedule(
        overwriting,
        H200,
        ScheduleOptions(inline=False),
        observe=lambda n, g: counts.update({n: len(g.nodes)}),
    )
    assert counts["dead-after-inline"] == counts["dead"] == 4


def test_reading_what_was_overwritten_is_refused(build):
    at = build.at
    build.input("x", 4)
    build.pointwise("y", [4], lambda i: op("exp", at("x", i)), into="x")
    build.pointwise("z", [4], lambda i: op("exp", at("x", i)))
    with pytest.raises(ScheduleError, match="overwritten"):
        schedule(build.graph("y", "z"), H200)
