"""When a graph is laid out, and what is said of it."""

from __future__ import annotations

import pytest
import torch
from layout_graphs import ALWAYS, ON_CPU, residual_net, traced
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import LayoutOptions, lay_out_convolutions
from coilwork_lowering.layout.convolution_cost import (
    estimate_captured_cost,
    estimate_grouped_cost,
    find_convolutions,
    judge,
)


def two(dtype: torch.dtype = torch.float32) -> torch.fx.GraphModule:
    """A chain of two convolutions whose values are much larger than their weights. Nothing here
    is computed.
    """
    net = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).to(dtype)
    return traced(net, torch.empty(256, 16, 130, 130, dtype=dtype))


def test_a_chain_is_worth_it() -> None:
    gm = traced(residual_net().eval(), torch.empty(64, 3, 224, 224))
    made, decision = lay_out_convolutions(gm, ON_CPU)
    assert decision.channels_last and made is not gm
    assert decision.rewritten_bytes < decision.captured_bytes
    assert decision.convolutions == 5
    assert decision.reason.startswith(
        f"5 convolutions in channels-last: {decision.rewritten_bytes} bytes change layout in channels-last, "
        f"{decision.captured_bytes} as captured"
    )


def test_a_small_graph_is_not_worth_the_launches() -> None:
    gm = traced(residual_net().eval(), torch.empty(4, 3, 64, 64))
    made, decision = lay_out_convolutions(gm, ON_CPU)
    assert decision.rewritten_bytes < decision.captured_bytes / 2
    assert made is gm and not decision.channels_last
    assert "4 copies are launched" in decision.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gpu_launches_conversions_too(dtype: torch.dtype) -> None:
    """The layers of a residual network with one image: next to no bytes, and every second weight is as it
    should be.

    Captured, each of these has one conversion, and each of the others one for its image, its weight and its
    result.
    """
    layers = nn.Sequential(*(nn.Conv2d(64, 64, size, padding=size // 2, bias=False) for size in (1, 3) * 8))
    options = LayoutOptions(devices=("meta",))
    gm = traced(layers.to("meta", dtype), torch.empty(1, 64, 14, 14, device="meta", dtype=dtype))
    found = find_convolutions(gm, options)
    weights = 8 * 2 * dtype.itemsize * 64 * 64 * 9
    # the image, eight weights, and the result that the caller gets
    chosen = judge(found, copies=10, copied_bytes=weights, options=options)
    # in f32, a small graph keeps the rounding of its kernels
    narrow = dtype is torch.bfloat16
    assert chosen.channels_last == narrow
    assert (
        f"10 copies are launched instead of {32 if narrow else 0}, each worth 8000000 bytes" in chosen.reason
    )
    assert not judge(found[:4], copies=7, copied_bytes=weights // 4, options=options).channels_last
    assert not judge(found, copies=25, copied_bytes=weights, options=options).channels_last


def test_weights_are_converted_around_captured_kernels_as_well() -> None:
    """A copy for each weight and two more are fewer launches than three for each convolution."""
    layers = nn.Sequential(*(nn.Conv2d(128, 128, 3, padding=1, bias=False) for _ in range(4)))
    narrow = torch.bfloat16
    gm = traced(layers.to("meta", narrow), torch.empty(1, 128, 64, 64, device="meta", dtype=narrow))
    options = LayoutOptions(devices=("meta",))
    found = find_convolutions(gm, options)
    weights = 4 * 2 * 2 * 128 * 128 * 9
    assert [call.conversions for call in found] == [3, 3, 3, 3]
    assert judge(found, copies=6, copied_bytes=weights, options=options).channels_last
    # one alone gains nothing: image, weight and result change layout either way
    assert not judge(found[:1], copies=3, copied_bytes=weights // 4, options=options).channels_last


def test_one_convolution_between_captured_layouts_gains_nothing() -> None:
    gm = traced(nn.Conv2d(16, 16, 3), torch.empty(256, 16, 130, 130))
    made, decision = lay_out_convolutions(gm, ON_CPU)
    assert made is gm
    assert not decision.channels_last
    assert decision.rewritten_bytes == decision.captured_bytes > 0


def test_bytes_are_counted_per_conversion() -> None:
    gm = two()
    element, x, w = 4, 256 * 16 * 130 * 130, 16 * 16 * 9
    first, second = 256 * 16 * 128 * 128, 256 * 16 * 126 * 126
    found = find_convolutions(gm, ON_CPU)
    assert estimate_captured_cost(found) == 2 * element * (x + w + first + first + w + second)
    _, decision = lay_out_convolutions(gm, ON_CPU)
    assert decision.rewritten_bytes == 2 * element * (x + w + w + second)


def test_depthwise_convolutions_count_against_it() -> None:
    layers = [nn.Conv2d(64, 64, 3, padding=1, groups=64) for _ in range(3)]
    gm = traced(nn.Sequential(nn.Conv2d(16, 64, 1), *layers), torch.empty(256, 16, 64, 64))
    made, decision = lay_out_convolutions(gm, ON_CPU)
    assert estimate_grouped_cost(find_convolutions(gm, ON_CPU)) > estimate_captured_cost(
        find_convolutions(gm, ON_CPU)
    )
    assert made is gm and not decision.channels_last


@pytest.mark.parametrize(
    "window, dtype, gains", [(7, torch.bfloat16, True), (3, torch.bfloat16, False), (7, torch.float32, False)]
)
def test_depthwise_kernels_with_large_windows_gain_in_16_bits(
    window: int, dtype: torch.dtype, gains: bool
) -> None:
    """On a GPU, ATen's own kernels for the captured layout are slow."""
    layers = [nn.Conv2d(64, 64, window, padding=window // 2, groups=64) for _ in range(3)]
    net = nn.Sequential(nn.Conv2d(16, 64, 1), *layers).to("meta", dtype)
    gm = traced(net, torch.empty(64, 16, 64, 64, device="meta", dtype=dtype))
    options = LayoutOptions(devices=("meta",))
    found = find_convolutions(gm, options)
    activations = 2 * 64 * 64 * 64 * 64
    assert [call.lost_bytes for call in found] == [0, *3 * [4 * 2 * activations * gains]]
    assert (estimate_grouped_cost(found) == 0) == gains
    copies = {"copies": 6, "copied_bytes": 4 * 64 * 64 * 64 * (16 + 64)}
    assert judge(found, options=options, **copies).channels_last == gains


def test_few_channels_gain_nothing() -> None:
    gm = traced(nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)), torch.empty(256, 4, 130, 130))
    assert estimate_captured_cost(find_convolutions(gm, ON_CPU)) == 0
    assert lay_out_convolutions(gm, ON_CPU)[0] is gm


def test_what_is_channels_last_already_stays() -> None:
    net = nn.Sequential(nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)).to(memory_format=torch.channels_last)
    x = torch.randn(4, 16, 16, 16).contiguous(memory_format=torch.channels_last)
    gm = traced(net, x)
    assert estimate_captured_cost(find_convolutions(gm, ON_CPU)) == 0
    assert lay_out_convolutions(gm, ON_CPU)[0] is gm
    assert lay_out_convolutions(gm, ALWAYS)[0] is gm


@pytest.mark.parametrize(
    ("dtype", "options", "found"),
    [
        (torch.float32, ON_CPU, 2),
        (torch.float32, LayoutOptions(devices=("cpu",), tf32_convolutions=False), 0),
        (torch.bfloat16, LayoutOptions(devices=("cpu",), tf32_convolutions=False), 2),
        (torch.float64, ON_CPU, 0),
        (torch.float64, ALWAYS, 2),
        (torch.bfloat16, LayoutOptions(), 2),
        (torch.float32, LayoutOptions(), 2),
        (torch.float32, LayoutOptions(blocked_devices=()), 0),
        (torch.bfloat16, LayoutOptions(narrow_devices=()), 0),
        (torch.bfloat16, LayoutOptions(scheduled_devices=("cpu",)), 0),
        (torch.float32, LayoutOptions(scheduled_devices=("cpu",)), 0),
    ],
)
def test_which_convolutions_profit(dtype: torch.dtype, options: LayoutOptions, found: int) -> None:
    gm = two(dtype)
    assert len(find_convolutions(gm, options)) == found
    assert (lay_out_convolutions(gm, options)[0] is gm) == (found == 0)


@pytest.mark.parametrize(
    ("window", "device", "found"), [(7, "cpu", 0), (3, "cpu", 3), (3, "cuda", 0)], ids=str
)
def test_graphs_with_depthwise_loops_are_not_left_to_the_scheduler(
    window: int, device: str, found: int
) -> None:
    """Loops are for devices whose kernels compute in channels-last: CPUs have a library for all windows."""
    depthwise = nn.Conv2d(16, 16, window, padding=window // 2, groups=16)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), depthwise, nn.Conv2d(16, 16, 1)).to(torch.bfloat16)
    gm = traced(net, torch.empty(64, 3, 64, 64, dtype=torch.bfloat16))
    options = LayoutOptions(devices=(device,), scheduled_devices=("cpu",))
    assert len(find_convolutions(gm, options)) == found


def roles(net: nn.Module, x: Tensor) -> list[str]:
    return [call.role for call in find_convolutions(traced(net, x), LayoutOptions())]


def test_a_weight_that_outweighs_its_activations_stays_on_a_cpu() -> None:
    net = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 3, groups=64)
    )
    assert roles(net, torch.empty(4, 64, 56, 56)) == ["leads", "follows", "follows"]
    assert roles(net, torch.empty(1, 64, 14, 14)) == ["stays", "follows", "follows"]
    # in channels-last already, the copy is no matter
    assert roles(net.to(memory_format=torch.channels_last), torch.empty(1, 64, 14, 14)) == ["follows"] * 3
    assert all(
        call.role == "leads" for call in find_convolutions(traced(net, torch.empty(1, 64, 14, 14)), ALWAYS)
    )


def test_a_cpu_converts_activations_alone() -> None:
    gm = two()
    element, x = 4, 256 * 16 * 130 * 130
    first, second = 256 * 16 * 128 * 128, 256 * 16 * 126 * 126
    assert estimate_captured_cost(find_convolutions(gm, LayoutOptions())) == 2 * element * (
        x + 2 * first + second
    )
    _, decision = lay_out_convolutions(gm, LayoutOptions())
    assert decision.rewritten_bytes == 2 * element * (x + 2 * 16 * 16 * 9 + second)


def test_few_channels_and_groups_gain_on_a_cpu() -> None:
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3, groups=8), nn.AdaptiveAvgPool2d(1))
    gm = traced(net, torch.empty(64, 3, 64, 64))
    assert estimate_grouped_cost(find_convolutions(gm, LayoutOptions())) == 0
    _, decision = lay_out_convolutions(gm, LayoutOptions())
    assert decision.channels_last and decision.convolutions == 2


def test_nothing_follows_where_nothing_leads() -> None:
    gm = traced(nn.Sequential(nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 1)), torch.empty(4, 64, 56, 56))
    made, decision = lay_out_convolutions(gm, LayoutOptions())
    assert made is gm
    assert decision.reason == "no convolution whose kernels prefer channels-last"


