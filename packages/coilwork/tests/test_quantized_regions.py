"""Quantised tensors beside control flow and gradients: eager's numbers, or an error that says what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")

Compile = Callable[..., Callable[..., Any]]


def quantized(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)


def chosen(x: Tensor, condition: Tensor) -> Tensor:
    return torch.cond(condition, lambda q: q.dequantize() + 1, lambda q: q.dequantize() * 3, (quantized(x),))


def looped(x: Tensor) -> Tensor:
    q = quantized(x)
    start = torch.zeros((), dtype=torch.int64)
    _, found = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + q.dequantize()), (start, x))
    return found


def test_a_branch_reads_one(strictly: Compile) -> None:
    x = torch.randn(4, 6)
    compiled = strictly(chosen, cache=False)
    q = quantized(x).dequantize()
    torch.testing.assert_close(compiled(x, torch.tensor(True)), q + 1)
    torch.testing.assert_close(compiled(x, torch.tensor(False)), q * 3)


def test_a_loop_reads_one(strictly: Compile) -> None:
    x = torch.randn(4, 6)
    torch.testing.assert_close(strictly(looped, cache=False)(x), x + 3 * quantized(x).dequantize())


def returned(x: Tensor, condition: Tensor) -> Tensor:
    found: Tensor = torch.cond(condition, lambda x: quantized(x), lambda x: quantized(x * 2), (x,))
    return found.dequantize() + 1


def carried(x: Tensor, condition: Tensor) -> Tensor:
    start = torch.zeros((), dtype=torch.int64)

    def body(i: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, quantized(q.dequantize() / 2)

    _, found = while_loop(lambda i, q: i < 3, body, (start, quantized(x)))
    return found.dequantize()


@pytest.mark.parametrize(
    ("function", "operator"), [(returned, "quantize_per_tensor"), (carried, "while_loop")]
)
def test_what_goes_from_region_to_region_is_refused(function: Callable[..., Tensor], operator: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, options={"strict": True, "cache": False})
    wanted = rf"(?s)\[mistraced\].*quint8.*{operator}.*test_quantized_regions.py:\d+.*dequantize what"
    with pytest.raises(BackendCompilerFailed, match=wanted):
        compiled(torch.randn(4, 6), torch.tensor(True))


def test_without_strict_such_a_graph_runs_as_it_was_captured() -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 6)
    with pytest.warns(CoilworkFallbackWarning, match="mistraced"):
        found = torch.compile(returned, backend=backend, options={"cache": False})(x, torch.tensor(False))
    torch.testing.assert_close(found, quantized(x * 2).dequantize() + 1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(quantized(x.detach()))
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (q,) = ctx.saved_tensors
        scaled: Tensor = gradient * q.dequantize()
        return scaled


def within_a_checkpoint(x: Tensor) -> Tensor:
    q = quantized(x.detach())
    found: Tensor = checkpoint(lambda x: (x * q.dequantize()).sin(), x, use_reentrant=False)
    return found


SAVED: dict[str, Callable[[Tensor], Tensor]] = {
    "by a function": lambda x: Scaled.apply(x.sin()).cos(),
    "of a product": lambda x: (x * quantized(x.detach().sin()).dequantize()).cos(),
    "in front of a checkpoint": within_a_checkpoint,
    "of a quantised operator": lambda x: (x * quantized(x.detach()).relu().dequantize()).cos(),
}


@pytest.mark.parametrize("name", SAVED)
def test_gradients_of_quantized_regions_are_those_of_eager(strictly: Compile, name: str) -> None:
    function, x = SAVED[name], torch.randn(4, 6)
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for one in (function, strictly(function, cache=False)):
            leaf = x.clone().requires_grad_()
            found = one(leaf)
            results.append((found.detach(), *torch.autograd.grad(found.sum(), leaf)))
    torch.testing.assert_close(results[1], results[0])
