"""Products and an activation of their sums. The library that does them together is a GPU's; what ATen does on
a CPU stands for it here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from rewritten_graphs import check_same, rewritten
from torch import Tensor
from torch.nn import functional

from coilwork_lowering.options import RewriteOptions
from coilwork_lowering.rewrites import choose_rewrites
from coilwork_lowering.rewrites.epilogues import ACTIVATIONS, ON_NVIDIA

GENERATOR = torch.Generator().manual_seed(1)
A, B, BIAS = (torch.randn(*size, generator=GENERATOR) for size in ((4, 16), (16, 8), (8,)))
A /= 4
ANYWHERE = tuple(
    replace(rewrite, conditions=tuple(c for c in rewrite.conditions if c is not ON_NVIDIA))
    for rewrite in ACTIVATIONS
)


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_fast(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_of_torch(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


RELUS: dict[str, Callable[..., Any]] = {
    "returned": lambda a, b, bias: (a @ b).relu(),
    "with a bias": lambda a, b, bias: torch.addmm(bias, a, b).relu(),
    "read by a product": lambda a, b, bias: torch.addmm(bias, a, b).relu() @ b.t(),
    "of more dimensions": lambda a, b, bias: functional.linear(a.view(2, 2, 16), b.t()).relu().sum(-1),
    "read twice": lambda a, b, bias: [(y := (a @ b).relu()), y.sin()],
}


@pytest.mark.parametrize("case", RELUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_relu_becomes_a_part_of_the_call(case: str, dtype: torch.dtype) -> None:
    inputs = tuple(t.to(dtype) for t in (A, B, BIAS))
    made = check_same(RELUS[case], inputs, ANYWHERE, rtol=1e-5, atol=1e-5)
    assert made.names == ("relu-into-product",) and "aten.relu.default" not in made.calls()


@pytest.mark.parametrize("gelu", [gelu_new, gelu_fast, gelu_of_torch])
@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gelu_however_it_is_spelled(
    gelu: Callable[[Tensor], Tensor], dimensions: int, biased: bool, dtype: torch.dtype
) -> None:
    def function(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        shaped = a if dimensions == 2 else a.view(2, 2, 16)
        return gelu(functional.linear(shaped, b.t(), bias if biased else None)) @ b.t()

    inputs = tuple(t.to(dtype) for t in (A, B, BIAS))
    made = check_same(function, inputs, ANYWHERE, rtol=3e-2, atol=8e-2)
    assert made.names == ("gelu-into-product",) and "aten.tanh.default" not in made.calls()


def has_another_reader(a: Tensor, b: Tensor, bias: Tensor) -> Any:
    found = torch.addmm(bias, a, b)
    return found.relu(), found


STAYS: dict[str, Callable[..., Any]] = {
    "a kernel does it for free": lambda a, b, bias: (a @ b).relu().sin(),
    "another reader": has_another_reader,
    "a number per row": lambda a, b, bias: torch.addmm(bias[:4].unsqueeze(1), a, b).relu(),
    "odd columns": lambda a, b, bias: (a @ b[:, :7]).relu(),
    "odd sums": lambda a, b, bias: (a[:, :15] @ b[:15]).relu(),
    "a part of the sum": lambda a, b, bias: torch.addmm(bias, a, b, alpha=2).relu(),
    "another slope": lambda a, b, bias: functional.leaky_relu(a @ b),
    "the exact form": lambda a, b, bias: functional.gelu((a @ b).bfloat16()),
    "another constant": lambda a, b, bias: (
        (y := (a @ b).half()) * 0.5 * (1.0 + torch.tanh(0.8 * (y + 0.044715 * y**3.0)))
    ),
    "32 bits": lambda a, b, bias: gelu_of_torch(a @ b),
}


@pytest.mark.parametrize("case", STAYS)
def test_products_without_a_fitting_epilogue_stay(case: str) -> None:
    assert rewritten(STAYS[case], (A, B, BIAS), ANYWHERE).names == ()


def test_small_results_are_left_to_the_library_too() -> None:
    a, b = torch.randn(16, 16), torch.randn(16, 8)
    assert rewritten(lambda a, b: (a @ b).relu(), (a, b), ANYWHERE).names == ("relu-into-product",)


def test_is_for_gpus_and_fast_numerics_alone() -> None:
    assert rewritten(RELUS["returned"], (A, B, BIAS), ACTIVATIONS).names == ()
    ours = {rewrite.name for rewrite in ACTIVATIONS}
    for numerics in ("fast", "eager", "strict"):
        names = {rewrite.name for rewrite in choose_rewrites("aten", RewriteOptions(numerics=numerics))}
        assert (ours <= names) == (numerics == "fast")
