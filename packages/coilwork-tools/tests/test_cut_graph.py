"""Graphs are split into few parts, with Python's calls between them, in an order that keeps effects."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch.fx.node import Target

from coilwork_ir.loc import Origin
from coilwork_tools.op_fallback.cut_graph import cut_around, cut_at, split_at

aten = torch.ops.aten


def graph_of(*calls: tuple[str, Target, tuple[str | int, ...]], results: tuple[str, ...]) -> fx.GraphModule:
    """The calls, by name, with operands by name; `x` is given."""
    graph = fx.Graph()
    nodes = {"x": graph.placeholder("x")}
    for name, target, operands in calls:
        arguments = tuple(nodes.get(one, one) if isinstance(one, str) else one for one in operands)
        nodes[name] = graph.create_node("call_function", target, arguments, name=name)
    graph.output(tuple(nodes[name] for name in results))
    return fx.GraphModule(torch.nn.Module(), graph)


def described(gm: fx.GraphModule, *cut: str) -> list[tuple[list[str], list[str]]]:
    """The calls of each level: those that are compiled, and those that Python makes."""
    found = []
    for level in split_at(gm, cut):
        part = [] if level.part is None else [n.name for n in level.part.graph.graph.nodes]
        given = [] if level.part is None else [n.name for n in level.part.inputs]
        compiled = [name for name in part if name != "output" and name not in given]
        found.append((compiled, [node.name for node in level.calls]))
    return found


def test_what_depends_on_no_cut_is_in_the_first_part() -> None:
    gm = graph_of(
        ("a", aten.sin.default, ("x",)),
        ("cut", aten.cos.default, ("a",)),
        ("b", aten.exp.default, ("cut",)),
        ("c", aten.exp.default, ("x",)),
        results=("b", "c"),
    )
    assert described(gm, "cut") == [(["a", "c"], ["cut"]), (["b"], [])]


def test_two_cuts_without_a_call_between_share_a_level() -> None:
    gm = graph_of(
        ("a", aten.sin.default, ("x",)),
        ("first", aten.cos.default, ("a",)),
        ("second", aten.cos.default, ("first",)),
        ("b", aten.exp.default, ("second",)),
        results=("b",),
    )
    assert described(gm, "first", "second") == [(["a"], ["first", "second"]), (["b"], [])]


def test_what_overwrites_memory_stays_behind_what_reads_it() -> None:
    gm = graph_of(
        ("a", aten.sin.default, ("x",)),
        ("cut", aten.cos.default, ("x",)),
        ("w", aten.copy_.default, ("x", "a")),
        ("late", aten.exp.default, ("x",)),
        results=("cut", "late"),
    )
    assert described(gm, "cut") == [(["a"], ["cut"]), (["w", "late"], [])]


def test_random_numbers_are_drawn_in_their_order() -> None:
    gm = graph_of(
        ("first", aten.rand_like.default, ("x",)),
        ("cut", aten.rand_like.default, ("x",)),
        ("last", aten.rand_like.default, ("x",)),
        results=("first", "cut", "last"),
    )
    assert described(gm, "cut") == [(["first"], ["cut"]), (["last"], [])]


def test_what_takes_a_result_apart_goes_with_the_call() -> None:
    gm = graph_of(
        ("cut", aten.sort.default, ("x",)),
        ("values", operator.getitem, ("cut", 0)),
        ("b", aten.exp.default, ("values",)),
        results=("b",),
    )
    assert described(gm, "cut") == [([], ["cut", "values"]), (["b"], [])]


def test_calls_of_an_input_that_is_cut_are_cut() -> None:
    gm = graph_of(("a", aten.sin.default, ("x",)), ("b", aten.exp.default, ("a",)), results=("b",))
    assert described(gm, "x") == [([], ["a"]), (["b"], [])]


def test_a_fault_that_names_no_call_splits_nothing() -> None:
    gm = graph_of(("a", aten.sin.default, ("x",)), results=("a",))
    assert cut_around(gm, "graph", ValueError("somewhere")) is None
    assert cut_around(gm, "graph", MemoryError()) is None


def test_cuts_have_reasons() -> None:
    gm = graph_of(("a", aten.sin.default, ("x",)), results=("a",))
    call = Origin(node="a", op="aten.sin.default")
    cuts = cut_at(gm, {call: "for a test"})
    assert cuts.reasons == {call: "for a test"}
    assert [[node.name for node in level.calls] for level in cuts.levels] == [["a"]]


@pytest.mark.parametrize("count", [1, 300])
def test_levels_do_not_grow_with_calls(count: int) -> None:
    calls = [(f"a{k}", aten.sin.default, ("x" if k == 0 else f"a{k - 1}",)) for k in range(count)]
    gm = graph_of(*calls, results=(f"a{count - 1}",))
    assert len(described(gm)) == 1
