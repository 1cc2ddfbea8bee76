"""Numbers beside 16-bit floats: on CPUs eager rounds them to that type before it compares, adds or takes
powers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_against_eager import assert_as_eager

HALVES = (torch.float16, torch.bfloat16)
NUMBERS = (0.1, 1 / 3, -1.7, 2049, 2049.0, 1e5, -70000.0, 1e-9, 1e39, -1e39, math.inf, 3, True)

ROUNDING: dict[str, Callable[..., Any]] = {
    "eq": lambda x, n: x == n,
    "ne": lambda x, n: x != n,
    "lt": lambda x, n: x < n,
    "le": lambda x, n: x <= n,
    "gt": lambda x, n: x > n,
    "ge": lambda x, n: x >= n,
    "add": torch.add,
    "sub": torch.sub,
    "rsub": torch.rsub,
    "xlogy": torch.xlogy,
    "xlogy of a number": lambda x, n: torch.xlogy(n, x),
    "pow of a number": lambda x, n: torch.pow(n, x),
}


def values(dtype: torch.dtype) -> torch.Tensor:
    given = [1.0, 2.5, -3.0, 0.0, 0.1, 1 / 3, -1.7, 2048.0, 60000.0, -60000.0, 5e-5, math.inf, -math.inf]
    return torch.tensor(given, dtype=dtype)


def beside(function: Callable[..., Any], number: object) -> Callable[..., Any]:
    return lambda x: function(x, number)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ROUNDING)
def test_numbers_are_rounded_where_eager_rounds_them(name: str, dtype: torch.dtype) -> None:
    function = ROUNDING[name]
    for number in NUMBERS:
        if name in ("sub", "rsub") and number is True:
            continue  # refused
        assert_as_eager(beside(function, number), values(dtype))


def test_products_take_numbers_as_they_are() -> None:
    for number in (0.1, 2049.0, 1 / 3):
        assert_as_eager(beside(lambda x, n: (x * n, x / n), number), values(torch.float16))
