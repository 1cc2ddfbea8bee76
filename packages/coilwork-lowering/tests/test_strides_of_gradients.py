"""Strides of gradients of convolutions' weights, where torch's meta function states others."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering.joint.corrections import correct_gradient_strides

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """ATen chooses its own kernels for windows of one tap where it has one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("channels", "taps"), [((5, 7), 1), ((5, 7), 3), ((5, 1), 3), ((1, 7), 3)])
@pytest.mark.parametrize("image", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("weight", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_weights_lie_as_kernels_make_them(
    transposed: bool,
    dtype: torch.dtype,
    channels: tuple[int, int],
    taps: int,
    image: torch.memory_format,
    weight: torch.memory_format,
) -> None:
    given, made = channels
    rows = channels if transposed else channels[::-1]
    x = torch.randn(2, given, 6, 6, dtype=dtype).to(memory_format=image)
    w = torch.empty_like(torch.randn(*rows, taps, taps, dtype=dtype), memory_format=weight).fill_(1)
    window = ([1, 1], [0, 0], [1, 1], transposed, [0, 0], 1)
    g = torch.randn_like(aten.convolution.default(x, w, None, *window))

    def weight_gradient(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        found = aten.convolution_backward.default(g, x, w, [made], *window, [True, True, True])
        return found[1].squeeze(-1)

    gm = make_fx(weight_gradient, tracing_mode="fake")(g, x, w)
    correct_gradient_strides(gm)
    (node,) = [node for node in gm.graph.nodes if node.target is operator.getitem and node.args[1] == 1]
    gradient = aten.convolution_backward.default(g, x, w, [made], *window, [True, True, True])[1]
    assert node.meta["val"].stride() == gradient.stride()
    assert node.args[0].meta["val"][1].stride() == gradient.stride()
    (view,) = node.users
    assert view.meta["val"].stride() == gradient.squeeze(-1).stride()
    assert correct_gradient_strides(gm) == 0
