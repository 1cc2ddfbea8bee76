"""Products of groups of unequal size, as experts of a mixture are, compiled with their surroundings, and
gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend
from integration_tests.model_checks import no_fallback

Operands = tuple[Tensor, Tensor, Tensor | None]


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).bfloat16()


def ends(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


# the second group is empty
CASES: dict[str, Operands] = {
    "rows": (drawn(24, 16), drawn(3, 16, 8), ends(8, 8, 24)),
    "columns": (drawn(3, 8, 16), drawn(16, 24), ends(8, 8, 24)),
    "terms": (drawn(16, 24), drawn(24, 8), ends(8, 8, 24)),
    "one size": (drawn(3, 8, 16), drawn(3, 16, 8), None),
}


def experts(left: Tensor, right: Tensor, at: Tensor | None) -> Tensor:
    """An activation before the product, and one behind it."""
    return torch.nn.functional.silu(torch._grouped_mm(torch.relu(left), right, offs=at))


def experts_by_loops(left: Tensor, right: Tensor, at: Tensor | None) -> Tensor:
    """The same, a product for each group, in any type."""
    left = torch.relu(left)
    if at is None:
        return torch.nn.functional.silu(left @ right)
    limits = at.tolist()
    groups = list(enumerate(zip([0, *limits[:-1]], limits, strict=True)))
    if left.dim() == 2 and right.dim() == 3:
        product = torch.cat([left[start:end] @ right[g] for g, (start, end) in groups])
    elif right.dim() == 2 and left.dim() == 3:
        product = torch.cat([left[g] @ right[:, start:end] for g, (start, end) in groups], -1)
    else:
        product = torch.stack([left[:, start:end] @ right[start:end] for _, (start, end) in groups])
    return torch.nn.functional.silu(product)


def run(function: Callable[..., Tensor], operands: Operands, device: str) -> list[Tensor]:
    """The result, and gradients of both factors."""
    left, right = (one.detach().to(device, copy=True).requires_grad_() for one in operands[:2])
    result = function(left, right, None if operands[2] is None else operands[2].to(device))
    (result if result.dtype is torch.float64 else result.float()).square().sum().backward()
    assert left.grad is not None and right.grad is not None
    return [result.detach(), left.grad, right.grad]


def compare(name: str, device: str) -> None:
    """Fail if what is compiled is further from float64 than eager, which rounds each product to 16 bits."""
    torch._dynamo.reset()
    left, right, at = CASES[name]
    with no_fallback():
        found = run(torch.compile(experts, backend=backend), CASES[name], device)
    eager = run(experts, CASES[name], device)
    exact = run(experts_by_loops, (left.double(), right.double(), at), device)
    for mine, its, true in zip(found, eager, exact, strict=True):
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
        assert (mine - true).norm() <= 1.1 * (its - true).norm()


@pytest.mark.parametrize("name", CASES)
def test_groups_are_multiplied_as_in_eager_mode(name: str) -> None:
    compare(name, "cpu")
