"""Graphs rewritten to channels-last: same values, same strides outside, few copies inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from layout_graphs import ALWAYS, Bottleneck, Compiled, added, output_strides, residual_net, traced
from torch import Tensor, nn

from coilwork_lowering import AddedGuard, GuardWatch, LayoutOptions, lay_out_convolutions

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def strides_of(gm: torch.fx.GraphModule, operator: str) -> list[tuple[int, ...]]:
    """Strides of the results of every call of `operator`."""
    return [n.meta["val"].stride() for n in gm.graph.nodes if str(n.target).startswith(f"aten.{operator}.")]


def check_inference(
    module: Callable[..., Tensor],
    *inputs: Tensor,
    dynamic: bool = False,
    rtol: float = 1e-4,
    options: LayoutOptions = ALWAYS,
) -> Compiled:
    """`module` laid out computes what it computes, with the strides that it has."""
    backend = Compiled(options)
    with torch.no_grad():
        made = torch.compile(module, backend=backend, dynamic=dynamic)(*inputs)
        expected = module(*inputs)
    torch.testing.assert_close(made, expected, rtol=rtol, atol=rtol / 10)
    assert made.stride() == expected.stride()
    for captured, laid_out, decision in backend.pairs:
        assert decision.channels_last
        assert output_strides(captured) == output_strides(laid_out)
    return backend


def check_training(module: nn.Module, *inputs: Tensor, dynamic: bool = False) -> Compiled:
    """Likewise of a loss's gradients."""
    backend = Compiled()
    compiled = torch.compile(module, backend=backend, dynamic=dynamic)
    gradients: list[list[Tensor]] = []
    for function in (compiled, module):
        module.zero_grad()
        function(*inputs).square().mean().backward()
        gradients.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        strides = [p.grad.stride() for p in module.parameters() if p.grad is not None]
        assert strides == [p.stride() for p in module.parameters()]
    assert len(gradients[0]) == len(gradients[1]) > 0
    for made, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-5)
    ((captured, laid_out, decision),) = backend.pairs
    assert decision.channels_last
    assert output_strides(captured) == output_strides(laid_out)
    return backend


def test_a_net_flows_in_channels_last() -> None:
    backend = check_inference(residual_net().eval(), torch.randn(2, 3, 16, 16))
    ((captured, made, _),) = backend.pairs
    # the image, the stem's weight, and the weight of each 3x3 convolution; 1x1 weights are both layouts at
    # once
    assert added(captured, made) == {("clone", "channels_last"): 4}
    assert all(stride[1] == 1 for stride in strides_of(made, "convolution"))
    assert all(stride[1] == 1 for stride in strides_of(made, "relu"))


def test_a_joint_graph_flows_in_channels_last() -> None:
    backend = check_training(residual_net(), torch.randn(2, 3, 16, 16))
    ((captured, made, _),) = backend.pairs
    # gradients of weights go back as they must: three copied, those of 1x1 weights only renamed; the rest is
    # about the max-pool's positions
    found = added(captured, made)
    assert {key: count for key, count in found.items() if key[0] in ("clone", "as_strided")} == {
        ("clone", "channels_last"): 4,
        ("clone", "contiguous_format"): 3,
        ("as_strided", ""): 2,
    }
    (forward,) = backend.forwards
    images = [n.meta["val"] for n in forward.graph.output_node().all_input_nodes if n.op == "call_function"]
    saved = [t for t in images if t.dim() == 4 and t.shape[1] == 16 and t.shape[-1] > 1]
    assert saved
    assert all(t.stride()[1] == 1 for t in saved)


def test_sizes_may_be_symbols() -> None:
    backend = check_inference(residual_net().eval(), torch.randn(4, 3, 16, 16), dynamic=True)
    ((captured, made, _),) = backend.pairs
    assert added(captured, made) == {("clone", "channels_last"): 4}
    check_training(residual_net(), torch.randn(4, 3, 16, 16), dynamic=True)


