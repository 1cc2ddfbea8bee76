"""Products and their bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rewritten_graphs import check_same, rewritten
from torch import Tensor

from coilwork_lowering.options import RewriteOptions
from coilwork_lowering.rewrites import choose_rewrites
from coilwork_lowering.rewrites.epilogues import PRODUCTS

# the same in each run: of bf16, few numbers lie at the edge of what rounding allows
GENERATOR = torch.Generator().manual_seed(1)
A, B, BIAS = (torch.randn(*size, generator=GENERATOR) for size in ((4, 6), (6, 5), (5,)))

FIRES: dict[str, Callable[..., Any]] = {
    "returned": lambda a, b, bias: a @ b + bias,
    "the other way round": lambda a, b, bias: bias + a @ b,
    "read by a product": lambda a, b, bias: (a @ b + bias) @ b.t(),
    "of more dimensions": lambda a, b, bias: (a.view(2, 2, 6) @ b + bias).sum(-1),
}


@pytest.mark.parametrize("case", FIRES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_becomes_one_call(case: str, dtype: torch.dtype) -> None:
    inputs = tuple(t.to(dtype) for t in (A, B, BIAS))
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 6e-2}
    made = check_same(FIRES[case], inputs, PRODUCTS, **tolerance)
    assert made.names == ("add-to-addmm",) and "aten.add.Tensor" not in made.calls()


def product_has_another_reader(a: Tensor, b: Tensor, bias: Tensor) -> Any:
    found = a @ b
    return found + bias, found


STAYS: dict[str, Callable[..., Any]] = {
    "a kernel adds it for free": lambda a, b, bias: torch.sin(a @ b + bias),
    "a multiple": lambda a, b, bias: torch.add(a @ b, bias, alpha=2),
    "a number per row": lambda a, b, bias: a[:, :5] @ b[:5] + bias[:4].unsqueeze(1),
    "a whole matrix": lambda a, b, bias: a @ b + (a @ b).sin(),
    "another type": lambda a, b, bias: a @ b + bias.double(),
    "another reader": product_has_another_reader,
}


@pytest.mark.parametrize("case", STAYS)
def test_sums_that_are_no_bias_stay(case: str) -> None:
    assert rewritten(STAYS[case], (A, B, BIAS), PRODUCTS).names == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("beta", [0, 0.0])
def test_nothing_is_added_to_products(dtype: torch.dtype, beta: float) -> None:
    a, b = (A * 4).to(dtype), (B * 4).to(dtype)
    bias = torch.full((5,), 7).to(dtype) if dtype is torch.int64 else torch.full((5,), float("nan")).to(dtype)
    scale = int(beta) if dtype is torch.int64 else beta

    def function(a: Tensor, b: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        batches = torch.baddbmm(bias, a.expand(3, 4, 6), b.expand(3, 6, 5), beta=scale)
        return torch.addmm(bias, a, b, beta=scale), batches

    made = check_same(function, (a, b, bias), PRODUCTS)
    assert made.names == ("nothing-to-add",)
    assert {"aten.mm.default", "aten.bmm.default"} <= set(made.calls())


@pytest.mark.parametrize("scale", [{"beta": 0.5}, {"beta": 0, "alpha": 2}])
def test_scaled_products_stay(scale: dict[str, float]) -> None:
    added_product: Callable[..., Tensor] = torch.addmm
    made = rewritten(lambda a, b, bias: added_product(bias, a, b, **scale), (A, B, BIAS), PRODUCTS)
    assert made.names == ()


@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_is_for_fast_numerics_alone(numerics: Any) -> None:
    names = {rewrite.name for rewrite in choose_rewrites("aten", RewriteOptions(numerics=numerics))}
    assert "add-to-addmm" not in names and "times-one" in names
