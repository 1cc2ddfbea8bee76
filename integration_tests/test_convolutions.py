"""Convolutions of every kind beside eager: in inference and training, and with sizes that change.

Results and gradients are judged by float64: a library adds the terms of a gradient in another order on each
processor, and for each layout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional as F

from coilwork.backend import backend
from integration_tests.float64_runs import check_by_float64, in_float64, widen

# A convolution and the shape of what it convolves.
KINDS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "a row": (nn.Conv1d(3, 5, 3, padding=1), (2, 3, 17)),
    "causal": (nn.Conv1d(6, 6, 4, padding=3, groups=6), (2, 6, 17)),
    "square": (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 9, 11)),
    "patches": (nn.Conv2d(3, 8, 4, stride=4), (2, 3, 16, 16)),
    "one tap, no bias": (nn.Conv2d(4, 6, 1, bias=False), (2, 4, 5, 6)),
    "dilated": (nn.Conv2d(3, 4, (2, 3), padding=(0, 2), dilation=(2, 1)), (2, 3, 9, 8)),
    "groups": (nn.Conv2d(6, 4, 3, groups=2), (2, 6, 7, 7)),
    "single channels": (nn.Conv2d(6, 12, 5, padding=2, groups=6), (2, 6, 9, 8)),
    "volume": (nn.Conv3d(2, 4, 2, padding=1), (1, 2, 4, 5, 3)),
    "transposed row": (nn.ConvTranspose1d(4, 3, 4, stride=2, groups=1), (2, 4, 7)),
    "transposed": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (2, 4, 5, 6),
    ),
    "transposed volume": (nn.ConvTranspose3d(2, 2, 2), (1, 2, 3, 4, 3)),
    "circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 7)),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(threads)


class Every(nn.Module):
    """All kinds in one program, each between operators that generated code computes."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer, _ in KINDS.values()).to(dtype)

    def forward(self, *images: Tensor) -> list[Tensor]:
        return [F.relu(layer(image * 2)) for layer, image in zip(self.layers, images, strict=True)]


def images(dtype: torch.dtype = torch.float32, *, larger: int = 0) -> list[Tensor]:
    return [
        torch.randn(*shape[:2], *(size + larger for size in shape[2:])).to(dtype).requires_grad_()
        for _, shape in KINDS.values()
    ]


def trained(call: Callable[..., list[Tensor]], given: list[Tensor], model: nn.Module) -> list[Tensor]:
    """Results, and gradients of images and parameters."""
    leaves = [*given, *model.parameters()]
    results = call(*given)
    return results + list(torch.autograd.grad(sum(one.float().square().sum() for one in results), leaves))


def check_trained(call: Callable[..., list[Tensor]], given: list[Tensor], model: nn.Module) -> None:
    """Results and gradients of `call`, which is `model` compiled, are as near to float64 as eager's."""
    with in_float64():
        exact = trained(wide := widen(model), widen(given), wide)
    check_by_float64(
        "trained", compiled=trained(call, given, model), eager=trained(model, given, model), reference=exact
    )


def test_every_kind_agrees_with_eager() -> None:
    """With layouts and kernels as they are chosen, and every representation verified."""
    model, given = Every(), images()
    compiled = torch.compile(model, backend=backend, options={"strict": True, "verify": True})
    check_trained(compiled, given, model)
    with torch.no_grad():
        results = {"compiled": compiled(*given), "eager": model(*given)}
        check_by_float64("inferred", **results, reference=widen(model)(*widen(given)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_captured_calls_agree_to_the_bit(dtype: torch.dtype) -> None:
    """As captured, with eager's rounding: the same library computes the same sums."""
    model = Every(dtype)
    compiled = torch.compile(
        model, backend=backend, options={"conv_layout": "captured", "numerics": "strict", "strict": True}
    )
    given = images(dtype)
    with torch.no_grad():
        for one, expected in zip(compiled(*given), model(*given), strict=True):
            assert torch.equal(one, expected)
    for one, expected in zip(trained(compiled, given, model), trained(model, given, model), strict=True):
        assert torch.equal(one, expected)


def test_frozen_weights_leave_gradients_of_images_alone() -> None:
    model = Every()
    for number, parameter in enumerate(model.parameters()):
        # here a weight, there a bias, of some layers both
        parameter.requires_grad_(number % 3 == 0)
    given = images()
    compiled = torch.compile(model, backend=backend, options={"strict": True})

    def gradients(
        call: Callable[..., list[Tensor]], given: list[Tensor], model: nn.Module
    ) -> tuple[Tensor, ...]:
        leaves = [*given, *(one for one in model.parameters() if one.requires_grad)]
        return torch.autograd.grad(sum(one.sum() for one in call(*given)), leaves)

    exact = gradients(wide := widen(model), widen(given), wide)
    check_by_float64(
        "gradient",
        compiled=gradients(compiled, given, model),
        eager=gradients(model, given, model),
        reference=exact,
    )


def test_dynamic_sizes_agree() -> None:
    model = Every()
    compiled = torch.compile(model, backend=backend, dynamic=True, options={"strict": True})
    for larger in (0, 3):
        given = images(larger=larger)
        check_trained(compiled, given, model)
