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


def run(function: Callable[..., Tensor], operands: Operands, device: str) -> list[Tensor]:
    """The result, and gradients of both factors."""
    left, right = (one.to(device).requires_grad_() for one in operands[:2])
    result = function(left, right, None if operands[2] is None else operands[2].to(device))
    result.float().square().sum().backward()
    assert left.grad is not None and right.grad is not None
    return [result.detach(), left.grad, right.grad]


def compare(name: str, device: str) -> None:
    """Fail unless what is compiled gives what eager does."""
    torch._dynamo.reset()
    with no_fallback():
        found = run(torch.compile(experts, backend=backend), CASES[name], device)
    for mine, its in zip(found, run(experts, CASES[name], device), strict=True):
        # a kernel that applies an activation does not round the product to 16 bits before
        torch.testing.assert_close(mine, its, rtol=2e-2, atol=4e-2)
        assert mine.stride() == its.stride()


@pytest.mark.parametrize("name", CASES)
def test_groups_are_multiplied_as_in_eager_mode(name: str) -> None:
    compare(name, "cpu")