class Watched(Compiled):
    """Keeps the guards that layouts add."""

    def __init__(self) -> None:
        super().__init__()
        self.guards: list[AddedGuard] = []

    def lay_out(self, gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        watch = GuardWatch(gm)
        made = super().lay_out(gm)
        self.guards.extend(watch.take_added())
        return made


def test_open_sizes_get_no_guards() -> None:
    halve = {"kernel_size": 3, "stride": 2, "padding": 1}
    net = nn.Sequential(
        nn.Conv2d(3, 8, **halve), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, **halve)
    ).eval()
    backend = Watched()
    compiled = torch.compile(net, backend=backend, dynamic=True)
    with torch.no_grad():
        # The last has a result of height one.
        for shape in ((2, 3, 64, 64), (3, 3, 32, 40), (2, 3, 3, 20)):
            image = torch.randn(shape)
            torch.testing.assert_close(compiled(image), net(image), rtol=1e-4, atol=1e-5)
    assert backend.pairs[0][2].channels_last
    assert backend.guards == []


def test_training_without_a_batch_gets_no_guards() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    backend = Watched()
    compiled = torch.compile(net, backend=backend, dynamic=True)
    for shape in ((3, 8, 9), (3, 12, 5)):
        torch.testing.assert_close(compiled(torch.randn(shape)).shape, net(torch.randn(shape)).shape)
    assert len(backend.pairs) == 1
    assert backend.guards == []


def test_the_graph_given_is_left_alone() -> None:
    block = Bottleneck(8).eval()
    gm = traced(block, torch.randn(1, 8, 6, 6))
    before = gm.graph.python_code("self").src
    strides = [n.meta["val"].stride() for n in gm.graph.nodes if isinstance(n.meta.get("val"), Tensor)]
    made, decision = lay_out_convolutions(gm, ALWAYS)
    assert decision.channels_last and made is not gm
    assert gm.graph.python_code("self").src == before
    assert strides == [
        n.meta["val"].stride() for n in gm.graph.nodes if isinstance(n.meta.get("val"), Tensor)
    ]


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)), (2, 8, 9, 9)),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.SiLU(), nn.ConvTranspose2d(8, 4, 4, 2, 1)), (2, 4, 9, 9)),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 1)), (2, 4, 7, 7)),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.AvgPool2d(2), nn.Upsample(scale_factor=2)), (2, 4, 10, 10)),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 3)), (2, 4, 8, 8)),
    ],
    ids=["grouped", "transposed", "group-norm", "pool-upsample", "flatten"],
)
def test_operators(net: nn.Module, shape: tuple[int, ...]) -> None:
    check_inference(net, torch.randn(shape))
    torch._dynamo.reset()
    check_training(net, torch.randn(shape))


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN has no convolutions in bf16 for this processor",
)
def test_three_dimensions() -> None:
    # in f32 oneDNN returns these as captured
    net = nn.Sequential(nn.Conv3d(4, 8, 3), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 4, 1)).bfloat16()
    backend = check_inference(net, torch.randn(1, 4, 6, 6, 6, dtype=torch.bfloat16), rtol=0.1)
    ((captured, made, _),) = backend.pairs
    assert added(captured, made) == {("clone", "channels_last_3d"): 2, ("clone", "contiguous_format"): 1}


def test_a_view_that_the_new_strides_refuse_reads_a_copy() -> None:
    def flat(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x, w).flatten(1) * 2

    backend = check_inference(flat, torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3))
    ((captured, made, _),) = backend.pairs
    assert added(captured, made) == {("clone", "channels_last"): 2, ("clone", "contiguous_format"): 1}


def test_a_copy_for_the_layouts_sake_is_dropped() -> None:
    def convert(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x, w).contiguous(memory_format=torch.channels_last).relu()

    gm = traced(convert, torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3))
    assert any(n.target is aten.clone.default for n in gm.graph.nodes)
    made, _ = lay_out_convolutions(gm, ALWAYS)
    copies = [n for n in made.graph.nodes if n.target is aten.clone.default]
    assert {n.all_input_nodes[0].op for n in copies} == {"placeholder"}


