"""Convolutions whose windows lie side by side are products, with results and strides as they were."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from layout_graphs import Compiled
from module_formats import in_format
from torch import Tensor, nn

from coilwork_lowering import LayoutOptions
from coilwork_lowering.facts.fx_nodes import get_packet_name

HERE = LayoutOptions(devices=("cpu",), scheduled_devices=("cpu",))
BF16 = torch.bfloat16


def compiled_beside_eager(
    net: nn.Module, x: Tensor, *, train: bool, of_input: bool = True
) -> tuple[list[tuple[Tensor, Tensor]], list[Counter[str]]]:
    """Pairs of results and gradients, compiled and eager's, and the operators of each graph."""
    torch._dynamo.reset()
    backend = Compiled(HERE)
    pairs: list[list[Tensor]] = []
    for function in (torch.compile(net, backend=backend), net):
        given = x.clone(memory_format=torch.preserve_format).requires_grad_(train and of_input)
        with torch.set_grad_enabled(train):
            result = function(given)
        found = [result.detach()]
        if train:
            net.zero_grad()
            result.backward(torch.linspace(-1, 1, result.numel()).to(x.dtype).view_as(result))
            found += [each.grad.clone() for each in (given, *net.parameters()) if each.grad is not None]
        pairs.append(found)
    operators = [
        Counter(get_packet_name(n.target) for n in made.graph.nodes if n.op == "call_function")
        for _, made, _ in backend.pairs
    ]
    return list(zip(*pairs, strict=True)), operators


