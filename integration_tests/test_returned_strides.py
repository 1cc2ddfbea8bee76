"""Results lie in memory as eager's do, also where torch's meta functions say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from integration_tests.beside_eager import agrees, compiled, numbers, strides

pytestmark = pytest.mark.usefixtures("own_caches")

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: numbers(24).view(2, 3, 4),
    "transposed": lambda: numbers(24).view(2, 4, 3).transpose(1, 2),
    "reversed": lambda: numbers(24).view(4, 3, 2).permute(2, 1, 0),
    "with gaps": lambda: numbers(48).view(2, 3, 8)[..., ::2],
    "images in channels-last": lambda: numbers(120).view(2, 4, 5, 3).permute(0, 3, 1, 2),
    "images across": lambda: numbers(120).view(2, 3, 5, 4).transpose(2, 3),
}


def with_moments(make: Callable[[], Tensor]) -> list[Tensor]:
    return [make(), torch.zeros(3), torch.ones(3)]


def alone(make: Callable[[], Tensor]) -> list[Tensor]:
    return [make()]


def normed(training: bool) -> Callable[..., Tensor]:
    def norm(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return F.batch_norm(x, mean, var, training=training)

    return norm


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_strides_are_those_of_eager(training: bool) -> None:
    for make in LAYOUTS.values():
        torch._dynamo.reset()
        norm = normed(training)
        agrees(norm, compiled(norm), partial(with_moments, make))


def test_batch_norm_gradient_strides_are_those_of_eager() -> None:
    norm = normed(True)
    for make in LAYOUTS.values():
        torch._dynamo.reset()
        gradients: list[Tensor] = []
        for run in (norm, compiled(norm)):
            x = make().requires_grad_()
            y = run(x, torch.zeros(3), torch.ones(3))
            gradients += torch.autograd.grad(y, [x], numbers(y.numel()).view(y.shape))
        torch.testing.assert_close(gradients[1], gradients[0], check_stride=True)


IMAGES: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: numbers(240).view(2, 4, 5, 6),
    "channels-last": lambda: numbers(240).view(2, 5, 6, 4).permute(0, 3, 1, 2),
    "across": lambda: numbers(240).view(2, 4, 6, 5).transpose(2, 3),
    "batch innermost": lambda: numbers(240).view(4, 5, 6, 2).permute(3, 0, 1, 2),
    "with gaps": lambda: numbers(480).view(2, 4, 5, 12)[..., ::2],
    "one image, channels-last": lambda: numbers(120).view(1, 5, 6, 4).permute(0, 3, 1, 2),
    "one row, channels-last": lambda: numbers(48).view(2, 1, 6, 4).permute(0, 3, 1, 2),
}


def windows(x: Tensor, weight: Tensor, deep: Tensor) -> tuple[Tensor, ...]:
    return (
        F.conv2d(x, weight, padding=(0, 1)),
        F.conv2d(x, deep, stride=(1, 2), groups=4),
        F.conv_transpose2d(x, weight.transpose(0, 1), stride=(1, 2)),
        F.max_pool2d(x, (1, 2)),
        F.avg_pool2d(x, (1, 3), stride=1, padding=(0, 1)),
        F.adaptive_avg_pool2d(x, (1, 2)),
        F.conv1d(x.flatten(2), weight[..., 0, :]),
        F.max_pool3d(x[..., None, :], (1, 1, 2)),
    )


@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_convolution_and_pooling_strides_are_those_of_eager(layout: str, dynamic: bool) -> None:
    """Convolutions and poolings, and their gradients.

    Where sizes are not known, torch's capture lays the gradient of `max_pool3d` out by rows, whatever the
    image, in `aot_eager` too.
    """

    def run(function: Callable[..., tuple[Tensor, ...]]) -> list[Tensor]:
        given = [IMAGES[layout](), numbers(36).view(3, 4, 1, 3), numbers(8).view(4, 1, 1, 2)]
        operands = [one.requires_grad_() for one in given]
        results = function(*operands)
        tangents = [numbers(one.numel()).view(one.shape) for one in results]
        return [*results, *torch.autograd.grad(results, operands, tangents)]

    found, expected = run(compiled(windows, dynamic=dynamic)), run(windows)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    laid_out = run(torch.compile(windows, backend="aot_eager", dynamic=True)) if dynamic else expected
    assert list(map(strides, found)) == list(map(strides, laid_out))


BROADCAST: dict[str, Callable[[], list[Tensor]]] = {
    "a column and rows across": lambda: [numbers(3).view(3, 1), numbers(24).view(2, 4, 3).transpose(1, 2)],
    "across and reversed": lambda: [numbers(12).view(4, 3).t(), numbers(24).view(4, 3, 2).permute(2, 1, 0)],
    "a part of reversed and plain": lambda: [
        numbers(8).view(4, 1, 2).permute(2, 1, 0),
        numbers(24).view(2, 3, 4),
    ],
    "a number and rows across": lambda: [torch.tensor(2.0), numbers(24).view(2, 4, 3).transpose(1, 2)],
}
COMPOSED: dict[str, Callable[..., Any]] = {
    "ldexp": torch.ldexp,
    "ldexp by whole exponents": lambda a, b: (
        torch.ldexp(a, b.to(torch.int32)) + torch.ldexp(a.long(), b.long())
    ),
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "copysign": torch.copysign,
    "floor_divide": lambda a, b: torch.floor_divide(a, b + 9),
    "xlogy": lambda a, b: torch.xlogy(a, b + 9) + torch.special.xlog1py(a, b + 9),
    "a power of two": lambda a, b: torch.pow(2.0, b) + a,
    "a product of these": lambda a, b: torch.ldexp(a, b) * torch.logaddexp(a, b),
}


@pytest.mark.parametrize("function", COMPOSED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_of_mixed_layouts_are_those_of_eager(function: str, dynamic: bool) -> None:
    for make in BROADCAST.values():
        torch._dynamo.reset()
        agrees(COMPOSED[function], compiled(COMPOSED[function], dynamic=dynamic), make)


def unpooled(x: Tensor) -> Tensor:
    return F.max_unpool1d(x, torch.arange(x.numel()).view(x.shape) % 4, [2])


def dropped_backward(x: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.native_dropout_backward(x, x > 0, 2.0)
    return found


def shuffled(x: Tensor) -> Tensor:
    return torch.channel_shuffle(x, 3)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[str, ...]]] = {
    "max_unpool1d": (unpooled, ("contiguous", "transposed", "reversed")),
    "native_dropout_backward": (dropped_backward, tuple(LAYOUTS)),
    "channel_shuffle": (shuffled, ("contiguous", "transposed", "images in channels-last", "images across")),
}


@pytest.mark.parametrize("name", CASES)
def test_strides_of_called_operators_are_those_of_eager(name: str) -> None:
    function, layouts = CASES[name]
    for layout in layouts:
        torch._dynamo.reset()
        agrees(function, compiled(function), partial(alone, LAYOUTS[layout]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_of_empty_splits_are_those_of_eager(dynamic: bool) -> None:
    def parts(x: Tensor) -> tuple[Tensor, ...]:
        return (
            *(x + 1)[:1].split([1, 0]),
            *(x + 2)[:, :1].split([1, 0, 0], 1),
            (x + 3)[:1][1:],
            *(x + 4)[None].split([0, 1, 0]),
            (x + 5).view(-1)[1:2][5:],
            *torch.tensor_split((x + 6)[:1], 3),
        )

    ours = torch.compile(parts, backend="coilwork", options={"strict": True}, dynamic=dynamic)
    for rows, columns in ((2, 3), (3, 4)):
        x = numbers(rows * columns).view(rows, columns)
        for one, other in zip(ours(x), parts(x), strict=True):
            assert (one.shape, one.stride()) == (other.shape, other.stride())
            assert one.storage_offset() == other.storage_offset()


@pytest.mark.parametrize(
    ("kind", "dtype"), [(torch.nn.Conv2d, torch.float32), (torch.nn.ConvTranspose2d, torch.float64)]
)
def test_gradient_strides_of_weights_of_one_tap_are_those_of_eager(
    kind: type[torch.nn.Conv2d], dtype: torch.dtype
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module = kind(5, 7, 1).to(dtype)
    gradients: list[Tensor] = []
    for run in (module, compiled(module)):
        y = run(numbers(120).to(dtype).view(2, 3, 4, 5).permute(0, 3, 1, 2))
        gradients += torch.autograd.grad(y.square().sum(), [module.weight])
    torch.set_num_threads(threads)
    torch.testing.assert_close(gradients[1], gradients[0], check_stride=True)
