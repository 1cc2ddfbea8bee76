"""Gradients of a network's stem (convolution, norm, ReLU, max-pool) whose result is read twice, in each
configuration of its kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coilwork.backend import backend

pytestmark = pytest.mark.gpu


class Stem(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.next = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        pooled = self.pool(self.norm(self.convolution(image)).relu())
        return pooled + self.next(pooled)


def gradients(module: nn.Module, image: Tensor, upstream: Tensor, *, compiled: bool = False) -> list[Tensor]:
    module = copy.deepcopy(module)
    function = torch.compile(module, backend=backend) if compiled else module
    torch.autograd.backward(function(image), upstream)
    return [parameter.grad.double() for parameter in module.parameters()]


@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize("channels", [8, 64])
def test_gradients_of_pooling_are_right_in_every_candidate(
    monkeypatch: pytest.MonkeyPatch, channels: int, choice: int
) -> None:
    def chosen(trials: Sequence[Any], *_: Any, **__: Any) -> int:
        return min(choice, len(trials) - 1)

    monkeypatch.setattr("coilwork_runtime.triton_kernels.launch.select_candidate", chosen)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(5)
    module = Stem(channels).cuda()
    image = torch.randn(2, 3, 224, 224, device="cuda")
    upstream = torch.randn(2, channels, 56, 56, device="cuda")
    exact = gradients(copy.deepcopy(module).double(), image.double(), upstream.double())
    for found, expected in zip(gradients(module, image, upstream, compiled=True), exact, strict=True):
        assert (found - expected).norm() <= 1e-4 * expected.norm()
