"""Results that are views of inputs which overlap, and of which one is overwritten, lie where eager's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

Pair = Callable[[Tensor], tuple[Tensor, Tensor]]
PAIRS: dict[str, Pair] = {
    "equal": lambda base: (base[:6], base[:6]),
    "equal matrices": lambda base: (base.view(3, 4), base.view(3, 4)),
    "shifted": lambda base: (base[:6], base[2:8]),
    "a part of the whole": lambda base: (base, base[3:7]),
    "transposed": lambda base: (base[:9].view(3, 3), base[:9].view(3, 3).t()),
    "interleaved": lambda base: (base[::2], base[1::2]),
    "expanded": lambda base: (base[:3], base[:1].expand(3)),
    "columns": lambda base: (base.view(3, 4)[:, :2], base.view(3, 4)[:, 1:3]),
    "of another shape": lambda base: (base, base.view(3, 4)),
}


def view_of_other(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y[:2]


def view_of_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x[:1], y[:1]


def returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = y + 1
    return x.mul_(2), z, y[-1:]


def both_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    y = y.mul_(y.numel()) if y.is_contiguous() else y
    return y.t() if y.dim() == 2 else y.view(-1), x * y.sum()


PROGRAMS = [view_of_other, view_of_written, returned, both_written]


def describe(results: Any, base: Tensor) -> list[object]:
    """Values, places and aliases of results."""
    tensors = list(results) if isinstance(results, tuple) else [results]
    storage = base.untyped_storage().data_ptr()
    return [
        (value.tolist(), value.stride(), value.storage_offset(), value._is_view())
        if value.untyped_storage().data_ptr() == storage
        else value.tolist()
        for value in tensors
    ] + [base.tolist()]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", PAIRS)
def test_views_lie_where_eagers_do(name: str, function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    found, expected = torch.arange(12.0), torch.arange(12.0)
    ours = torch.compile(function, backend=backend, dynamic=False)
    for _ in range(2):
        given, wanted = PAIRS[name](found), PAIRS[name](expected)
        results, eager = ours(*given), function(*wanted)
        assert describe(results, found) == describe(eager, expected)
        if isinstance(eager, tuple):
            pairs = zip(results, eager, strict=True)
            assert all((mine is given[0]) == (theirs is wanted[0]) for mine, theirs in pairs)


@pytest.mark.parametrize("name", ["equal", "shifted", "columns"])
def test_of_open_sizes(name: str) -> None:
    torch._dynamo.reset()
    ours = torch.compile(view_of_written, backend=backend, dynamic=True)
    for _ in range(2):
        found, expected = torch.arange(12.0), torch.arange(12.0)
        wanted = describe(view_of_written(*PAIRS[name](expected)), expected)
        assert describe(ours(*PAIRS[name](found)), found) == wanted


@pytest.mark.parametrize("name", ["equal", "shifted", "transposed", "interleaved", "columns"])
def test_gradients_flow_through_views(name: str) -> None:
    def run(function: Callable[..., Any]) -> list[Tensor]:
        weight = torch.arange(12.0, requires_grad=True)
        base = weight * 2
        first, second = function(*PAIRS[name](base))
        (first.sin().sum() + (second * base.sum()).sum()).backward()
        assert weight.grad is not None
        return [first.detach(), second.detach(), base.detach(), weight.grad]

    torch._dynamo.reset()
    ours = torch.compile(view_of_written, backend=backend, dynamic=False)
    for mine, theirs in zip(run(ours), run(view_of_written), strict=True):
        torch.testing.assert_close(mine, theirs)


class Buffers(torch.nn.Module):
    """Two buffers in one storage, of which one is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(6.0)
        self.register_buffer("first", base[:4])
        self.register_buffer("second", base[2:])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.get_buffer("first"), self.get_buffer("second")
        first.add_(x)
        return second[:3], first[1:] * x


def test_buffers_that_overlap() -> None:
    torch._dynamo.reset()
    mine, theirs = Buffers(), Buffers()
    ours = torch.compile(mine, backend=backend, dynamic=False)
    for _ in range(2):
        for found, expected in zip(ours(torch.ones(())), theirs(torch.ones(())), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.storage_offset() == expected.storage_offset()
