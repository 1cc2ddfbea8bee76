"""Operators that write into their arguments: as AOTAutograd hands them over, and called as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor

from coilwork_ir.loops import Extern, Graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering.higher_order.wrapper_expansion import expand_functionalized_calls


def add_to(x: Tensor, k: int) -> None:
    x.add_(k)


def add_to_all(xs: list[Tensor], y: Tensor | None) -> Tensor:
    for x in xs:
        x.add_(1 if y is None else y)
    return xs[0] + 1


@pytest.fixture(autouse=True, scope="module")
def operators() -> Iterator[None]:
    library = torch.library.Library("coilwork_test_mutable", "FRAGMENT")
    library.define("add_to(Tensor(a!) x, int k) -> ()")
    library.define("add_to_all(Tensor(a!)[] xs, Tensor? y) -> Tensor")
    library.impl("add_to", add_to, "CompositeExplicitAutograd")
    library.impl("add_to_all", add_to_all, "CompositeExplicitAutograd")
    yield
    del library  # whose operators live as long as it does


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_as_eager(function: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> Graph:
    expected_inputs = [x.clone() for x in inputs]
    expected = function(*expected_inputs)
    recorder = Recorder()
    found = torch.compile(function, backend=recorder, dynamic=dynamic)(*inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(list(inputs), expected_inputs)
    (lowered,) = recorder.lowered
    return lowered.graph


def calls(graph: Graph) -> list[str]:
    return [n.target for n in graph.nodes if isinstance(n, Extern)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_of_a_value_is_written(dynamic: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        before = y.sum()
        torch.ops.coilwork_test_mutable.add_to(y[1:], 3)
        return y + before, y[1:] * 2

    graph = compiled_as_eager(function, torch.randn(5, 4), dynamic=dynamic)
    assert "coilwork_test_mutable.add_to.default" in calls(graph)


def test_what_else_views_the_memory_is_written_too() -> None:
    """The clone that is written in parts is returned whole, and one call writes two parts of it."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y, z = x * 2, x * 3
        torch.ops.coilwork_test_mutable.add_to(y[1:], 3)
        torch.ops.coilwork_test_mutable.add_to_all([z[0], z[1]], None)
        return y, z

    graph = compiled_as_eager(function, torch.randn(5, 4))
    verify_graph(graph)


def test_an_input_is_written() -> None:
    def function(x: Tensor) -> Tensor:
        torch.ops.coilwork_test_mutable.add_to(x, 2)
        return x * 3

    compiled_as_eager(function, torch.randn(6))


def test_lists_optional_arguments_and_results() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = x.sin(), x.t().contiguous()
        first = torch.ops.coilwork_test_mutable.add_to_all([a, b], None)
        second = torch.ops.coilwork_test_mutable.add_to_all([a], y)
        return a, b, first, second

    graph = compiled_as_eager(function, torch.randn(3, 3), torch.randn(3, 3))
    assert calls(graph).count("coilwork_test_mutable.add_to_all.default") == 2


def test_a_graph_without_such_calls_is_left_alone() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    assert expand_functionalized_calls(gm, lambda node: None) is gm