def test_written_inputs_keep_their_strides() -> None:
    def remember(x: Tensor, w: Tensor, kept: Tensor) -> Tensor:
        y = torch.conv2d(x, w)
        kept.copy_(y)
        return y.sum()

    x, w, kept = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3), torch.zeros(2, 8, 4, 4)
    backend = Compiled()
    with torch.no_grad():
        torch.compile(remember, backend=backend)(x, w, kept)
    assert backend.pairs[0][2].channels_last
    assert kept.is_contiguous()
    torch.testing.assert_close(kept, torch.conv2d(x, w), rtol=1e-4, atol=1e-5)


def test_outputs_that_share_memory_still_do() -> None:
    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.conv2d(x, w).relu()
        return y, aten.view.default(y, [2, -1])

    x, w = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3)
    made, decision = lay_out_convolutions(traced(both, x, w), ALWAYS)
    assert decision.channels_last
    first, second = made(x, w)
    torch.testing.assert_close((first, second), both(x, w), rtol=1e-4, atol=1e-5)
    assert first.is_contiguous()
    assert first.data_ptr() == second.data_ptr()


def test_outputs_of_any_dense_order_are_restored() -> None:
    def turned(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x, w).transpose(2, 3).clone()

    x, w = torch.randn(2, 4, 6, 5), torch.randn(8, 4, 3, 3)
    gm = traced(turned, x, w)
    (wanted,) = (n.meta["val"].stride() for n in gm.graph.output_node().all_input_nodes)
    made, decision = lay_out_convolutions(gm, ALWAYS)
    assert decision.channels_last
    assert made(x, w).stride() == wanted == turned(x, w).stride()
    torch.testing.assert_close(made(x, w), turned(x, w), rtol=1e-4, atol=1e-5)


def test_what_reads_strides_gets_the_captured_ones() -> None:
    def strided(x: Tensor, w: Tensor) -> Tensor:
        return torch.as_strided(torch.conv2d(x, w), (2, 3), (128, 1), 2) + 1

    x, w = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3)
    made, decision = lay_out_convolutions(traced(strided, x, w), ALWAYS)
    assert decision.channels_last
    torch.testing.assert_close(made(x, w), strided(x, w), rtol=1e-4, atol=1e-5)


def test_kernels_that_refuse_other_strides_get_the_captured_ones() -> None:
    class Exponential(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.matrix_exp(x * 0.05)

    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), Exponential(), nn.Conv2d(8, 4, 1))
    check_inference(net, torch.randn(2, 4, 6, 6))
    torch._dynamo.reset()
    check_training(net, torch.randn(2, 4, 6, 6))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="the kernel is oneDNN's")
def test_kernels_that_pass_over_strides_get_the_captured_ones() -> None:
    """Images read as sequences: a recurrent layer of oneDNN's walks through memory as if it were
    contiguous.
    """

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(36, 8)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(x.flatten(2))[0]
            return found

    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 1), Recurrent())
    with torch._dynamo.config.patch(allow_rnn=True):
        check_inference(net, torch.randn(3, 4, 6, 6))


def test_random_numbers_fall_on_the_same_elements() -> None:
    def noisy(x: Tensor, w: Tensor) -> Tensor:
        return torch.rand_like(torch.conv2d(x, w))

    x, w = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3)
    made, _ = lay_out_convolutions(traced(noisy, x, w), ALWAYS)
    torch.manual_seed(3)
    drawn = made(x, w)
    torch.manual_seed(3)
    torch.testing.assert_close(drawn, noisy(x, w), rtol=0, atol=0)


def test_copies_say_where_they_come_from() -> None:
    backend = check_training(residual_net(), torch.randn(2, 3, 16, 16))
    ((captured, made, _),) = backend.pairs
    known = {node.name for node in captured.graph.nodes}
    fresh = [node for node in made.graph.nodes if node.name not in known]
    assert {node.meta["partitioner_tag"] for node in fresh} == {"is_forward", "is_backward"}
    assert all("seq_nr" in node.meta for node in fresh)


