"""Higher-order operators that wrap calls are expanded to these calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor
from torch._higher_order_ops.map import map as map_operator
from torch.nn.attention import flex_attention as flex

from coilwork_ir.loops import Extern, Graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering.higher_order.wrapper_expansion import expand_functionalized_calls

# its own types know no further arguments
mapped: Callable[..., Any] = map_operator


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i - j < 9)


def test_scores_and_masks() -> None:
    """With a captured tensor, heads that share keys, the logarithm of sums, and rows that see nothing."""
    torch.manual_seed(0)
    slopes = torch.rand(4)
    mask = flex.create_block_mask(near, 1, 1, 32, 24, device="cpu", BLOCK_SIZE=8)

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        def distance(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score.tanh() + slopes[h] * (j - i)

        lean = flex.flex_attention(q, k, v, score_mod=distance, enable_gqa=True)
        some, aux = flex.flex_attention(
            q, k, v, block_mask=mask, enable_gqa=True, return_aux=flex.AuxRequest(lse=True)
        )
        assert aux.lse is not None
        return lean, some, aux.lse

    q, k, v = torch.randn(2, 4, 32, 16), torch.randn(2, 2, 24, 16), torch.randn(2, 2, 24, 16)
    found = torch.compile(function, backend=Recorder())(q, k, v)
    torch.testing.assert_close(found, function(q, k, v))


def test_what_is_demanded_of_open_sizes_is_told_with_the_operator() -> None:
    """As many keys as values."""
    recorder = Recorder()
    compiled = torch.compile(lambda q, k, v: flex.flex_attention(q, k, v), backend=recorder, dynamic=True)
    q, k, v = torch.randn(2, 2, 24, 16), torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16)
    torch._dynamo.mark_dynamic(k, 2)
    torch._dynamo.mark_dynamic(v, 2)
    torch.testing.assert_close(compiled(q, k, v), flex.flex_attention(q, k, v))
    origins = [guard.origin for one in recorder.lowered for guard in one.guards]
    assert all(origin is not None and origin.op == "flex_attention" and origin.line for origin in origins)
    assert origins


def test_gradients_of_flex_attention_are_those_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch asks for a GPU, where its own kernel runs; what the operator stands for runs anywhere."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    torch.manual_seed(0)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = flex.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s.tanh() * 2 + (j - i) * 0.1)
        assert isinstance(found, Tensor)
        return found.square()

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(24)
        scores = (q @ k.mT / 4).tanh() * 2 + (place - place[:, None]) * 0.1
        return (scores.softmax(-1) @ v).square()

    given = [torch.randn(1, 2, 24, 16) for _ in range(3)]
    ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    torch.compile(function, backend=Recorder())(*ours).sum().backward()
    reference(*theirs).sum().backward()
    torch.testing.assert_close([x.grad for x in ours], [x.grad for x in theirs])


def test_a_map_with_a_number_is_eagers() -> None:
    weight = torch.randn(3)

    def function(rows: Tensor) -> Tensor:
        found: Tensor = mapped(lambda row, k: (row * weight).sin() + k, rows, 2.0)
        return found

    rows = torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(function, backend=Recorder())(rows), function(rows))


def test_a_map_in_a_map() -> None:
    def function(blocks: Tensor, weight: Tensor) -> Tensor:
        found: Tensor = mapped(
            lambda rows, w: mapped(lambda row, v: (row * v).sin(), rows, w), blocks, weight
        )
        return found

    given = torch.randn(2, 4, 3), torch.randn(3)
    torch.testing.assert_close(torch.compile(function, backend=Recorder())(*given), function(*given))


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
