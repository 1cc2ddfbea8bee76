"""Strides of eager's elementwise results are found from those of the operands."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from coilwork_lowering.decompositions.strides import predict_elementwise_strides


def operand(shape: Sequence[int], draw: random.Random) -> Tensor:
    """Broadcast along some dimensions of `shape`, without some of the first ones, in any order, with gaps or
    expanded.
    """
    missing = draw.choice([0, 0, 0, 1, 2])
    sizes = [size if draw.random() < 0.7 else 1 for size in shape][missing:]
    order = draw.sample(range(len(sizes)), len(sizes))
    strides, step = [0] * len(sizes), 1
    for dim in order:
        strides[dim] = step if sizes[dim] > 1 or draw.random() < 0.7 else draw.choice([1, 7, step])
        step *= sizes[dim] * draw.choice([1, 1, 1, 2])
    value = torch.empty(3 * step + 50).as_strided(sizes, strides)
    return value.expand(shape[missing:]) if draw.random() < 0.15 else value


KERNELS: dict[int, Callable[..., Tensor]] = {1: torch.sin, 2: torch.add, 3: torch.addcmul}


@pytest.mark.parametrize("count", KERNELS)
def test_operands_at_random(count: int) -> None:
    draw = random.Random(count)
    for _ in range(1000):
        shape = [draw.choice([1, 1, 2, 3, 5, 5]) for _ in range(draw.choice([1, 2, 3, 4, 4, 5]))]
        operands = [operand(shape, draw) for _ in range(count)]
        result = KERNELS[count](*operands)
        found = predict_elementwise_strides(result.shape, *operands)
        assert found is not None
        assert tuple(found) == result.stride(), [(value.shape, value.stride()) for value in operands]
