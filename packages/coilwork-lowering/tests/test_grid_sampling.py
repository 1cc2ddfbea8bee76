"""Images sampled by grids, and their gradients, are eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import assert_as_eager, trace_and_lower

from coilwork_ir.loops import Scatter, Sort
from coilwork_lowering import LoweringOptions

aten = torch.ops.aten
LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
MODES = [(2, LINEAR), (2, NEAREST), (2, CUBIC), (3, LINEAR), (3, NEAREST)]


def image_and_grid(dims: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Some points lie far outside."""
    source = torch.Generator().manual_seed(dims)
    image = torch.randn(2, 3, *(5, 4, 6)[-dims:], generator=source, dtype=dtype)
    return image, torch.randn(2, *(2, 4, 5)[-dims:], dims, generator=source, dtype=dtype) * 1.3


def sampler(dims: int, mode: int, padding: int, corners: bool) -> Callable[..., Any]:
    operator = aten.grid_sampler_2d if dims == 2 else aten.grid_sampler_3d
    return lambda image, grid: operator(image, grid, mode, padding, corners)


def backward(
    dims: int, mode: int, padding: int, corners: bool, wanted: tuple[bool, bool] = (True, True)
) -> Callable[..., Any]:
    operator = aten.grid_sampler_2d_backward if dims == 2 else aten.grid_sampler_3d_backward

    def function(gradient: torch.Tensor, image: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        found = operator(gradient, image, grid, mode, padding, corners, list(wanted))
        return [one for one, is_wanted in zip(found, wanted, strict=True) if is_wanted]

    return function


@pytest.mark.parametrize("padding", [ZEROS, BORDER, REFLECTION])
@pytest.mark.parametrize(("dims", "mode"), MODES)
def test_values_and_gradients(dims: int, mode: int, padding: int) -> None:
    corners = (dims + mode + padding) % 2 == 0
    image, grid = image_and_grid(dims)
    assert_as_eager(sampler(dims, mode, padding, corners), image, grid)
    gradient = torch.randn(2, 3, *grid.shape[1:-1])
    assert_as_eager(backward(dims, mode, padding, corners), gradient, image, grid)


@pytest.mark.parametrize("padding", [ZEROS, BORDER])
@pytest.mark.parametrize(("dims", "mode"), MODES)
def test_many_channels_share_their_taps(dims: int, mode: int, padding: int) -> None:
    image, grid = image_and_grid(dims)
    grid.view(-1)[3] = math.nan
    image = torch.cat([image, image * 2, image - 1], 1)
    lowered = assert_as_eager(sampler(dims, mode, padding, False), image, grid)
    assert len(lowered.graph.nodes) > 2
    grid.view(-1)[3] = 0.3
    gradient = torch.randn(2, 9, *grid.shape[1:-1])
    # sums over channels and taps of both signs: in f32, eager's own are off by 8e-5
    assert_as_eager(backward(dims, mode, padding, False), gradient, image, grid, tolerance=1e-4)
    last = image.to(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    assert len(assert_as_eager(sampler(dims, mode, padding, False), last, grid).graph.nodes) == 1


@pytest.mark.parametrize("padding", [ZEROS, BORDER])
@pytest.mark.parametrize(("dims", "mode"), MODES)
def test_coordinates_that_are_no_numbers(dims: int, mode: int, padding: int) -> None:
    image, grid = image_and_grid(dims)
    grid.view(-1)[[3, 7, 9, 12]] = torch.tensor([math.nan, math.inf, -math.inf, 1e30])
    assert_as_eager(sampler(dims, mode, padding, False), image, grid)


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("padding", [ZEROS, BORDER, REFLECTION])
@pytest.mark.parametrize("mode", [LINEAR, NEAREST, CUBIC])
def test_on_edges_and_between_elements(mode: int, padding: int, corners: bool) -> None:
    steps = torch.linspace(-1.5, 1.5, 13, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1)[None]
    image = torch.arange(16.0, dtype=torch.float64).view(1, 1, 4, 4)
    assert_as_eager(sampler(2, mode, padding, corners), image, grid)
    assert_as_eager(sampler(2, mode, padding, corners), image[:, :, :1, 2:3], grid)


def test_an_image_across_memory_and_a_grid_for_all() -> None:
    image, grid = image_and_grid(2)
    assert_as_eager(sampler(2, LINEAR, ZEROS, False), image.to(memory_format=torch.channels_last), grid)
    assert_as_eager(sampler(2, LINEAR, ZEROS, False), image.transpose(2, 3), grid[:1].expand(2, -1, -1, -1))


def test_one_of_the_gradients() -> None:
    image, grid = image_and_grid(2)
    gradient = torch.randn(2, 3, *grid.shape[1:-1])
    for wanted in ((True, False), (False, True)):
        assert_as_eager(backward(2, LINEAR, ZEROS, False, wanted), gradient, image, grid)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(("dims", "mode"), MODES)
def test_gradients_of_images_row_by_row(
    dims: int, mode: int, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coilwork_lowering.ops.scattering.segment_sums.has_few_rows", lambda elements, machine: few
    )
    image, grid = image_and_grid(dims, torch.float64)
    gradient = torch.randn(2, 3, *grid.shape[1:-1], dtype=torch.float64)
    function = backward(dims, mode, ZEROS, False)
    lowered = trace_and_lower(
        function, (gradient, image, grid), options=LoweringOptions(accumulation="sorted")
    )
    assert not any(isinstance(node, Scatter) for node in lowered.graph.nodes)
    assert any(isinstance(node, Sort) for node in lowered.graph.nodes) is not few
    found = loop_evaluator.run(lowered.graph, lowered.constants, [gradient, image, grid])
    for one, wanted in zip(found, function(gradient, image, grid), strict=True):
        torch.testing.assert_close(one, wanted)


def test_16_bits_are_computed_in_32() -> None:
    image, grid = image_and_grid(2)
    half = sampler(2, LINEAR, BORDER, False)
    lowered = trace_and_lower(half, (image.bfloat16(), grid.bfloat16()))
    exact = half(image.bfloat16().double(), grid.bfloat16().double())
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [image.bfloat16(), grid.bfloat16()])
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-5)
