"""Negated views, `z.conj().imag`: as inputs, overwritten and not, and within a graph, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Compile = Callable[..., Callable[..., Any]]


def conjugate() -> Tensor:
    return torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).conj()


def added_in_place(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def added_to_a_row(x: Tensor) -> Tensor:
    x[1].add_(x[0])
    return x


READING: dict[str, Callable[[Tensor], object]] = {
    "pointwise": lambda x: x * 2,
    "sum": lambda x: x.sum(),
    "copies": lambda x: (x.clone(), x.contiguous(), torch.cat([x, x]), x.resolve_neg()),
    "call": lambda x: torch.mm(x, x.t()),
    "view": lambda x: x[1:].flatten() + 1,
    "written": added_in_place,
    "written in part": added_to_a_row,
}


@pytest.mark.parametrize("name", READING)
def test_as_inputs(name: str, strictly: Compile) -> None:
    torch._dynamo.reset()
    function = READING[name]
    compiled = strictly(function)
    eager, ours = conjugate().imag, conjugate().imag
    torch.testing.assert_close(compiled(ours), function(eager))
    torch.testing.assert_close(ours, eager)
    assert ours.is_neg()


def test_beside_plain_inputs(strictly: Compile) -> None:
    torch._dynamo.reset()
    compiled = strictly(lambda x: x - 1)
    for x in (conjugate().real, conjugate().imag, conjugate().t().imag, conjugate()[1:].imag):
        torch.testing.assert_close(compiled(x), x - 1)


def test_copies_have_the_inputs_layout(strictly: Compile) -> None:
    torch._dynamo.reset()
    inner = conjugate().t()[1:].imag
    torch.testing.assert_close(strictly(lambda x: (x.stride(), x + 1))(inner), (inner.stride(), inner + 1))


def reads_both(z: Tensor) -> tuple[Tensor, Tensor]:
    return z.conj().imag * 2, z.conj().real + 1


def writes_a_negated_view(z: Tensor) -> tuple[Tensor, Tensor]:
    y = z.conj()
    y.imag.mul_(3)
    return z, y[0].imag + z.real[1]


def writes_and_returns_it(z: Tensor) -> tuple[Tensor, Tensor]:
    y = z.conj().imag
    y.add_(1)
    return y, z


@pytest.mark.parametrize("function", [reads_both, writes_a_negated_view, writes_and_returns_it])
def test_within_a_graph(function: Callable[[Tensor], object], strictly: Compile) -> None:
    torch._dynamo.reset()
    eager, ours = conjugate().resolve_conj(), conjugate().resolve_conj()
    torch.testing.assert_close(strictly(function)(ours), function(eager))
    torch.testing.assert_close(ours, eager)


def test_conjugates_that_are_negated_too(strictly: Compile) -> None:
    """The program takes the conjugate into account, and its memory holds numbers of the other sign."""

    def scaled(z: Tensor) -> Tensor:
        return z * 2 + 1

    def written(z: Tensor) -> Tensor:
        z.add_(1)
        return z * 2

    for function in (scaled, written):
        torch._dynamo.reset()
        eager, ours = (torch._neg_view(conjugate().resolve_conj()).conj() for _ in range(2))
        torch.testing.assert_close(strictly(function)(ours), function(eager))
        torch.testing.assert_close(ours, eager)
        assert ours.is_conj() and ours.is_neg()


def test_gradients(strictly: Compile) -> None:
    torch._dynamo.reset()

    def function(z: Tensor) -> Tensor:
        return (z.conj().imag.exp() * z.real).sum()

    z = conjugate().resolve_conj().requires_grad_()
    (ours,) = torch.autograd.grad(strictly(function)(z), z)
    (eager,) = torch.autograd.grad(function(z), z)
    torch.testing.assert_close(ours, eager)


def test_returned_copies_are_no_views(strictly: Compile) -> None:
    torch._dynamo.reset()

    def function(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (z * 2).conj().resolve_conj(), (z * 3).conj().clone(), (z * 4).conj()

    z = conjugate().resolve_conj()
    for ours, eager in zip(strictly(function)(z), function(z), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.is_conj() == eager.is_conj()


RETURNING: dict[str, Callable[[Tensor], Any]] = {
    "imaginary part": lambda z: (z * 2).conj().imag,
    "of real numbers": lambda z: torch.ops.aten._neg_view(z.real * 2),
    "views of it": lambda z: ((z * 2).conj().imag.t(), (z * 2).conj().imag[1:].flatten()),
    "beside its memory": lambda z: [(y := (z * 2).conj()), y.imag, y.real, y.imag[0]],
    "of the input": lambda z: (z.conj().imag, z.conj().imag.t()),
    "twice": lambda z: torch.ops.aten._neg_view((z * 2).conj().imag),
    "and read": lambda z: ((y := (z * 2).conj().imag), y.exp()),
    "and not": lambda z: ((z * 2).conj().imag, z.conj().imag + 1, (z * 2).conj().imag.resolve_neg()),
}


@pytest.mark.parametrize("name", RETURNING)
@pytest.mark.parametrize("gradients", [False, True])
def test_returned(name: str, gradients: bool, strictly: Compile) -> None:
    torch._dynamo.reset()
    z = conjugate().resolve_conj().requires_grad_(gradients)
    ours, eager = strictly(RETURNING[name])(z), RETURNING[name](z)
    pairs = [(ours, eager)] if isinstance(eager, Tensor) else zip(ours, eager, strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, check_stride=True)
        assert (one.is_neg(), one.is_conj()) == (other.is_neg(), other.is_conj())
        if gradients and not other.is_complex():
            found = [torch.autograd.grad(value.sum(), z, retain_graph=True)[0] for value in (one, other)]
            torch.testing.assert_close(found[0], found[1])
