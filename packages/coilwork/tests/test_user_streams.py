"""Streams that users choose: what torch traces of them, and that results are eager's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend


def on_a_stream(x: Tensor) -> Tensor:
    with torch.Stream(device="cpu"):
        y = x.sin() + 1
    return y * 2


def on_two_streams(x: Tensor) -> Tensor:
    first, second = torch.Stream(device="cpu"), torch.Stream(device="cpu")
    with first:
        y = x.cos()
    with second:
        z = y.sum(0)
    return z + x


@pytest.mark.parametrize("function", [on_a_stream, on_two_streams])
@pytest.mark.parametrize("executor", ["native", "python"])
def test_streams_of_the_host_order_nothing(function: object, executor: str) -> None:
    assert callable(function)
    torch._dynamo.reset()
    x = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(function, backend=backend, options={"executor": executor})
    found, wanted = compiled(x), function(x)
    torch.testing.assert_close(found, wanted)
    (mine,), (theirs,) = (torch.autograd.grad(one.sum(), x) for one in (found, wanted))
    torch.testing.assert_close(mine, theirs)