def check(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for made, expected in pairs:
        assert made.stride() == expected.stride()
        torch.testing.assert_close(made, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


NETS = {
    "embedding": (lambda: nn.Conv2d(3, 16, 8, 8), (2, 3, 16, 24)),
    "halves": (lambda: nn.Conv2d(16, 24, 2, 2, bias=False), (2, 16, 6, 4)),
    "rest": (lambda: nn.Sequential(nn.Conv2d(4, 8, (2, 4), (2, 4)), nn.ReLU()), (2, 4, 6, 8)),
    "over time": (lambda: nn.Conv1d(4, 8, 4, 4), (2, 4, 12)),
    "volumes": (lambda: nn.Conv3d(8, 8, (1, 2, 2), (1, 2, 2)), (2, 8, 3, 4, 4)),
    "doubles": (lambda: nn.ConvTranspose2d(16, 32, 2, 2), (2, 16, 3, 5)),
    "doubles few channels": (lambda: nn.ConvTranspose2d(16, 2, 2, 2, bias=False), (2, 16, 3, 5)),
    "doubles volumes": (lambda: nn.ConvTranspose3d(8, 16, 2, 2), (2, 8, 2, 3, 2)),
}


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("name", list(NETS))
def test_patches_are_products_forward_and_backward(name: str, is_last: bool) -> None:
    build, shape = NETS[name]
    if is_last and len(shape) != 4:
        pytest.skip("torch has a format of images alone")
    net, x = build().to(BF16), torch.randn(shape).to(BF16)
    if is_last:
        net, x = in_format(net, torch.channels_last), x.to(memory_format=torch.channels_last)
    pairs, (operators,) = compiled_beside_eager(net, x, train=True)
    check(pairs)
    assert operators["mm"] + operators["addmm"] == 3
    assert "convolution" not in operators and "convolution_backward" not in operators


def test_what_windows_leave_out_is_no_patch() -> None:
    net, x = nn.Conv2d(4, 8, 2, 2).to(BF16), torch.randn(2, 4, 7, 5).to(BF16)
    pairs, (operators,) = compiled_beside_eager(net, x, train=False)
    check(pairs)
    assert operators["addmm"] == 1 and operators["slice"] == 2
    # the gradient of the image has elements that no patch has
    pairs, (operators,) = compiled_beside_eager(net, x, train=True)
    check(pairs)
    assert operators["convolution_backward"] == 1


STEMS = {
    "overlap": (lambda: nn.Conv2d(3, 16, 3, 2, 1, bias=False), (2, 3, 20, 18)),
    "over time": (lambda: nn.Conv1d(1, 16, 10, 5), (2, 1, 64)),
    "gaps": (lambda: nn.Conv2d(3, 8, 3, 4, 1), (2, 3, 17, 16)),
}


@pytest.mark.parametrize("name", list(STEMS))
def test_windows_over_few_channels_are_patches(name: str) -> None:
    """Rows of patches are whole vectors, with zeros behind them."""
    build, shape = STEMS[name]
    net, x = build().to(BF16), torch.randn(shape).to(BF16)
    pairs, (operators,) = compiled_beside_eager(net, x, train=True, of_input=False)
    check(pairs)
    assert operators["mm"] + operators["addmm"] == 2
    assert "convolution" not in operators and "convolution_backward" not in operators


@pytest.mark.parametrize(
    "net, x",
    [
        (nn.Conv2d(8, 8, 3, 1), (2, 8, 8, 8)),  # a library reads eight channels as they lie
        (nn.Conv2d(3, 64, 7), (2, 3, 64, 64)),  # long patches are gathered slowly
        (nn.Conv1d(1, 8, 32), (2, 1, 64)),  # patches would take much memory
    ],
)
def test_patches_that_overlap_must_pay(net: nn.Module, x: tuple[int, ...]) -> None:
    _, (operators,) = compiled_beside_eager(net.to(BF16), torch.randn(x).to(BF16), train=False)
    assert operators["convolution"] == 1


@pytest.mark.parametrize(
    "net",
    [
        nn.Conv2d(8, 8, 3, 2),  # windows overlap
        nn.Conv2d(8, 8, 2, 3),  # or have gaps
        nn.Conv2d(8, 8, 2, 2, padding=1),
        nn.Conv2d(8, 8, 2, 2, groups=2),
        nn.Conv2d(8, 8, 2, 2, dilation=2),
        nn.Conv2d(8, 8, 1),  # a product already
        nn.Conv2d(8, 9, 2, 2),  # rows of 9 begin between vectors
        nn.ConvTranspose2d(8, 8, 2, 2, output_padding=1),
    ],
)
def test_other_convolutions_stay(net: nn.Module) -> None:
    x = torch.randn(2, 8, 8, 8).to(BF16)
    _, (operators,) = compiled_beside_eager(net.to(BF16), x, train=False)
    assert operators["convolution"] == 1 and not operators["mm"] + operators["addmm"]


def test_convolutions_in_f32_are_no_products() -> None:
    """Whether a product rounds to TF32 is another setting than whether a convolution does."""
    _, (operators,) = compiled_beside_eager(nn.Conv2d(8, 8, 2, 2), torch.randn(2, 8, 4, 4), train=False)
    assert operators["convolution"] == 1


def test_both_halves_read_the_same_patches() -> None:
    net = nn.Sequential(nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 2, 2)).to(BF16)
    x = torch.randn(2, 16, 4, 4).to(BF16)
    _, (forward,) = compiled_beside_eager(net, x, train=False)
    _, (joint,) = compiled_beside_eager(net, x, train=True)
    # beside the forward's patches, weight and result: the result's gradient, the image's and the weight's
    assert joint["clone"] == forward["clone"] + 3


@pytest.mark.parametrize("name", ["halves", "doubles"])
def test_a_batch_may_be_open(name: str) -> None:
    build, shape = NETS[name]
    net, x = build().to(BF16), torch.randn(shape).to(BF16)
    torch._dynamo.reset()
    backend = Compiled(HERE)
    compiled = torch.compile(net, backend=backend)
    for batch in (2, 5):
        x = torch.randn(batch, *shape[1:]).to(BF16)
        torch._dynamo.mark_dynamic(x, 0)
        found, expected = compiled(x), net(x)
        check([(found.detach(), expected.detach())])
        gradients = [
            torch.autograd.grad(each.float().sum(), tuple(net.parameters())) for each in (found, expected)
        ]
        check(list(zip(*gradients, strict=True)))
    assert len(backend.pairs) == 1
    operators = Counter(get_packet_name(n.target) for n in backend.pairs[0][1].graph.nodes)
    assert operators["mm"] + operators["addmm"] == 2 and "convolution" not in operators
