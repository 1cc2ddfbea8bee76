"""Backward graphs that are given batches of gradients at once, or gradients that carry tangents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from coilwork.backend import backend

FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "any sizes": {"dynamic": True},
    "python": {"options": {"executor": "python"}},
    "checked": {"options": {"check": True}},
    "looked at for nan": {"options": {"check_nan": "kernels"}},
}


def scaled(x: Tensor) -> Tensor:
    return x.sin() * x.sum()


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_gradients_before_and_after_single_ones(form: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Softmax(-1), nn.Linear(4, 2))
    compiled = torch.compile(model, backend=backend, **FORMS[form])
    x = torch.randn(2, 3, requires_grad=True)
    sources = [x, *model.parameters()]
    many = torch.eye(4).view(4, 2, 2)
    for directions, batched in ((many, True), (torch.ones(2, 2), False), (many * 2, True)):
        found, expected = (
            torch.autograd.grad(function(x), sources, directions, is_grads_batched=batched)
            for function in (compiled, model)
        )
        torch.testing.assert_close(found, expected)


def test_a_vectorised_jacobian() -> None:
    compiled = torch.compile(scaled, backend=backend)
    x = torch.randn(3, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.functional.jacobian(compiled, x, vectorize=True)
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(scaled, x))


def test_gradients_that_carry_tangents() -> None:
    def tangent(function: Any) -> Tensor | None:
        x = torch.arange(3.0).requires_grad_()
        result = function(x)
        with forward_ad.dual_level():
            direction = forward_ad.make_dual(torch.ones(3), torch.arange(3.0))
            (gradient,) = torch.autograd.grad(result, x, direction)
            found: Tensor | None = forward_ad.unpack_dual(gradient).tangent
            return found

    expected = tangent(scaled)
    assert expected is not None
    torch.testing.assert_close(tangent(torch.compile(scaled, backend=backend)), expected)
