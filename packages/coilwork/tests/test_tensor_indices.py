"""Indices that are numbers in tensors, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

INDEXED: dict[str, Callable[..., Tensor]] = {
    "rows": lambda x, n, m, i, b: x[n],
    "columns": lambda x, n, m, i, b: x[:, n],
    "behind positions": lambda x, n, m, i, b: x[i, n],
    "far behind positions": lambda x, n, m, i, b: x[i, :, n],
    "around a slice": lambda x, n, m, i, b: x[n, 1::2, i],
    "behind a mask": lambda x, n, m, i, b: x[b, n],
    "behind an ellipsis": lambda x, n, m, i, b: x[..., n, None, 1] + x[m],
    "read by the program": lambda x, n, m, i, b: x[:, n.item()] + x[n.item(), 1] + x[0, 1:, n.item()].sum(),
    "read and changed": lambda x, n, m, i, b: x[..., m.item() + 1, 0] + x[n, m.item()],
}


def operands(n: int) -> tuple[Tensor, ...]:
    return (
        torch.arange(64.0).view(4, 4, 4),
        torch.tensor(n),
        torch.tensor(1),
        torch.tensor([3, 0]),
        torch.arange(16).view(4, 4) % 3 == 0,
    )


def stored(x: Tensor, n: Tensor, m: Tensor, i: Tensor, b: Tensor) -> Tensor:
    x = x.clone()
    x[n] = 5
    x[m].add_(10)
    x[..., n].mul_(2)
    x[i, n] = 1.5
    x[0, n.item()] = 7
    x[:, m.item(), n] += 2
    return x


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, fullgraph=True, options={"strict": True})


@pytest.mark.parametrize("form", INDEXED)
def test_read(form: str) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        ours = compiled(INDEXED[form])
        for n in (-4, 3):
            torch.testing.assert_close(ours(*operands(n)), INDEXED[form](*operands(n)))
        with pytest.raises((RuntimeError, IndexError)):
            ours(*operands(4))


def test_written() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        ours = compiled(stored)
        for n in (-2, 0, 3):
            torch.testing.assert_close(ours(*operands(n)), stored(*operands(n)))
        with pytest.raises((RuntimeError, IndexError)):
            ours(*operands(-5))
