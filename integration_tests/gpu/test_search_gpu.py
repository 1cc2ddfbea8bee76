"""Whole functions with `mode="max-autotune-no-cudagraphs"` on a GPU: right, the same bits in every call, and
remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.accuracy import compare
from coilwork.backend import backend
from coilwork_cache import LocalStore, TuningCache

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

MODE = "max-autotune-no-cudagraphs"
BUDGET = 24


def softmax(x: Tensor, weight: Tensor) -> Tensor:
    return torch.softmax(x * weight, -1)


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight)


def turned(x: Tensor, weight: Tensor) -> Tensor:
    return (x + weight).t().contiguous()


def of_columns(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).sum(0)


def running(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).cumsum(-1)


def updated(x: Tensor, weight: Tensor) -> Tensor:
    x.mul_(0.5).add_(weight)
    return x


def compiled(function: Callable[..., Any], mode: str, cache: Path) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = {"cache_dir": str(cache), "strict": True, "autotune_budget": BUDGET}

    def configured(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        return backend(gm, inputs, mode=mode, options=options)

    return torch.compile(function, backend=configured)


def records(cache: Path) -> list[dict[str, Any]]:
    return [record for _, record in TuningCache(LocalStore(cache)).list() if "kernel" in record]


@pytest.mark.parametrize("function", [softmax, normalized, turned, of_columns, running, updated])
def test_results_are_right_and_repeatable(function: Callable[..., Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2048, 1500, device="cuda"), torch.rand(1500, device="cuda")
    eager, exact = function(x.clone(), weight), function(x.double(), weight.double())
    searched = compiled(function, MODE, tmp_path)
    first, second = searched(x.clone(), weight), searched(x.clone(), weight)
    compare("searched", compiled=first, eager=eager, reference=exact).check()
    assert torch.equal(first, second)
    kept = records(tmp_path)
    assert kept
    # in another mode, and when compiled anew, the same configuration gives the same bits
    for mode in ("default", MODE):
        assert torch.equal(compiled(function, mode, tmp_path)(x.clone(), weight), first)
    assert records(tmp_path) == kept


def test_updates_of_many_tensors_happen_once(tmp_path: Path) -> None:
    def update(values: list[Tensor], steps: list[Tensor]) -> None:
        torch._foreach_mul_(values, 0.5)
        torch._foreach_addcmul_(values, steps, steps)

    torch.manual_seed(0)
    sizes = (1, 7, 1024, 5000, 100_003)
    steps = [torch.randn(n, device="cuda") for n in sizes]
    found, eager = ([torch.ones(n, device="cuda") for n in sizes] for _ in range(2))
    searched = compiled(update, MODE, tmp_path)
    for _ in range(3):
        searched(found, steps)
        update(eager, steps)
    for one, other in zip(found, eager, strict=True):
        torch.testing.assert_close(one, other)
    assert records(tmp_path)


def test_gradients_are_right(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
    weight = torch.rand(1024, device="cuda", requires_grad=True)
    upstream = torch.randn(4096, 1024, device="cuda")

    def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*inputs), inputs, upstream.to(inputs[0].dtype))

    eager = gradients(normalized, x, weight)
    exact = gradients(normalized, *(v.detach().double().requires_grad_() for v in (x, weight)))
    found = gradients(compiled(normalized, MODE, tmp_path), x, weight)
    for name, one, other, reference in zip(("x", "weight"), found, eager, exact, strict=True):
        compare(name, compiled=one, eager=other, reference=reference).check()
