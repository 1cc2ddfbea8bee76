"""Functions whose inputs and results have roles, by every driver of programs: what the caller sees is
eager's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

DRIVERS = (
    {"executor": "native"},
    {"executor": "python"},
    {"wrapper": "fx"},
)


def shared(x: Tensor) -> list[Any]:
    doubled = x * 2
    return [doubled, doubled.t(), doubled, doubled.data, *doubled.split([1, 3]), (x * 3).t()]


def shared_and_numbers(x: Tensor) -> list[Any]:
    return [x + 1, True, 0.5, x.view(-1), x.shape[0]]


def updated(x: Tensor) -> list[Any]:
    x.mul_(2)
    return [x + 1, x.t()]


def marked(x: Tensor) -> list[Any]:
    made = torch.complex(x, x + 1)
    return [made.conj(), made.conj().imag]


def exchanged(x: Tensor) -> list[Any]:
    x.data = torch.cat([x, x])
    return [x + 1]


def sparse(x: Tensor) -> list[Any]:
    return [torch.sparse_coo_tensor(torch.tensor([[0, 1, 2, 3]]), x * 2, (8, 4)), x + 1]


def plain() -> Tensor:
    return torch.arange(16.0).view(4, 4)


def unaligned() -> Tensor:
    return torch.arange(17.0)[1:].view(4, 4)


def negated() -> Tensor:
    return torch._neg_view(plain())


INFERENCE: tuple[tuple[Callable[[Tensor], list[Any]], Callable[[], Tensor]], ...] = (
    (shared, plain),
    (shared_and_numbers, plain),
    (updated, unaligned),
    (updated, negated),
    (marked, plain),
    (exchanged, plain),
    (sparse, plain),
)


def describe(values: Sequence[Any]) -> list[Any]:
    """Values, objects, memory, views, marks, layouts, and whose writes are counted together."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    strided = [value for value in tensors if value.layout == torch.strided]
    found: list[Any] = [value for value in values if not isinstance(value, Tensor)]
    for value in tensors:
        first = next(k for k, other in enumerate(tensors) if other is value)
        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        found.append((dense.resolve_conj().resolve_neg().tolist(), first, value._is_view(), value.layout))
    for value in strided:
        storage = value.untyped_storage().data_ptr()
        shown = [other.untyped_storage().data_ptr() == storage for other in strided]
        found.append((shown, value.shape, value.stride(), value.is_neg(), value.is_conj()))
    for value in strided:
        before = [other._version for other in strided]
        torch._C._autograd._unsafe_set_version_counter((value,), (max(before) + 1,))
        found.append([other._version != old for other, old in zip(strided, before, strict=True)])
    return found


def by_driver(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(function, backend=backend, options={"strict": True, **options})
    return made


@pytest.mark.parametrize("options", DRIVERS, ids=lambda options: next(iter(options.values())))
def test_results_are_eager(options: dict[str, Any]) -> None:
    for function, make in INFERENCE:
        given, expected = make(), make()
        compiled = by_driver(function, options)
        for _ in range(2):
            found, wanted = compiled(given), function(expected)
            assert describe([given, *found]) == describe([expected, *wanted]), function.__name__


@pytest.mark.parametrize("options", DRIVERS, ids=lambda options: next(iter(options.values())))
def test_gradients_are_eager(options: dict[str, Any]) -> None:
    """What is saved of a weight is counted with it, and gradients are sparse."""

    def function(x: Tensor, weight: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.nn.functional.embedding(torch.arange(4), table, sparse=True)
        made = torch.tanh(x @ weight.t()) + rows
        return made, made.t()

    compiled = by_driver(function, options)
    found = []
    for call in (function, compiled):
        x, weight, table = ((plain() / 16).requires_grad_() for _ in range(3))
        made, turned = call(x, weight, table)
        (made.sum() + turned.sum()).backward()
        made, turned = call(x, weight, table)
        with torch.no_grad():
            weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.sum().backward()
        assert table.grad is not None and weight.grad is not None
        found.append((weight.grad, table.grad.to_dense(), table.grad.layout, made._is_view()))
    for eager, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager) if isinstance(eager, Tensor) else None
        assert isinstance(eager, Tensor) or eager == ours


@pytest.mark.parametrize("options", DRIVERS, ids=lambda options: next(iter(options.values())))
def test_batches_of_gradients_are_eager(options: dict[str, Any]) -> None:
    """The graph's operators run."""

    def function(x: Tensor) -> Tensor:
        return torch.tanh(x) * 2

    directions = torch.stack([torch.ones(4, 4), plain()])
    found = []
    for call in (function, by_driver(function, options)):
        x = (plain() / 16).requires_grad_()
        found += torch.autograd.grad(call(x), x, directions, is_grads_batched=True)
    torch.testing.assert_close(found[1], found[0])
