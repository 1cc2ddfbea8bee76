"""Inputs that are overwritten share memory with others in one call, and not, or elsewhere, in the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

Pair = Callable[[Tensor], Sequence[Tensor]]
PAIRS: dict[str, Pair] = {
    "apart": lambda base: (base[:4], torch.ones(4)),
    "side by side": lambda base: (base[:4], base[4:]),
    "the first halfway in the second": lambda base: (base[2:6], base[:4]),
    "the second halfway in the first": lambda base: (base[:4], base[2:6]),
    "farther in": lambda base: (base[:4], base[1:5]),
    "as far, behind": lambda base: (base[1:5], base[3:7]),
    "equal": lambda base: (base[:4], base[:4]),
    "in a longer storage": lambda base: (lambda longer: (longer[:4], longer[2:6]))(base.repeat(2)),
    "of a matrix": lambda base: (lambda matrix: (matrix.view(-1)[:4], matrix[0]))(base.view(2, 4)),
}


def before(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return y + x


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = y.sin()
    x.mul_(2)
    y.add_(1)
    return y + x, z


def same(function: Callable[..., Any], compiled: Callable[..., Any], pair: Pair) -> None:
    given, expected = torch.arange(8.0), torch.arange(8.0)
    torch.testing.assert_close(compiled(*pair(given)), function(*pair(expected)))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("function", [before, both], ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", PAIRS)
def test_inputs_lie_otherwise_in_later_calls(
    first: str, function: Callable[..., Any], dynamic: bool | None
) -> None:
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for pair in (PAIRS[first], *PAIRS.values(), PAIRS[first]):
        same(function, compiled, pair)


def test_what_runs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(before, backend=backend, dynamic=False)
    with caplog.at_level(logging.WARNING, "coilwork"):
        for name in ("apart", "side by side", "apart"):
            same(before, compiled, PAIRS[name])
        assert not caplog.messages
        same(before, compiled, PAIRS["farther in"])
    assert any("share memory in another way" in message for message in caplog.messages)


def test_inputs_that_nobody_writes_may_share_memory(caplog: pytest.LogCaptureFixture) -> None:
    def written_beside(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        z.add_(1)
        return x + y + z

    compiled = torch.compile(written_beside, backend=backend, dynamic=False)
    with caplog.at_level(logging.WARNING, "coilwork"):
        for name in ("apart", "equal", "farther in"):
            base, others = torch.arange(8.0), (torch.zeros(4), torch.zeros(4))
            found = compiled(*PAIRS[name](base), others[0])
            torch.testing.assert_close(found, written_beside(*PAIRS[name](base), others[1]))
    assert not caplog.messages


def test_inputs_of_no_elements() -> None:
    compiled = torch.compile(before, backend=backend, dynamic=True)
    for count in (3, 0, 2):
        x, y = torch.ones(count), torch.ones(count)
        torch.testing.assert_close(compiled(x, y), torch.full((count,), 3.0))
