"""Positions that are stored by themselves, with their checks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from declared import schedule
from gather_graphs import EDGES, NODES, WIDTH, calls, checks, gather, graph, scatter

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.loops import Check
from coilwork_ir.scalar import const, op
from coilwork_ir.target import target

I32, F64 = DType.I32, DType.F64


@pytest.mark.parametrize("wraps", [False, True])
def test_messages_are_gathered_where_they_are_added_in_order(build, compare, wraps):
    graph(build)
    gather(build, "messages", "x", "src", wraps=wraps)
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out"))
    assert {call.args for call in calls(made)} == {
        ("out_zeros",),
        ("src", "messages_positions"),
        ("order", "messages_positions", "x", "dst", "out"),
    }
    assert checks(made) == [["out of range"]]


def test_so_they_are_with_pointwise_work_between(build, compare):
    graph(build)
    build.input("w", EDGES)
    gather(build, "messages", "x", "src")
    build.pointwise(
        "weighted", [EDGES, WIDTH], lambda i, j: op("mul", build.at("messages", i, j), build.at("w", i))
    )
    scatter(build, "out", "weighted", "dst", order="order")
    made = compare(build.graph("out"))
    assert not any({"messages", "weighted"} & set(call.args) for call in calls(made))
    assert checks(made) == [["out of range"]]


def test_rows_are_read_at_yet_other_positions(build, compare):
    graph(build)
    gather(build, "rows", "x", "src", message="first")
    gather(build, "out", "rows", "order", message="second")
    made = compare(build.graph("out"))
    assert not any("rows" in call.args for call in calls(made))
    assert sorted(checks(made)) == [["first"], ["second"]]


def test_equal_positions_are_stored_once(build, compare):
    graph(build)
    build.input("y", NODES, WIDTH)
    gather(build, "a", "x", "src")
    gather(build, "b", "y", "src")
    build.pointwise("sum", [EDGES, WIDTH], lambda i, j: op("add", build.at("a", i, j), build.at("b", i, j)))
    scatter(build, "out", "sum", "dst", order="order")
    made = compare(build.graph("out"))
    assert checks(made) == [["out of range"]]
    assert sorted(name for call in calls(made) for name in call.args if "positions" in name) == [
        "a_positions",
        "a_positions",
    ]


def test_positions_take_as_few_bytes_as_they_need(build):
    graph(build)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", order="order")
    made = schedule(build.graph("out"), target("sm_90"))
    (stored,) = [b for b in made.buffers if b.name == "messages_positions"]
    assert stored.dtype is I32 and stored.shape == (as_expr(EDGES),)


def test_the_number_of_edges_may_be_open(build, compare):
    edges = symbol("s0", lo=2)
    graph(build, edges=edges)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out", symbols=(edges,)), sizes={"s0": 5})
    assert not any("messages" in call.args for call in calls(made))


@pytest.mark.parametrize("least", [0, 1])
def test_nothing_is_checked_that_was_not(build, compare, least):
    # without columns nothing is looked up
    width = symbol("s0", lo=least)
    graph(build, width=width)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out", symbols=(width,)), sizes={"s0": 3})
    assert any("messages" in call.args for call in calls(made)) == (least == 0)


def test_a_check_of_something_else_stays(build, compare):
    graph(build)
    gather(build, "messages", "x", "src")
    node = build.nodes[-1]
    positive = Check(condition=op("ge", build.at("x", 0, 0), const(-1.0, F64)), message="negative")
    build.nodes[-1] = replace(node, checks=(*node.checks, positive))
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out"))
    assert sorted(checks(made)) == [["out of range", "negative"]]
    assert any("messages" in call.args for call in calls(made))
