"""What a bad call is, and tensors that most of them are made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BadCall:
    """`function` refuses `given`, and takes `good` if that is known; gradients are taken if it is of
    `training`.
    """

    function: Callable[..., Any]
    given: tuple[Any, ...]
    good: tuple[Any, ...] | None = None
    training: bool = False


def grid(*shape: int) -> Tensor:
    """Return different numbers from 1 on."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def integers(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return a vector of `values`."""
    return torch.tensor(values, dtype=dtype)


MATRIX: Final = grid(4, 6)
LONGER: Final = grid(5, 6)
WIDER: Final = grid(4, 7)
SQUARE: Final = grid(4, 4)
ROW: Final = grid(6)
PLANE: Final = grid(2, 3, 6, 6)
NUMBERS: Final = torch.arange(24).reshape(4, 6)
FLAGS: Final = MATRIX > 7
