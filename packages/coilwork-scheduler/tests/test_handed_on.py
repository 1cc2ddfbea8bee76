"""Scatters that check what they look up themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gather_graphs import EDGES, NODES, WIDTH, calls, checks, gather, graph, scatter

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.loops import Check
from coilwork_ir.scalar import const, op

I64, F32 = DType.I64, DType.F32


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("mode", ["add", "store"])
def test_a_scatter_takes_checks_over(build, compare, wraps, mode):
    graph(build)
    build.input("w", EDGES)
    gather(build, "messages", "x", "src", wraps=wraps)
    build.pointwise(
        "weighted", [EDGES, WIDTH], lambda i, j: op("mul", build.at("messages", i, j), build.at("w", i))
    )
    scatter(build, "out", "weighted", "dst", mode=mode)
    made = compare(build.graph("out"))
    assert {call.args for call in calls(made)} == {("out_zeros",), ("src", "x", "w", "dst", "out")}
    assert checks(made) == [["out of range"]]


def test_so_it_does_of_single_elements(build, compare):
    build.input("x", NODES, dtype=F32)
    build.input("src", EDGES, dtype=I64)
    build.input("dst", EDGES, dtype=I64)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst")
    made = compare(build.graph("out"))
    assert {call.args for call in calls(made)} == {("out_zeros",), ("src", "x", "dst", "out")}


def test_positions_are_checked_before_what_is_looked_up_by_their_means(build, compare):
    graph(build)
    build.input("more", NODES, dtype=I64)
    gather(build, "messages", "x", "src", message="of rows")
    gather(build, "targets", "more", "dst", message="of targets")
    scatter(build, "out", "messages", "targets")
    node = build.nodes[-1]
    target_inside = op("lt", build.at("targets", node.ranges[0]), const(NODES, I64))
    build.nodes[-1] = replace(node, checks=(Check(condition=target_inside, message="its own"),))
    made = compare(build.graph("out"))
    (found,) = checks(made)
    assert set(found) == {"of rows", "of targets", "its own"} and found[-1] == "its own"


def test_each_of_several_scatters_takes_checks_over(build, compare):
    graph(build)
    build.input("more", EDGES, dtype=I64)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst")
    scatter(build, "other", "messages", "more")
    made = compare(build.graph("out", "other"))
    assert not any("messages" in call.args for call in calls(made))
    assert checks(made) == [["out of range"], ["out of range"]]


@pytest.mark.parametrize("start", [0, 1])
def test_all_points_are_checked(build, compare, start):
    # a part of the rows is scattered, all of them are checked
    graph(build)
    gather(build, "messages", "x", "src")
    build.pointwise("part", [EDGES - 1, WIDTH], lambda i, j: op("neg", build.at("messages", i + start, j)))
    build.input("fewer", EDGES - 1, dtype=I64)
    scatter(build, "out", "part", "fewer")
    made = compare(build.graph("out"))
    assert not any("messages" in call.args for call in calls(made))
    kernels = {kernel.name: kernel for kernel in made.kernels}
    (checking,) = [kernels[call.kernel] for call in calls(made) if kernels[call.kernel].checks]
    assert [r.symbol.extent for r in checking.ranges] == [as_expr(EDGES)]
