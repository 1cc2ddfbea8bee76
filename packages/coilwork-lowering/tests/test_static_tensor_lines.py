"""Integers on a line, rounded down and stopped at its ends, are found again; others are not taken
for such.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, arange

from coilwork_lowering.facts.static_tensors import Line, fit_line


def on_line(line: Line, count: int) -> Tensor:
    return torch.div(arange(count) * line.factor + line.offset, line.divisor, rounding_mode="floor")


@given(st.integers(0, 90), st.integers(-90, 90), st.integers(1, 40), st.integers(2, 50), st.integers(0, 30))
def test_a_line_gives_its_values(factor: int, offset: int, divisor: int, count: int, size: int) -> None:
    values = on_line(Line(factor, offset, divisor), count).clamp(0, size)
    found = fit_line(values)
    if found is None:
        return
    assert torch.equal(on_line(found, count).clamp(int(values[0]), int(values[-1])), values)


@pytest.mark.parametrize("tap", [-1, 0, 1, 2])
@pytest.mark.parametrize("size", [9, 128, 1000])
@pytest.mark.parametrize("scale", [2.3, 1.7, 0.3, 0.77, 1.1, 3.14159, 1 / 3, 5.5])
def test_scales_are_found(scale: float, size: int, tap: int) -> None:
    count = int(size * scale)
    source = (arange(count, dtype=torch.float32) + 0.5) * (1 / scale) - 0.5
    values = (source.floor().to(torch.int64) + tap).clamp(0, size - 1)
    if values[0] == values[-1]:
        assert fit_line(values) is None
        return
    found = fit_line(values)
    assert found is not None
    assert torch.equal(on_line(found, count).clamp(int(values[0]), int(values[-1])), values)


def test_the_simplest_slope_is_found() -> None:
    assert fit_line(arange(230) * 10 // 23) == Line(10, 0, 23)
    assert fit_line(arange(7) * 3 - 4) == Line(3, -4, 1)


@pytest.mark.parametrize(
    "values",
    [
        arange(70) ** 2,
        arange(9).flip(0),
        torch.zeros(5, dtype=torch.int64),
        arange(1),
        torch.tensor([0, 1, 9, 10, 11]),
    ],
    ids=["curved", "falling", "constant", "one", "broken"],
)
def test_values_that_are_no_line_are_not_fitted(values: Tensor) -> None:
    assert fit_line(values) is None
