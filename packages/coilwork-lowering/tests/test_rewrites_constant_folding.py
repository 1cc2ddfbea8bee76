"""What frozen inputs decide is taken out of a graph, and what is left computes the same with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rewritten_graphs import traced
from torch import Tensor

from coilwork_lowering.rewrites import split_constants

aten = torch.ops.aten
W, V, X = torch.randn(4, 5), torch.randn(5), torch.randn(3, 5)
Function = Callable[..., Any]


def split(function: Function, frozen: tuple[int, ...] = (0, 1)) -> tuple[list[str], list[str]]:
    """Operators of the main graph and of the preparation, after both have run: together they give what eager
    does.
    """
    gm = traced(function, (W, V, X))
    parts = split_constants(gm, frozen)
    if parts is None:
        return _calls(gm), []
    inputs = (W.clone(), V.clone(), X.clone())
    made = parts.preparation(*(inputs[p] for p in parts.sources))
    assert [tuple(t.shape) for t in made] == [tuple(t.shape) for t in parts.values]
    found = parts.main(*(inputs[p] for p in parts.kept), *made)
    torch.testing.assert_close(found, function(W.clone(), V.clone(), X.clone()), rtol=0, atol=0)
    return _calls(parts.main), _calls(parts.preparation)


def _calls(gm: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def test_weights_that_are_computed_with_go() -> None:
    main, preparation = split(lambda w, v, x: x @ (w * 2 + v).t())
    assert main == ["aten.mm.default"]
    assert preparation == ["aten.mul.Tensor", "aten.add.Tensor", "aten.t.default"]


def test_several_values_right_behind_the_inputs() -> None:
    def function(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
        scale, weight = v.exp(), w.sin()
        return weight @ (x * scale).t()

    main, preparation = split(function)
    assert main == ["aten.mul.Tensor", "aten.t.default", "aten.mm.default"]
    assert preparation == ["aten.exp.default", "aten.sin.default"]


def test_views_of_weights_stay() -> None:
    assert split(lambda w, v, x: x @ w.t()) == (["aten.t.default", "aten.mm.default"], [])


def test_inputs_that_nobody_reads_any_more_are_not_taken() -> None:
    gm = traced(lambda w, v, x: x + (v * 2), (W, V, X))
    parts = split_constants(gm, (0, 1))
    assert parts is not None and (parts.kept, parts.sources, parts.size_bytes) == ((2,), (1,), 20)


def written(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
    result = x + v * 2
    aten.copy_(v, v + 1)
    return result


STAYS: dict[str, Function] = {
    "returned": lambda w, v, x: (v * 2, x + 1),
    "returned as a view": lambda w, v, x: ((v * 2).view(5, 1), x + 1),
    "random": lambda w, v, x: x + torch.rand_like(v),
    "of no input": lambda w, v, x: x + torch.ones(5),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_depends_on_inputs_is_not_prepared(case: str) -> None:
    gm = traced(STAYS[case], (W, V, X))
    assert split_constants(gm, (0, 1)) is None


def test_inputs_that_are_written_are_not_frozen() -> None:
    assert split_constants(traced(written, (W, V, X)), (0, 1)) is None


def test_what_grows_too_much_is_computed_each_time() -> None:
    def function(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return (v.expand(100000, 5) * 2) + x[0]

    assert split_constants(traced(function, (W, V, X)), (0, 1)) is None
    assert split_constants(traced(lambda w, v, x: v.expand(100, 5) * 2 + x[0], (W, V, X)), (1,)) is not None


def test_only_what_is_said_to_be_frozen_is() -> None:
    assert split(lambda w, v, x: x + v * 2, frozen=(0,))[1] == []
