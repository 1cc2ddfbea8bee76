"""The engine: what a match is, where it is refused, and what becomes of the nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rewritten_graphs import check_same, rewritten, traced
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering.options import RewriteOptions
from coilwork_lowering.rewrites import (
    REWRITES,
    Condition,
    Fired,
    Rewrite,
    apply_rewrites,
    call,
    choose_rewrites,
    complete_values,
    either,
    engine,
    equals,
    items,
    tensor,
    value,
)

aten = torch.ops.aten
X = torch.randn(3, 4)


def rewrite(name: str, pattern: Any, replacement: Callable[..., Any], **more: Any) -> Rewrite:
    return Rewrite(name=name, doc=name, pattern=pattern, replacement=replacement, **more)


SUM_OF_LOGS = rewrite(
    "sum-of-logs",
    call(
        "aten.add.Tensor",
        self=call("aten.log.default", self=tensor("x")),
        other=call("aten.log.default", self=tensor("y")),
    ),
    lambda x, y: aten.log.default(aten.mul.Tensor(x, y)),
)


def test_sizes_computed_between_the_calls_write_nothing() -> None:
    def function(x: Tensor) -> Tensor:
        first = x.log()
        ones = x.new_ones(x.shape[0] * 2 + 1)
        return first + x.exp().log() * 1 + ones.sum()

    gm = make_fx(function, tracing_mode="symbolic")(X.abs())
    rule = rewrite(
        "log-and-product",
        call(
            "aten.add.Tensor",
            self=call("aten.log.default", self=tensor("x")),
            other=call("aten.mul.Tensor", self=tensor("y"), other=value("number")),
        ),
        lambda x, y, number: aten.add.Tensor(aten.log.default(x), y),
        conditions=(equals("number", 1),),
    )
    assert [fired.name for fired in apply_rewrites(gm, [rule])] == ["log-and-product"]
    torch.testing.assert_close(gm(X.abs()), function(X.abs()))


def test_new_nodes_have_the_origin_and_the_values_of_what_they_replace() -> None:
    gm = traced(lambda x: x.exp().log() + x.log(), (X.abs(),))
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = f'File "model.py", line {len(node.name)}, in f\n  code'
        node.meta["nn_module_stack"] = {"a": ("L['self'].block", "Block")}
    (fired,) = apply_rewrites(gm, [SUM_OF_LOGS])
    new = [node for node in gm.graph.nodes if node.target in (aten.mul.Tensor, aten.log.default)]
    assert [node.meta["val"].shape for node in new] == [X.shape] * 2
    assert {node.meta["stack_trace"] for node in new} == {'File "model.py", line 3, in f\n  code'}
    assert all(node.meta["nn_module_stack"] for node in new)
    assert fired == Fired(name="sum-of-logs", level="aten", count=1, sources=("model.py:3", "model.py:5"))


def test_inner_calls_with_other_readers_refuse_unless_shared() -> None:
    def function(x: Tensor) -> Any:
        log = x.log()
        return log + x.log(), log * 2

    gm = traced(function, (X.abs(),))
    assert apply_rewrites(gm, [SUM_OF_LOGS]) == ()
    twice = rewrite(
        "half",
        call("aten.neg.default", self=call("aten.exp.default", self=tensor("x"), shared=True)),
        lambda x: aten.neg.default(aten.exp.default(x)),
        conditions=(Condition(name="never", holds=lambda match: False),),
    )
    assert rewritten(lambda x: (-x.exp(), x.exp().sin()), (X,), [twice]).names == ()


def test_commuting_operands_and_repeated_names() -> None:
    square = rewrite(
        "x-times-exp-x",
        call(
            "aten.mul.Tensor",
            self=tensor("x"),
            other=call("aten.exp.default", self=tensor("x")),
            commutes=("self", "other"),
        ),
        lambda x: aten.mul.Tensor(x, aten.exp.default(x)),
        conditions=(Condition(name="x is an input", holds=lambda m: m.captures["x"].op == "placeholder"),),
    )
    for function, fits in (
        (lambda x: x * x.exp(), True),
        (lambda x: x.exp() * x, True),
        (lambda x: (x + 1) * x.exp(), False),
    ):
        gm = traced(function, (X,))
        assert len(apply_rewrites(gm, [square])) == int(fits)


def test_parameters_that_are_not_named_must_have_their_defaults() -> None:
    plain = rewrite("plain", call("aten.add.Tensor", self=tensor("x"), other=tensor("y")), lambda x, y: x)
    x = torch.zeros(3, 4)
    assert rewritten(lambda x: torch.add(x.sin(), x, alpha=2).exp(), (x,), [plain]).names == ()
    assert rewritten(lambda x: torch.add(x.sin(), x).exp(), (x,), [plain]).names == ("plain",)


def test_several_roots_become_several_results() -> None:
    both = rewrite(
        "sine-and-cosine",
        call("aten.sin.default", self=tensor("x")),
        lambda x: [
            aten.neg.default(aten.sin.default(aten.neg.default(x))),
            aten.cos.default(aten.neg.default(x)),
        ],
        also=(call("aten.cos.default", self=tensor("x")),),
        conditions=(Condition(name="x is an input", holds=lambda m: m.captures["x"].op == "placeholder"),),
    )
    made = check_same(lambda x: (x.exp(), x.sin() + x.cos()), (X,), [both])
    assert made.names == ("sine-and-cosine",)
    assert made.calls().count("aten.neg.default") == 3


def test_roots_of_several_results_become_lists() -> None:
    halves = rewrite(
        "split-in-two",
        call("aten.split.Tensor", self=tensor("x"), split_size=value("size"), dim=value("dim")),
        lambda x, size, dim: [aten.slice.Tensor(x, dim, k * size, (k + 1) * size) for k in range(2)],
        conditions=(equals("size", 2),),
    )
    made = check_same(lambda x: [p.sin() for p in x.split(2, 1)], (X,), [halves])
    assert made.names == ("split-in-two",) and "aten.split.Tensor" not in made.calls()


def test_what_the_replacement_refuses_or_gets_wrong_leaves_the_graph_alone() -> None:
    sine = call("aten.sin.default", self=tensor("x"))
    for wrong in (
        lambda x: None,
        lambda x: aten.sum.default(x),
        lambda x: aten.sin.default(aten.t.default(x)),
        lambda x: torch.ops.prims.convert_element_type.default(x, torch.float64),
    ):
        gm = traced(lambda x: x.sin() * 2, (X,))
        before = str(gm.graph)
        assert apply_rewrites(gm, [rewrite("wrong", sine, wrong)]) == ()
        assert str(gm.graph) == before


def test_writes_between_the_calls_of_a_match_refuse() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        left = x.log()
        aten.copy_(y, y + 1)
        return left + y.log()

    gm = traced(function, (X.abs(), X.abs()))
    assert apply_rewrites(gm, [SUM_OF_LOGS]) == ()


@pytest.mark.parametrize("key", ["partitioner_tag", "recompute", "ac_graph_id"])
def test_calls_of_different_regions_stay_apart(key: str) -> None:
    gm = traced(lambda x: x.log() + x.exp().log(), (X.abs(),))
    next(node for node in gm.graph.nodes if node.target is aten.log.default).meta[key] = 1
    assert apply_rewrites(gm, [SUM_OF_LOGS]) == ()


def test_an_unknown_operator_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"aten\.sinn\.default"):
        rewritten(
            torch.sin, (X,), [rewrite("typo", call("aten.sinn.default", self=tensor("x")), lambda x: x)]
        )


def test_a_pattern_needs_a_call_at_its_root() -> None:
    with pytest.raises(ValueError, match="needs a name, and calls"):
        rewrite("leaf", either(tensor("x"), items("y")), lambda x: x)


def test_every_rewrite_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [rewrite.name for rewrite in REWRITES]
    assert len(set(names)) == len(names)
    assert all(rewrite.doc.endswith(".") for rewrite in REWRITES)


def test_skipped_and_inexact_rewrites_are_not_chosen() -> None:
    def names(**how: Any) -> set[str]:
        return {rewrite.name for rewrite in choose_rewrites("aten", RewriteOptions(**how))}

    assert "clone" in names() and "clone" not in names(skip=("clone",))
    assert names(numerics="eager") < names()


def test_values_of_new_nodes_are_completed() -> None:
    gm = traced(torch.sin, (X,))
    (sine,) = (node for node in gm.graph.nodes if node.op == "call_function")
    with gm.graph.inserting_after(sine):
        summed = gm.graph.call_function(aten.sum.dim_IntList, (sine, [1]))
    assert complete_values(gm) == 1
    assert summed.meta["val"].shape == (3,)


def test_patterns_are_tried_only_where_their_inner_calls_are(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    find = engine.find_matches

    def find_matches(node: torch.fx.Node, *rest: Any) -> Any:
        tried.append(str(node.target))
        return find(node, *rest)

    monkeypatch.setattr(engine, "find_matches", find_matches)
    gm = traced(lambda x: (x + 1 + x) * (x.log() + x.exp().log()), (X.abs(),))
    assert [fired.name for fired in apply_rewrites(gm, [SUM_OF_LOGS])] == ["sum-of-logs"]
    # of the additions, one reads logarithms
    assert tried == ["aten.add.Tensor"]
