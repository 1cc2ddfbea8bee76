"""Numbers beside 16 bit floats: eager's kernels get them in the tensors' type where that decides a
comparison, or on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lowering_against_eager import assert_as_eager
from torch import Tensor

aten = torch.ops.aten
LOW = [torch.bfloat16, torch.float16]
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def values(dtype: torch.dtype) -> Tensor:
    """Whole vectors: elements behind the last are rounded more often by eager's kernels."""
    x = 2 * torch.randn(64, generator=torch.Generator().manual_seed(2))
    x[:8] = torch.tensor([0.1, 0.3, 0.7, -0.1, -0.3, -0.7, 3.3, 300.0])
    return x.to(dtype)


@pytest.mark.parametrize("number", [0.1, 0.3, -0.7, 3.3])
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_with_numbers_are_those_of_eager(name: str, dtype: torch.dtype, number: float) -> None:
    compare = getattr(aten, name)
    assert_as_eager(lambda a: compare.Scalar(a, number), values(dtype))
    for other in (torch.float32, torch.float64):
        assert_as_eager(compare.Tensor, values(dtype), torch.tensor(number, dtype=other))
    # there, the tensors are brought to the type of the wider one
    assert_as_eager(compare.Tensor, values(dtype), torch.full((64,), number))


BY_A_NUMBER: dict[str, Callable[[Tensor], Tensor]] = {
    "hardshrink": lambda a: aten.hardshrink(a, 0.3),
    "add": lambda a: aten.add.Tensor(a, 0.1),
    "add a tensor of one": lambda a: aten.add.Tensor(a, torch.tensor(0.1, dtype=torch.float64)),
    "add a part": lambda a: aten.add.Tensor(a, a.flip(0), alpha=0.3),
    "sub": lambda a: aten.sub.Tensor(a, 0.1),
    "sub a part": lambda a: aten.sub.Tensor(a, a.flip(0), alpha=0.3),
    "rsub": lambda a: aten.rsub.Scalar(a, 0.7),
    "mul": lambda a: aten.mul.Tensor(a, 0.1),
    "pow": lambda a: aten.pow.Tensor_Scalar(a.abs(), 1 / 3),
    "pow of a number": lambda a: aten.pow.Scalar(3.3, a),
    "foreach": lambda a: torch._foreach_add([a], [a.flip(0)], alpha=0.3)[0],
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", BY_A_NUMBER)
def test_by_a_number(name: str, dtype: torch.dtype) -> None:
    # eager's kernels without vectors round every element more often
    units = 2.0 if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else 0.0
    assert_as_eager(BY_A_NUMBER[name], values(dtype), tolerance=units * torch.finfo(dtype).eps)
