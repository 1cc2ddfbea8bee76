"""Leaves, parameters and buffers that are overwritten, and views that carry gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from integration_tests.beside_eager import compiled, numbers

pytestmark = pytest.mark.usefixtures("own_caches")


def test_a_leaf_is_updated_under_no_grad() -> None:
    def update(weight: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight.sub_(0.5)
        return (weight * x).sum()

    weights = [numbers(6).requires_grad_() for _ in range(2)]
    results = [f(w, numbers(6)) for f, w in zip((update, compiled(update)), weights, strict=True)]
    for result in results:
        result.backward()
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(weights[1].detach(), weights[0].detach())
    torch.testing.assert_close(weights[1].grad, weights[0].grad)


def test_a_non_leaf_input_is_updated_and_differentiated() -> None:
    def update(x: Tensor) -> Tensor:
        x[1:].mul_(3)
        x.t()[:1].exp_()
        return x.sin()

    gradients = []
    for function in (update, compiled(update)):
        leaf = numbers(12).reshape(3, 4).requires_grad_()
        value = leaf * 1
        result = function(value)
        (result.sum() + (value * 2).sum()).backward()
        gradients.append((leaf.grad, value.detach(), result.detach()))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_returned_views_carry_gradients() -> None:
    def views(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        return y[1:], y.t(), x[:1]

    found = []
    for function in (views, compiled(views)):
        leaf = numbers(12).reshape(3, 4).requires_grad_()
        first, second, third = function(leaf)
        (first.sin().sum() + second.square().sum() + third.sum()).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])


class Counter(nn.Module):
    """Overwrites its buffers, one of them through a view, and has a parameter that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("history", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.norm(self.second(torch.tanh(self.first(x))))
        self.history[1:].copy_(self.history[:-1].clone())
        self.history[0] = y.detach().mean(0)
        return y


@pytest.mark.parametrize("training", [True, False])
def test_buffers_and_tied_parameters_are_updated_as_in_eager(training: bool) -> None:
    eager = Counter().train(training)
    model = copy.deepcopy(eager)
    ours = compiled(model)
    for step in range(2):
        x = numbers(20).reshape(5, 4) + step
        results = [function(x) for function in (eager, ours)]
        torch.testing.assert_close(results[1], results[0])
        for result in results:
            result.square().sum().backward()
    torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))
    # Batch norm of few rows divides by small deviations.
    torch.testing.assert_close(model.first.weight.grad, eager.first.weight.grad, rtol=1e-3, atol=1e-4)
    assert model.first.weight is model.second.weight
