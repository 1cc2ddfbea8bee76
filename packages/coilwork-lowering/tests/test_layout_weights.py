"""Weights of convolutions are copied once, where that gains: for both halves of a step, or when frozen."""

from __future__ import annotations

import pytest
import torch
from layout_graphs import ON_META, Compiled, added, traced
from torch import nn

from coilwork_lowering import LayoutOptions, lay_out_convolutions
from coilwork_lowering.aten_layouts import lay_out_frozen_weights
from coilwork_lowering.aten_layouts.convolution_cost import (
    estimate_captured_cost,
    find_convolutions,
    gains_by_copies,
)
from coilwork_lowering.rewrites.constant_folding import find_constants

HALF = torch.bfloat16


def two(dtype: torch.dtype = torch.float32) -> torch.fx.GraphModule:
    """A chain of two convolutions whose values are much larger than their weights. Nothing is computed."""
    net = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).to("meta", dtype)
    return traced(net, torch.empty(256, 16, 130, 130, dtype=dtype, device="meta"))


@pytest.mark.parametrize(
    ("dtype", "options", "found"),
    [
        (torch.float32, ON_META, 2),
        (torch.float32, LayoutOptions(devices=("meta",), scheduled_devices=()), 0),
        (torch.float32, LayoutOptions(scheduled_devices=("meta",)), 0),
        (
            torch.float32,
            LayoutOptions(devices=("meta",), scheduled_devices=("meta",), tf32_convolutions=False),
            0,
        ),
        (HALF, LayoutOptions(scheduled_devices=("meta",), tf32_convolutions=False), 2),
        (torch.float64, ON_META, 0),
    ],
)
def test_which_convolutions_prefer_channels_last(
    dtype: torch.dtype, options: LayoutOptions, found: int
) -> None:
    assert len(find_convolutions(two(dtype), options)) == found


def test_bytes_are_counted_per_conversion() -> None:
    element, x, w = 4, 256 * 16 * 130 * 130, 16 * 16 * 9
    first, second = 256 * 16 * 128 * 128, 256 * 16 * 126 * 126
    found = find_convolutions(two(), ON_META)
    assert estimate_captured_cost(found) == 2 * element * (x + w + first + first + w + second)


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_a_gpu_launches_conversions_too(dtype: torch.dtype) -> None:
    """The layers of a residual network with one image: next to no bytes, and every second weight is as it
    should be. In `f32` a small graph keeps the rounding of its kernels.
    """
    layers = nn.Sequential(*(nn.Conv2d(64, 64, size, padding=size // 2, bias=False) for size in (1, 3) * 8))
    gm = traced(layers.to("meta", dtype), torch.empty(1, 64, 14, 14, device="meta", dtype=dtype))
    found = find_convolutions(gm, ON_META)
    weights = 8 * 2 * dtype.itemsize * 64 * 64 * 9
    assert gains_by_copies(found, copies=10, copied_bytes=weights) == (dtype is HALF)
    assert not gains_by_copies(found[:4], copies=7, copied_bytes=weights // 4)
    assert not gains_by_copies(found, copies=25, copied_bytes=weights)


@pytest.mark.parametrize(
    "window, dtype, loses", [(7, HALF, True), (3, HALF, False), (7, torch.float32, False)]
)
def test_depthwise_kernels_with_large_windows_lose_in_16_bits(
    window: int, dtype: torch.dtype, loses: bool
) -> None:
    """On a GPU, ATen's own kernels for the captured layout are slow; small windows are written out."""
    layers = [nn.Conv2d(64, 64, window, padding=window // 2, groups=64) for _ in range(3)]
    net = nn.Sequential(nn.Conv2d(16, 64, 1), *layers).to("meta", dtype)
    gm = traced(net, torch.empty(64, 16, 64, 64, device="meta", dtype=dtype))
    found = find_convolutions(gm, ON_META)
    activations = 2 * 64 * 64 * 64 * 64
    assert [call.lost_bytes for call in found] == [0, *3 * [4 * 2 * activations * loses]]


def test_few_channels_are_not_converted() -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)).to("meta")
    gm = traced(net, torch.empty(256, 4, 130, 130, device="meta"))
    assert estimate_captured_cost(find_convolutions(gm, ON_META)) == 0


def test_convolutions_whose_groups_are_symbolic_are_untouched() -> None:
    gm = two()
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
        with gm.graph.inserting_before(node):
            groups = gm.graph.call_function(torch.ops.aten.sym_size.int, (node.args[0], 0))
        node.args = (*node.args[:8], groups)
    assert find_convolutions(gm, ON_META) == ()


def test_a_weight_is_copied_once_for_both_halves() -> None:
    """Not one of a single point, which is both layouts; nor of few channels or groups, which no kernel
    converts.
    """
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.Conv2d(16, 32, 3, groups=4),
        nn.ConvTranspose2d(32, 16, 2),
    ).to(HALF)
    backend = Compiled(LayoutOptions(scheduled_devices=("cpu",)))
    x = torch.randn(8, 3, 48, 48, dtype=HALF)
    torch.compile(module, backend=backend)(x).sum().backward()
    ((captured, made, decision),) = backend.pairs
    assert added(captured, made) == {("clone", ""): 2}
    assert decision.shared_weights == 2 and "2 weights are copied once for both halves" in decision.reason
    (forward,) = backend.forwards
    saved = [n for n in forward.graph.output_node().all_input_nodes if str(n.target) == "aten.clone.default"]
    assert len(saved) == 2
    # a step that would lose less than the copies cost
    small = Compiled(backend.options)
    torch._dynamo.reset()
    torch.compile(module, backend=small)(x[:1, :, :16, :16]).sum().backward()
    assert small.pairs[0][1] is small.pairs[0][0]
    # forward alone copies for itself, and what is no scheduler's stays
    for graph, options in (
        (traced(module, x), backend.options),
        (captured, LayoutOptions(layout="captured")),
        (captured, LayoutOptions(scheduled_devices=())),
    ):
        assert lay_out_convolutions(graph, options)[0] is graph


def test_frozen_weights_are_copied_where_the_rest_gains() -> None:
    gm = two(HALF)
    weights = [k for k, node in enumerate(gm.graph.find_nodes(op="placeholder")) if k > 0]
    made, copied = lay_out_frozen_weights(gm, find_constants(gm.graph, weights), ON_META)
    assert copied == 2 and added(gm, made) == {("clone", "channels_last"): 2}
    # weights that are not frozen, and captured layouts, stay
    assert lay_out_frozen_weights(gm, find_constants(gm.graph, ()), ON_META) == (gm, 0)
    captured = LayoutOptions(devices=("meta",), scheduled_devices=())
    assert lay_out_frozen_weights(gm, find_constants(gm.graph, weights), captured) == (gm, 0)


def test_frozen_weights_stay_where_images_cost_more() -> None:
    """One convolution between captured layouts: image and result change their layout either way."""
    net = nn.Conv2d(16, 16, 3).to("meta", HALF)
    gm = traced(net, torch.empty(256, 16, 130, 130, dtype=HALF, device="meta"))
    assert lay_out_frozen_weights(gm, find_constants(gm.graph, (1, 2)), ON_META) == (gm, 0)
