"""Kernels that were compiled for aligned memory, called with memory that is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coilwork.backend import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

ROWS, COLUMNS = 64, 1024


def normal(*shape: int, offset: int) -> Tensor:
    """Random numbers that start `offset` elements into their memory, which torch aligns."""
    count = torch.Size(shape).numel()
    return torch.randn(count + offset, device="cuda", dtype=torch.bfloat16)[offset:].view(shape)


def loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(functional.layer_norm(x, (COLUMNS,), weight), target)


def test_saved_inputs_of_a_training_step() -> None:
    compiled = torch.compile(loss, backend=backend, options={"strict": True})
    target = torch.randint(0, COLUMNS, (ROWS,), device="cuda")
    for offset in (0, 1):
        x = normal(ROWS, COLUMNS, offset=offset).requires_grad_()
        weight = normal(COLUMNS, offset=offset).requires_grad_()
        exact = [t.detach().double().requires_grad_() for t in (x, weight)]
        wanted = torch.autograd.grad(loss(exact[0], exact[1], target), exact)
        got = torch.autograd.grad(compiled(x, weight, target), (x, weight))
        for found, right in zip(got, wanted, strict=True):
            torch.testing.assert_close(found.double(), right, rtol=0.05, atol=1e-4)