class Ladder(nn.Module):
    """One step of a U-Net: a wide level, a narrow one below it, and their concatenation."""

    def __init__(self, below: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Conv2d(16, below, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(below, below, 3, padding=1)
        self.narrow = nn.Conv2d(below, below, 1)
        self.leave = nn.Conv2d(below + 16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.enter(x))
        y = self.narrow(torch.relu(self.deep(self.down(x))))
        up = nn.functional.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.leave(torch.relu(torch.cat((up, x), dim=1)))


def test_upsampling_and_concatenation_stay_channels_last() -> None:
    backend = check_inference(Ladder(16).eval(), torch.randn(2, 3, 16, 16))
    ((_, made, _),) = backend.pairs
    # pixels are gathered whole: a row-major [b, h, w, c]
    assert strides_of(made, "_unsafe_index") == [(16 * 16 * 16, 16 * 16, 16, 1)]
    assert strides_of(made, "cat") == [(16 * 16 * 32, 1, 16 * 32, 32)]
    check_training(Ladder(16), torch.randn(2, 3, 16, 16))


def test_a_concatenation_of_two_layouts_is_channels_last() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return torch.cat((y, torch.conv2d(x, w, padding=1)), 1).relu().sum(1)

    backend = check_inference(
        function, torch.randn(2, 4, 9, 9), torch.randn(2, 5, 9, 9), torch.randn(6, 4, 3, 3)
    )
    ((_, made, _),) = backend.pairs
    assert strides_of(made, "cat") == [(9 * 9 * 11, 9 * 11, 11, 1)]
    assert strides_of(made, "relu") == [(9 * 9 * 11, 1, 9 * 11, 11)]


def test_outputs_that_are_gathered_or_concatenated_keep_their_layout() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.conv2d(x, w, padding=1)
        rows = torch.arange(8, 0, -1)
        return torch.cat((y, wide), 1), torch.ops.aten.index.Tensor(wide, [None, None, rows[:, None], rows])

    backend = Compiled()
    inputs = torch.randn(2, 4, 9, 9), torch.randn(2, 5, 9, 9), torch.randn(6, 4, 3, 3)
    made = torch.compile(function, backend=backend)(*inputs)
    for got, expected in zip(made, function(*inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        assert got.stride() == expected.stride()


def test_on_a_cpu_wide_weights_stay_between_channels_last_levels() -> None:
    net = Ladder(256).eval()
    backend = check_inference(net, torch.randn(8, 3, 32, 32), options=LayoutOptions())
    ((_, made, decision),) = backend.pairs
    innermost = [stride[1] == 1 for stride in strides_of(made, "convolution")]
    # enter, down and leave have more activations than weights; deep has not, and narrow takes what it gets
    assert innermost == [True, True, False, False, True]
    assert decision.convolutions == 3
    assert strides_of(made, "cat")[0][-1] == 1


def test_on_a_cpu_gradients_follow_their_convolutions() -> None:
    torch.manual_seed(1)
    net = residual_net()
    compiled = Compiled(LayoutOptions())
    x = torch.randn(16, 3, 128, 128)
    torch.compile(net, backend=compiled)(x).square().mean().backward()
    ((_, made, decision),) = compiled.pairs
    assert decision.channels_last
    assert all(stride[1] == 1 for stride in strides_of(made, "convolution"))
    gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    net(x).square().mean().backward()
    for got, parameter in zip(gradients, net.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(got, parameter.grad, rtol=1e-2, atol=1e-4)


def test_a_weight_that_the_scheduler_lays_out_is_copied_once_for_both_halves() -> None:
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
    ).bfloat16()
    backend = Compiled(LayoutOptions(scheduled_devices=("cpu",)))
    x = torch.randn(8, 3, 48, 48, dtype=torch.bfloat16)
    torch.compile(module, backend=backend)(x).sum().backward()
    ((captured, made, decision),) = backend.pairs
    assert added(captured, made) == {("clone", ""): 2}
    assert "; 2 weights are copied once for both halves" in decision.reason
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
    ):
        assert lay_out_convolutions(graph, options)[0] is graph
