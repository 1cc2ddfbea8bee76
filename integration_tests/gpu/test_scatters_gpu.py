"""Sums of single elements at positions from data: the same bits in any order, within a rounding of exact sums."""

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

INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def _known_sizes() -> None:
    """Sizes that other tests have seen would make those of the next one dynamic."""
    torch._dynamo.reset()


def _added(dim: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, index, source: torch.scatter_add(x, dim, index, source)


def _inputs(
    dim: int, dtype: torch.dtype, *, count: int = 40_000, rows: int = 3000
) -> tuple[Tensor, Tensor, Tensor]:
    shape, longer = [rows, 16], [count, 16]
    if dim:
        shape, longer = shape[::-1], longer[::-1]
    x = torch.randn(shape, device="cuda", dtype=dtype)
    return x, torch.randint(0, rows, longer, device="cuda"), torch.randn(longer, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_as_exact_sums(dim: int, dtype: torch.dtype) -> None:
    x, index, source = _inputs(dim, dtype)
    found = torch.compile(_added(dim), backend=backend)(x, index, source)
    exact = _added(dim)(x.double(), index, source.double())
    torch.testing.assert_close(found, exact.to(dtype), rtol=4 * torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1])
def test_every_order_gives_the_same_bits(dim: int) -> None:
    x, index, source = _inputs(dim, torch.float32)
    source = source * 10.0 ** torch.randint(-15, 15, source.shape, device="cuda")
    compiled = torch.compile(_added(dim), backend=backend)
    order = torch.randperm(index.shape[dim], device="cuda")
    first = compiled(x, index, source)
    for _ in range(3):
        assert torch.equal(compiled(x, index, source), first)
    assert torch.equal(compiled(x, index.index_select(dim, order), source.index_select(dim, order)), first)


def test_what_is_no_number() -> None:
    numbers = torch.tensor(
        [
            [INF, 1.0],
            [-INF, 1.0],
            [INF, -INF],
            [NAN, 1.0],
            [3e38, 3e38],
            [1e-44, 2e-45],
            [0.0, -0.0],
            [NAN, INF],
        ]
    ).cuda()
    index = torch.arange(8, device="cuda").unsqueeze(1).expand(8, 2).contiguous()
    x = torch.zeros(8, 4, device="cuda")

    def added(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
        return x.index_put((index, torch.ones_like(index)), source, accumulate=True)

    found = torch.compile(added, backend=backend)(x, index, numbers)
    torch.testing.assert_close(found, added(x, index, numbers), rtol=0, atol=0, equal_nan=True)


def test_gradients_of_gathered_elements() -> None:
    x = torch.randn(500, 300, device="cuda", requires_grad=True)
    index = torch.randint(0, 300, (500, 700), device="cuda")

    def gathered(x: Tensor, index: Tensor) -> Tensor:
        return (x.gather(1, index) ** 2).sum()

    (found,) = torch.autograd.grad(torch.compile(gathered, backend=backend)(x, index), x)
    (exact,) = torch.autograd.grad(gathered(x.double(), index), x)
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [600, 5000, 16384, 40_000, 70_000])
@pytest.mark.parametrize("rows", [200, 50_257, 128_256])
@pytest.mark.parametrize("skew", [1, 6])
def test_gradients_of_embeddings(count: int, rows: int, skew: int) -> None:
    ids = (torch.rand(count, device="cuda", dtype=torch.float64) ** skew * rows).long()
    table = torch.zeros(rows, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(count, 64, device="cuda", dtype=torch.bfloat16)

    def looked_up(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return (torch.nn.functional.embedding(ids, table) * weights).sum()

    compiled = torch.compile(looked_up, backend=backend)
    found, again = (torch.autograd.grad(compiled(table, ids, weights), table)[0] for _ in range(2))
    assert torch.equal(found, again)
    exact = torch.zeros(rows, 64, device="cuda", dtype=torch.float64).index_add_(0, ids, weights.double())
    torch.testing.assert_close(found, exact.to(torch.bfloat16), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_change(dynamic: bool) -> None:
    compiled = torch.compile(_added(0), backend=backend, dynamic=dynamic)
    for count in (1, 7, 500, 1000):
        x, index, source = _inputs(0, torch.float32, count=count, rows=50)
        exact = _added(0)(x.double(), index, source.double())
        torch.testing.assert_close(compiled(x, index, source), exact.float(), rtol=1e-5, atol=1e-5)