def test_captured_is_captured() -> None:
    gm = two()
    made, decision = lay_out_convolutions(gm, LayoutOptions(layout="captured", devices=("cpu",)))
    assert made is gm
    assert decision.reason == "layouts as captured: asked for"


def test_graphs_without_convolutions_are_untouched() -> None:
    gm = traced(lambda x: x.sin() @ x, torch.randn(3, 3))
    made, decision = lay_out_convolutions(gm, ALWAYS)
    assert made is gm
    assert decision.reason == "no convolution whose kernels prefer channels-last"


def test_convolutions_whose_groups_are_symbolic_are_untouched() -> None:
    gm = two()
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
        with gm.graph.inserting_before(node):
            groups = gm.graph.call_function(torch.ops.aten.sym_size.int, (node.args[0], 0))
        node.args = (*node.args[:8], groups)
    assert find_convolutions(gm, ALWAYS) == ()


def test_convolutions_of_one_dimension_are_untouched() -> None:
    gm = traced(nn.Conv1d(16, 16, 3), torch.randn(2, 16, 20))
    assert lay_out_convolutions(gm, ALWAYS)[0] is gm


def test_graphs_without_fake_tensors_are_untouched() -> None:
    gm = make_fx(lambda x, w: torch.conv2d(x, w))(torch.randn(1, 4, 5, 5), torch.randn(4, 4, 3, 3))
    for node in gm.graph.nodes:
        if isinstance(node.meta.get("val"), Tensor):
            node.meta["val"] = torch.empty_strided(node.meta["val"].shape, node.meta["val"].stride())
    made, decision = lay_out_convolutions(gm, ALWAYS)
    assert made is gm
    assert decision.reason == "nodes carry no fake tensors"


def test_kernels_that_do_not_return_channels_last_are_left_alone() -> None:
    # oneDNN does not compute f64; the plain kernel returns channels-last only in two dimensions
    net = nn.Sequential(nn.Conv3d(8, 8, 3), nn.Conv3d(8, 8, 3)).double()
    gm = traced(net, torch.randn(1, 8, 8, 8, 8, dtype=torch.float64))
    made, decision = lay_out_convolutions(gm, ALWAYS)
    assert made is gm
    assert decision.reason == "0 convolutions as captured: no kernel returns channels-last"
    assert decision.copies == 0
