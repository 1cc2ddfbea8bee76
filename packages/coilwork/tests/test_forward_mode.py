"""Tangents of forward-mode differentiation reach the results of compiled functions, whenever these were
compiled.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.autograd import forward_ad

from coilwork.backend import backend

FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "any sizes": {"dynamic": True},
    "strict": {"options": {"strict": True}},
    "python": {"options": {"executor": "python"}},
    "checked": {"options": {"check": True}},
}


def scaled(x: Tensor) -> Tensor:
    return x.sin() * x.sum()


def tangent(function: Any, x: Tensor, direction: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        found: Tensor | None = forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent
        return found


@pytest.mark.parametrize("form", FORMS)
def test_tangents_after_calls_without(form: str) -> None:
    compiled = torch.compile(scaled, backend=backend, **FORMS[form])
    x, direction = torch.arange(3.0), torch.tensor([1.0, -2.0, 0.5])
    for _ in range(2):
        torch.testing.assert_close(compiled(x), scaled(x))
        torch.testing.assert_close(tangent(compiled, x, direction), tangent(scaled, x, direction))


def test_a_module_with_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    compiled = torch.compile(model, backend=backend)
    x, direction = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(tangent(compiled, x, direction), tangent(model, x, direction))
    torch.testing.assert_close(compiled(x), model(x))


def test_plain_tensors_within_a_level() -> None:
    with forward_ad.dual_level():
        found = torch.compile(scaled, backend=backend)(torch.arange(3.0))
        assert forward_ad.unpack_dual(found).tangent is None
    torch.testing.assert_close(found, scaled(torch.arange(3.0)))


def test_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(scaled, backend=backend)
    with caplog.at_level(logging.WARNING, "coilwork"):
        compiled(torch.arange(3.0))
        assert not caplog.messages
        tangent(compiled, torch.arange(3.0), torch.ones(3))
    assert any("forward-mode" in message for message in caplog.messages)


def test_rows_that_must_not_depend_on_their_batch_are_an_error() -> None:
    compiled = torch.compile(scaled, backend=backend, options={"batch_invariant": True})
    compiled(torch.arange(3.0))
    with pytest.raises(BackendCompilerFailed, match=r"forward-mode.*\n.*\n.*torch\.func\.jvp"):
        tangent(compiled, torch.arange(3.0), torch.ones(3))
