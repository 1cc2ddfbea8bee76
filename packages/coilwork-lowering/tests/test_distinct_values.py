"""Distinct values: positions and counts are integers, whatever the values are."""

from __future__ import annotations

import pytest
import torch

from coilwork_lowering.torch_compat.operators import kernel_dtype

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (aten.unique_dim.default, (0, True, True, True)),
        (aten._unique2.default, (True, True, True)),
        (aten.unique_consecutive.default, (True, True)),
    ],
)
def test_types_are_those_of_the_kernels(call: torch._ops.OpOverload, arguments: tuple[object, ...]) -> None:
    made = call(torch.tensor([[1.5, 2.0], [1.5, 2.0]]), *arguments)
    assert [kernel_dtype(call, number) or made[0].dtype for number in range(3)] == [one.dtype for one in made]


def test_other_operators_are_taken_at_their_word() -> None:
    assert kernel_dtype(aten.sort.default, 1) is None
    assert kernel_dtype(len, 1) is None
