"""Windows of resized images have all results that an element counts for, and hardly any others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coilwork_lowering.facts.resize_weights import ResizeWindow, Resizing, find_resize_window

SIZES = [(8, 16), (5, 15), (9, 4), (12, 1), (1, 7), (2, 9), (7, 7), (57, 101), (120, 40), (40, 27)]


def resizing(size: int, count: int, *, corners: bool = False, cubic: bool = False) -> Resizing:
    scale = size / count
    if corners:
        scale = (size - 1) / (count - 1) if count > 1 else 0.0
    return Resizing(size=size, count=count, scale=scale, corners=corners, cubic=cubic)


def weights_of(side: Resizing) -> Tensor:
    """How much each element counts for each result, in `f64`."""
    elements, weights = side.taps(torch.float64)
    table = torch.zeros(side.size, side.count, dtype=torch.float64)
    return table.index_put((elements, torch.arange(side.count).expand_as(elements)), weights, accumulate=True)


def start(window: ResizeWindow, i: int) -> int:
    return (i * window.factor + window.offset) // window.divisor


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("size", "count"), SIZES)
def test_windows_have_all_results(size: int, count: int, corners: bool, cubic: bool) -> None:
    side = resizing(size, count, corners=corners, cubic=cubic)
    window = find_resize_window(side, torch.float64)
    widest = 0
    for i, row in enumerate(weights_of(side)):
        found = torch.nonzero(row.abs() > 1e-12)[:, 0].tolist()
        if found:
            assert start(window, i) <= found[0] <= found[-1] < start(window, i) + window.width
            widest = max(widest, found[-1] - found[0] + 1)
    assert window.width <= 2 * widest


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize(("size", "count"), [(8, 16), (100, 300), (9, 63), (2, 8), (1, 4), (64, 64), (16, 8)])
def test_weights_repeat_where_images_grow_by_whole_factors(size: int, count: int, cubic: bool) -> None:
    side = resizing(size, count, cubic=cubic)
    window = find_resize_window(side, torch.float32)
    if count < size and cubic:
        assert window.weights is None or window.width == 1
        return
    assert window.weights is not None
    for i, row in enumerate(weights_of(side)):
        rows = {0: window.weights.first, size - 1: window.weights.last}
        given = window.weights.first if i == 0 else rows.get(i, window.weights.inner)
        for k, weight in enumerate(given):
            at = start(window, i) + k
            if 0 <= at < count:
                assert weight == pytest.approx(float(row[at]), abs=1e-12)


def test_exact_weights_do_not_stand_for_much_rounded_ones() -> None:
    side = resizing(4096, 3 * 4096)
    assert find_resize_window(side, torch.float32).weights is None
    assert find_resize_window(side, torch.float64).weights is not None
    assert find_resize_window(resizing(64, 192), torch.float32, exact=False).weights is None
    assert find_resize_window(resizing(4096, 8192), torch.float32, exact=False).weights is not None


def test_a_given_scale_that_is_not_that_of_the_sizes() -> None:
    side = Resizing(size=10, count=13, scale=1 / 1.37, corners=False, cubic=False)
    window = find_resize_window(side, torch.float64)
    for i, row in enumerate(weights_of(side)):
        found = torch.nonzero(row)[:, 0].tolist()
        assert start(window, i) <= found[0] <= found[-1] < start(window, i) + window.width
