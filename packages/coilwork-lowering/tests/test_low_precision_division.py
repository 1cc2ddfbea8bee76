"""Remainders and rounded quotients of 16 bit floats: eager's roundings decide which integer comes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lowering_against_eager import assert_as_eager
from torch import Tensor

aten = torch.ops.aten
LOW = [torch.bfloat16, torch.float16]
SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 0.7, 0.1, 3.0, -3.0, 448.0]


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    special = torch.tensor(SPECIAL)
    a = torch.cat([special.repeat_interleave(len(SPECIAL)), 5 * torch.randn(4000, generator=generator)])
    b = torch.cat([special.repeat(len(SPECIAL)), torch.randn(4000, generator=generator)])
    return a.to(dtype), b.to(dtype)


TENSORS: dict[str, Callable[..., Any]] = {
    "remainder": aten.remainder.Tensor,
    "fmod": aten.fmod.Tensor,
    "floor_divide": aten.floor_divide.default,
    "div floor": partial(aten.div.Tensor_mode, rounding_mode="floor"),
    "div trunc": partial(aten.div.Tensor_mode, rounding_mode="trunc"),
}
NUMBERS: dict[str, Callable[..., Any]] = {
    "remainder": aten.remainder.Scalar,
    "fmod": aten.fmod.Scalar,
    "floor_divide": aten.floor_divide.Scalar,
    "div floor": partial(aten.div.Scalar_mode, rounding_mode="floor"),
    "div trunc": partial(aten.div.Scalar_mode, rounding_mode="trunc"),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", TENSORS)
def test_by_a_tensor(name: str, dtype: torch.dtype) -> None:
    assert_as_eager(lambda a, b: TENSORS[name](a, b), *operands(dtype), tolerance=0.0)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("number", [0.7, 0.1, -0.3, 3])
@pytest.mark.parametrize("name", NUMBERS)
def test_by_a_number(name: str, number: float, dtype: torch.dtype) -> None:
    a, _ = operands(dtype)
    assert_as_eager(lambda a: NUMBERS[name](a, number), a, tolerance=0.0)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", TENSORS)
def test_by_a_single_element(name: str, dtype: torch.dtype) -> None:
    a, b = operands(dtype)
    assert_as_eager(lambda a, b: TENSORS[name](a, b), a, torch.tensor(0.7), tolerance=0.0)
    assert_as_eager(lambda a, b: TENSORS[name](a, b), a, b[200:201], tolerance=0.0)


@pytest.mark.parametrize("dtype", LOW)
def test_of_a_number(dtype: torch.dtype) -> None:
    _, b = operands(dtype)
    assert_as_eager(lambda b: aten.remainder.Scalar_Tensor(3.3, b), b, tolerance=0.0)
    assert_as_eager(lambda a, b: aten.remainder.Tensor(a, b), torch.tensor(0.7), b, tolerance=0.0)


def test_the_rounding_matters() -> None:
    a, b = torch.tensor([1.0, 1.0]).bfloat16(), torch.tensor([0.1, 0.1]).bfloat16()
    assert aten.div.Tensor_mode(a, b, rounding_mode="trunc").tolist() == [10, 10]
    assert aten.div.Tensor_mode(a.float(), b.float(), rounding_mode="trunc").tolist() == [9, 9]
