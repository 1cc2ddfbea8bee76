"""Order that memory and effects impose, errors of malformed graphs, and removal of what is not needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from declared import schedule
from graph_builder import Builder

from coilwork_ir.buffers import Ref
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.loops import AssertSize, Node, View
from coilwork_ir.loops.access import list_read_buffers
from coilwork_ir.scalar import const, op
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleError, dependence
from coilwork_scheduler.dependence import analyse, remove_dead


def test_views_share_the_root_of_their_source(build: Builder) -> None:
    build.input("x", 4, 6)
    view = build.buffer("v", 6)
    build.nodes.append(View(output=view, source="x", offset=as_expr(6)))
    build.extern("test.neg", ["v"], [build.buffer("n", 6)])
    build.pointwise("x2", [4, 6], lambda i, j: const(0.0, build.buffers["x"].dtype), into="x")
    facts = analyse(build.graph("n"))
    assert facts.root["v"] == facts.root["x2"] == "x"
    assert facts.before == ((), (0,), (0, 1))
    assert facts.overwriters == {"x": (2,)}


def test_undefined_names_are_an_error(build: Builder) -> None:
    build.input("x", 4)
    build.pointwise("y", [4], lambda i: op("neg", build.at("x", i)))
    build.inputs.clear()
    with pytest.raises(ScheduleError, match=r"\[undefined\].*%x"):
        schedule(build.graph("y"), get_target("sm_90"))


def test_names_of_overwritten_memory_are_an_error(build: Builder) -> None:
    build.input("x", 4)
    build.pointwise("x2", [4], lambda i: op("neg", build.at("x", i)), into="x")
    build.pointwise("y", [4], lambda i: op("neg", build.at("x", i)))
    with pytest.raises(ScheduleError, match=r"\[overwritten\].*%x"):
        schedule(build.graph("y"), get_target("sm_90"))


def test_a_second_definition_is_an_error(build: Builder) -> None:
    build.input("x", 4)
    build.pointwise("x", [4], lambda i: const(0.0, build.buffers["x"].dtype))
    with pytest.raises(ScheduleError, match=r"\[redefinition\]"):
        schedule(build.graph("x"), get_target("sm_90"))


def test_bound_symbols_come_before_their_uses(build: Builder) -> None:
    count = symbol("u0", lo=0)
    build.input("x", 4)
    found = build.buffer("found", count)
    build.extern("test.nonzero", ["x"], [found], binds=((count, 0, 0),))
    build.nodes.append(AssertSize(lhs=count, relation="le", rhs=as_expr(4), message="at most four"))
    build.pointwise("y", [count], lambda i: const(1.0, found.dtype))
    facts = analyse(build.graph("y"))
    assert facts.before[1] == (0,) and facts.before[2] == (0,)


def test_inputs_are_overwritten_after_assertions(build: Builder) -> None:
    build.input("x", 4)
    build.pointwise("y", [4], lambda i: op("neg", build.at("x", i)))
    count = symbol("u0", lo=0, hi=4)
    build.extern("test.nonzero", ["y"], [build.buffer("found", count)], binds=((count, 0, 0),))
    build.nodes.append(AssertSize(lhs=count, relation="ne", rhs=as_expr(1), message="not one"))
    build.pointwise("x2", [4], lambda i: op("exp", build.at("y", i)), into="x")
    facts = analyse(build.graph("y"))
    assert facts.before[3] == (0, 2)


def test_only_what_is_needed_stays(build: Builder) -> None:
    build.input("x", 4)
    build.pointwise("unused", [4], lambda i: op("neg", build.at("x", i)))
    build.pointwise("y", [4], lambda i: op("exp", build.at("x", i)))
    build.extern("test.draw", [], [build.buffer("d", 4)], random=True)
    build.extern("test.print", ["y"], [], effect=True)
    build.extern("test.neg", ["y"], [build.buffer("n", 4)])
    build.pointwise("x2", [4], lambda i: op("neg", build.at("x", i)), into="x")
    graph = build.graph()
    kept = remove_dead(graph, analyse(graph)).nodes
    assert kept == tuple(build.nodes[k] for k in (1, 2, 3, 5))


def test_a_graph_that_needs_everything_is_returned_as_it_is(build: Builder) -> None:
    build.input("x", 4)
    build.pointwise("y", [4], lambda i: op("neg", build.at("x", i)))
    graph = build.graph("y")
    assert remove_dead(graph, analyse(graph)) is graph
    assert graph.outputs == (Ref("y"),)


def test_what_nodes_read_is_found_once(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    build.input("x", 4)
    build.pointwise("a", [4], lambda i: op("neg", build.at("x", i)))
    build.pointwise("b", [4], lambda i: op("add", build.at("a", i), build.at("x", i)))
    graph = build.graph("b")
    facts = analyse(graph)
    changed = replace(graph, nodes=(graph.nodes[0], replace(graph.nodes[1])))
    searched: list[Node] = []

    def search(node: Node) -> tuple[str, ...]:
        searched.append(node)
        return list_read_buffers(node)

    monkeypatch.setattr(dependence, "list_read_buffers", search)
    again = analyse(changed, (graph, facts))
    assert [node is changed.nodes[1] for node in searched] == [True]
    assert again == facts
