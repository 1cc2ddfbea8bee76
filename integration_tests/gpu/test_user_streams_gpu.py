"""Streams and events that users choose on a GPU: results are eager's, and torch's current stream stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def beside(x: Tensor, w: Tensor, other: torch.cuda.Stream) -> Tensor:
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = torch.tanh(x @ w) + 1
    z = x.sin() * 2
    torch.cuda.current_stream().wait_stream(other)
    return y * z


def by_event(x: Tensor, w: Tensor, other: torch.cuda.Stream) -> Tensor:
    other.wait_stream(torch.cuda.current_stream())
    done = torch.cuda.Event()
    with torch.cuda.stream(other):
        y = (x @ w).relu()
        done.record()
    z = x.exp()
    torch.cuda.current_stream().wait_event(done)
    return y + z


@pytest.mark.parametrize("function", [beside, by_event])
@pytest.mark.parametrize("executor", ["native", "python"])
def test_results_are_those_of_eager(
    function: Callable[[Tensor, Tensor, torch.cuda.Stream], Tensor], executor: str
) -> None:
    torch._dynamo.reset()
    other, before = torch.cuda.Stream(), torch.cuda.current_stream()
    compiled = torch.compile(function, backend=backend, options={"executor": executor})
    for seed in range(20):
        torch.manual_seed(seed)
        x, w = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
        wanted = function(x, w, other)
        torch.testing.assert_close(compiled(x, w, other), wanted, rtol=1e-3, atol=1e-3)
        assert torch.cuda.current_stream() == before
