"""Python floats that differ from call to call, which are captured as tensors: sums scaled by an `alpha`, and
gradients that a float decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

NUMBERS = (1.5, 2.5, 0.3, -0.7)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options={"strict": True})


def values(seed: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


SCALED_SUMS: dict[str, Callable[[Tensor, float], Any]] = {
    "add": lambda x, n: torch.add(x, n, alpha=2),
    "sub": lambda x, n: x.sub(n, alpha=3),
    "in place": lambda x, n: x.clone().add_(n, alpha=2),
    "subtracted in place": lambda x, n: x.clone().sub_(n, alpha=-2.5),
    "by the number itself": lambda x, n: x.add(n, alpha=n),
    "by a size": lambda x, n: x.add(n, alpha=x.shape[0]),
    "of integers": lambda x, n: torch.add((4 * x).to(torch.int32), n, alpha=2),
    "operator": lambda x, n: torch.ops.aten.sub.Scalar(x, n, 2),
    "not scaled": lambda x, n: (x.add(n), x.add(n, alpha=1), torch.rsub(x, n, alpha=2)),
}


@pytest.mark.parametrize("name", SCALED_SUMS)
def test_a_scaled_float(name: str) -> None:
    ours = compiled(SCALED_SUMS[name])
    for number in NUMBERS:
        torch.testing.assert_close(ours(values(0), number), SCALED_SUMS[name](values(0), number))


def test_a_scaled_float_out_of_a_tensor() -> None:
    def total(x: Tensor, number: Tensor) -> Tensor:
        return x.add(number.item(), alpha=2).sum()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        ours = compiled(total)
        for number in NUMBERS:
            mine, its = values(0).requires_grad_(), values(0).requires_grad_()
            got, wanted = ours(mine, torch.tensor(number)), total(its, torch.tensor(number))
            got.backward()
            wanted.backward()
            torch.testing.assert_close((got, mine.grad), (wanted, its.grad))


def test_a_float_that_decides_a_gradient_beside_one_that_is_computed_with() -> None:
    def mixed(x: Tensor, y: Tensor, n: float) -> Tensor:
        return torch.lerp(x, y, n) * torch.addcdiv(x, x, y, value=n)

    ours = compiled(mixed)
    for number in NUMBERS:
        mine = [values(seed).requires_grad_() for seed in (1, 2)]
        its = [values(seed).requires_grad_() for seed in (1, 2)]
        got, wanted = ours(*mine, number), mixed(*its, number)
        got.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close([x.grad for x in mine], [x.grad for x in its])
