"""Gradients of weight-normed convolutions in channels-last: ATen's kernel for them takes its operands to be
contiguous.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from coilwork.backend import backend


@pytest.mark.parametrize("layout", ["auto", "channels_last"])
def test_gradients_of_weight_norm_agree_in_channels_last(layout: str) -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(weight_norm(nn.Conv2d(16, 16, 3)), nn.ReLU(), weight_norm(nn.Conv2d(16, 16, 3)))
    module, image = copy.deepcopy(eager), torch.randn(2, 16, 64, 64)
    eager(image).square().mean().backward()
    options = {"strict": True, "conv_layout": layout}
    torch.compile(module, backend=backend, options=options)(image).square().mean().backward()
    for name, parameter in eager.named_parameters():
        found = module.get_parameter(name).grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-3, atol=1e-5, msg=name)
