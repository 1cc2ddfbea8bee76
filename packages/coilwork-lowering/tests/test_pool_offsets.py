"""Max-pools save distances within windows, and give the gradients that ATen gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_recompute import Halves
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering.joint.pool_offsets import narrow_pool_positions

aten = torch.ops.aten


def pooled(x: Tensor, weight: Tensor, **how: Any) -> Tensor:
    """The largest of a window of products, so that the pool's input is worth saving for the backward."""
    pool = torch.nn.functional.max_pool2d if x.dim() == 4 else torch.nn.functional.max_pool3d
    found: Tensor = pool(torch.relu(x * weight), **how)
    return (found * found).sum()


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], torch.dtype]] = {
    "resnet": ((2, 3, 14, 18), {"kernel_size": 3, "stride": 2, "padding": 1}, torch.uint8),
    "tiles": ((2, 3, 8, 8), {"kernel_size": 2}, torch.uint8),
    "ceil": ((2, 3, 9, 11), {"kernel_size": 3, "stride": 2, "ceil_mode": True}, torch.uint8),
    "dilated": ((1, 2, 20, 22), {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 4}, torch.uint8),
    "uneven": ((2, 1, 9, 30), {"kernel_size": (2, 5), "stride": (1, 3), "padding": (1, 2)}, torch.uint8),
    "wide": ((1, 1, 8, 400), {"kernel_size": 3}, torch.int16),
    "volume": ((1, 2, 6, 7, 9), {"kernel_size": 2, "stride": 1}, torch.uint8),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_distances_are_saved_and_gradients_are_those_of_eager(name: str, channels_last: bool) -> None:
    shape, how, narrow = CASES[name]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator)
    if channels_last:
        layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=layout)
    weight = torch.randn(shape, generator=generator)
    gradients = []
    halves = Halves()
    torch._dynamo.reset()
    for function in (pooled, torch.compile(pooled, backend=halves)):
        leaf = x.clone().requires_grad_()
        function(leaf, weight, **how).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    saved = [n.meta["val"].dtype for n in halves.saved()]
    assert narrow in saved and torch.int64 not in saved


def gradient(grad: Tensor, x: Tensor, positions: Tensor) -> Tensor:
    found: Tensor = aten.max_pool2d_with_indices_backward(grad, x, [2, 2], [], [0], [1], False, positions)
    return found


def alone(x: Tensor, grad: Tensor) -> Any:
    return gradient(grad, x, aten.max_pool2d_with_indices(x, [2, 2])[1])


def returned(x: Tensor, grad: Tensor) -> Any:
    values, positions = aten.max_pool2d_with_indices(x, [2, 2])
    return values, positions, gradient(grad, x, positions)


def computed_with(x: Tensor, grad: Tensor) -> Any:
    positions = aten.max_pool2d_with_indices(x, [2, 2])[1]
    return positions + 1, gradient(grad, x, positions)


def unread(x: Tensor, grad: Tensor) -> Any:
    return aten.max_pool2d_with_indices(x, [2, 2])[0] * grad


@pytest.mark.parametrize(("function", "count"), [(alone, 1), (returned, 0), (computed_with, 0), (unread, 0)])
def test_positions_that_others_read_stay(function: Callable[..., Any], count: int) -> None:
    gm = make_fx(function, tracing_mode="fake")(torch.randn(1, 1, 8, 8), torch.randn(1, 1, 4, 4))
    assert narrow_pool_positions(gm) == count


def test_planes_of_unknown_size_stay() -> None:
    gm = make_fx(alone, tracing_mode="symbolic")(torch.randn(1, 1, 8, 8), torch.randn(1, 1, 4, 4))
    assert narrow_pool_positions(gm) == 0
