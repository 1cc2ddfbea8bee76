"""Sums of single elements at positions from data: the same bits in any order, within a rounding of exact
sums.
"""

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


def _normal(source: Tensor) -> Tensor:
    return source


def _few_bits(source: Tensor) -> Tensor:
    return (source * 4).round()


def _wide(source: Tensor) -> Tensor:
    return source * 10.0 ** torch.randint(-30, 31, source.shape, device="cuda")


def _lowest(source: Tensor) -> Tensor:
    source[:, ::3] = torch.finfo(torch.float32).min / source.shape[0]
    return source


def _smallest(source: Tensor) -> Tensor:
    return source * 1e-39


def _special(source: Tensor) -> Tensor:
    source[3, 1], source[5, 2], source[8, 5], source[9, 7] = INF, -INF, NAN, -0.0
    return source


def _zeros(source: Tensor) -> Tensor:
    return source * 0


@pytest.mark.parametrize(
    "made", [_normal, _few_bits, _wide, _lowest, _smallest, _special, _zeros], ids=lambda made: made.__name__
)
@pytest.mark.parametrize("dim", [0, 1])
def test_many_elements_of_all_kinds(made: Callable[[Tensor], Tensor], dim: int) -> None:
    """More than 2^19: units are the same for all sums if data allow it."""
    rows, eps = 9000, torch.finfo(torch.float32).eps
    source = made(torch.randn(40_000, 16, device="cuda"))
    index = torch.randint(0, rows, source.shape, device="cuda")
    largest = torch.zeros(rows, 16, device="cuda")
    largest.scatter_reduce_(0, index, source.nan_to_num(0, 0, 0).abs(), "amax")
    x = torch.zeros(rows, 16, device="cuda")
    x, index, source, largest = (t if dim == 0 else t.t().contiguous() for t in (x, index, source, largest))
    compiled = torch.compile(_added(dim), backend=backend)
    found, exact = compiled(x, index, source), _added(dim)(x.double(), index, source.double())
    finite = exact.float().isfinite()
    torch.testing.assert_close(
        found.where(~finite, 0), exact.float().where(~finite, 0), rtol=0, atol=0, equal_nan=True
    )
    # large elements that cancel leave what `f64` may have lost of small ones, too
    error = (found.double() - exact).where(finite, 0).abs()
    allowed = exact.abs() * eps + largest.double() * 2.0**-40 + 2.0**-149
    assert (error <= allowed.where(finite, INF)).all()
    order = torch.randperm(index.shape[dim], device="cuda")
    again = compiled(x, index.index_select(dim, order), source.index_select(dim, order))
    torch.testing.assert_close(again, found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_means_of_many_elements(scale: float) -> None:
    x, index, source = _inputs(0, torch.float32)
    source[0] *= scale

    def mean(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
        return x.scatter_reduce(0, index, source, "mean", include_self=False)

    exact = mean(x.double(), index, source.double())
    found = torch.compile(mean, backend=backend)(x, index, source)
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-6)


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
