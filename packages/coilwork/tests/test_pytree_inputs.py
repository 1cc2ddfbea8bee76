"""Graphs whose inputs are nested, as compiled autograd captures them, beside eager."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn
from torch._dynamo import compiled_autograd

from coilwork.backend import backend
from coilwork_frontend.capture.pytree_inputs import flatten_inputs, has_pytree_inputs


def gradients(model: nn.Module, run: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> list[Tensor]:
    model.zero_grad()
    for x in batches:
        run(x).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_compiled_autograd_gives_the_gradients_of_eager() -> None:
    """The saved tensors are one list; gradients add up, through a hook, and for another batch size."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    first = nn.Linear(4, 6)
    first.weight.register_hook(lambda g: g * 3)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(6, 2))
    batches = [torch.randn(3, 4), torch.randn(3, 4), torch.randn(5, 4)]
    expected = gradients(model, model, batches)
    compiled = torch.compile(model, backend=backend, options={"strict": True})
    with compiled_autograd._enable(torch.compile(backend=backend, options={"strict": True})):
        found = gradients(model, compiled, batches)
    torch.testing.assert_close(found, expected)


def graph_of_a_pair() -> fx.GraphModule:
    """`f(x, (a, {"b": b})) = x + a * b, (a, {"b": b})`."""
    graph = fx.Graph()
    x, pair = graph.placeholder("x"), graph.placeholder("pair")
    a = graph.call_function(operator.getitem, (pair, 0))
    b = graph.call_function(operator.getitem, (graph.call_function(operator.getitem, (pair, 1)), "b"))
    total = graph.call_function(torch.add, (x, graph.call_function(torch.mul, (a, b))))
    graph.output((total, pair))
    return fx.GraphModule(nn.Module(), graph)


def test_each_leaf_is_an_input() -> None:
    x, a, b = torch.randn(3, 4).unbind()
    nested = (a, {"b": b})
    assert has_pytree_inputs([x, nested])
    gm, inputs, flatten = flatten_inputs(graph_of_a_pair(), [x, nested])
    assert [node.op for node in gm.graph.nodes].count("placeholder") == 3
    assert not any(node.target is operator.getitem for node in gm.graph.nodes)
    given = [x, nested]
    flat = flatten(given)
    assert not given
    for found in (inputs, flat):
        assert all(one is other for one, other in zip(found, (x, a, b), strict=True))
    total, pair = gm(*flat)
    torch.testing.assert_close(total, x + a * b)
    assert pair[0] is a and pair[1]["b"] is b


def test_lists_that_may_be_emptied_are() -> None:
    graph = fx.Graph()
    given = graph.placeholder("given")
    given.meta["steal_arg"] = True
    graph.output((graph.call_function(operator.getitem, (given, 0)),))
    inputs = [torch.ones(2)]
    gm, _, flatten = flatten_inputs(fx.GraphModule(nn.Module(), graph), [inputs])
    (found,) = gm(*flatten([inputs]))
    assert not inputs and found.sum() == 2
