"""Sorts in generated kernels, in C++ and in Triton's interpreter: beside eager, with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from benchmarks.backends import compile_with, resolve_backend
from integration_tests.interpreted_sorts import CASES
from integration_tests.interpreting import answers_of
from integration_tests.model_checks import no_fallback


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each case."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    folder = tmp_path_factory.mktemp("sorts")
    return answers_of("integration_tests.interpreted_sorts", folder, COILWORK_SORTING="kernels")


@pytest.mark.interpreter
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_triton_sorts_agree(answers: dict[str, str], name: str) -> None:
    if answers[name]:
        pytest.fail(answers[name], pytrace=False)


Function = Callable[[Tensor], tuple[Tensor, ...]]

# Elements of a row, and how many are chosen: routers of experts.
ROUTERS = ((8, 2), (16, 1), (64, 6), (128, 2), (128, 8))


def rows_with_ties(length: int) -> Tensor:
    """Rows of zeros, and of few, more and many different numbers."""
    generator = torch.Generator().manual_seed(length)
    numbers = [torch.randint(most, (6, length), generator=generator) for most in (1, 3, length, 1 << 20)]
    return torch.cat(numbers).float()


def test_routers_choose_eagers_experts_among_equals() -> None:
    def choose(*gates: Tensor) -> list[Tensor]:
        return [x.softmax(-1).topk(k).indices for x, (_, k) in zip(gates, ROUTERS, strict=True)]

    gates = [rows_with_ties(length) for length, _ in ROUTERS]
    with no_fallback():
        found = compile_with(choose, "coilwork")(*gates)
    for mine, its in zip(found, choose(*gates), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_eagers_choice_among_equals_is_kept_where_numerics_are_eagers(numerics: str) -> None:
    def choose(x: Tensor) -> tuple[Tensor, ...]:
        long = x.topk(9).indices, x.topk(9, sorted=False).indices, x.kthvalue(40).indices
        return *long, x.sort().indices, x.median(-1).indices, x.nanmedian(-1).indices, x.mode(-1).indices

    x = rows_with_ties(700)
    with no_fallback():
        found = torch.compile(choose, backend="coilwork", options={"numerics": numerics})(x)
    for mine, its in zip(found, choose(x), strict=True):
        assert torch.equal(mine, its)


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers with many ties; floats with zeros of both signs, infinities and NaN among them."""
    generator = torch.Generator().manual_seed(len(shape))
    x = (torch.randn(shape, generator=generator) * 6).round()
    if dtype.is_floating_point:
        for value, at in ((math.nan, 1), (-math.inf, 2), (math.inf, 3), (-math.nan, 4)):
            x[x == at] = value
        x = torch.where(x == 0, torch.copysign(x, torch.randn(shape, generator=generator)), x)
    return x.to(dtype)


def compiled(function: Function, x: Tensor) -> tuple[Tensor, ...]:
    with no_fallback():
        return compile_with(function, "coilwork")(x)


def same(mine: Tensor, its: Tensor) -> None:
    """Equal to the bit, but for those of a NaN."""
    assert mine.dtype == its.dtype and mine.stride() == its.stride()
    torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)
    if its.dtype.is_floating_point:
        assert torch.equal(mine.signbit() & (mine == 0), its.signbit() & (its == 0))


def compared(function: Function, x: Tensor) -> None:
    for mine, its in zip(compiled(function, x), function(x), strict=True):
        same(mine, its)


def chosen(x: Tensor, got: tuple[Tensor, ...], dim: int, k: int, *, largest: bool) -> None:
    """`got` holds the first elements of `x` in order, at different positions that hold them: of equal ones
    any.
    """
    values, positions = got
    wanted = torch.topk(x, k, dim, largest)
    assert positions.dtype == torch.int64 and values.stride() == wanted.values.stride()
    torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(x.gather(dim, positions), values, rtol=0, atol=0, equal_nan=True)
    assert (positions.sort(dim).values.diff(dim=dim) > 0).all()


def ordered(x: Tensor, dim: int = -1, *, descending: bool = False) -> tuple[Tensor, ...]:
    return tuple(torch.sort(x, dim=dim, stable=True, descending=descending))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sorts_of_every_dtype_agree(dtype: torch.dtype, descending: bool) -> None:
    for length in (37, 700):
        compared(partial(ordered, descending=descending), drawn(5, length, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_sorts_of_every_layout_agree(dtype: torch.dtype) -> None:
    x = drawn(4, 9, 6, dtype=dtype)
    for dim in range(3):
        torch._dynamo.reset()
        for given in (x, x.transpose(0, 2), x[:, ::2], x.expand(4, 9, 6).flip(1), x[1:2].expand(3, 9, 6)):
            compared(partial(ordered, dim=dim), given)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1,), (4, 1), (1, 4), (1, 70000), ()])
def test_sorts_of_any_length_agree(shape: tuple[int, ...]) -> None:
    x = drawn(*shape) if shape else torch.tensor(2.0)
    compared(ordered, x)
    compared(lambda x: (torch.argsort(x, stable=True),), x)


def test_sorts_fuse_with_producers_and_consumers() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        values, positions = torch.sort(x.softmax(-1), dim=-1, descending=True)
        return values.cumsum(-1), positions.to(torch.int32), values.amax(-1), values * 2

    x = torch.randn(60, 300, generator=torch.Generator().manual_seed(1))
    for mine, its in zip(compiled(function, x), function(x), strict=True):
        torch.testing.assert_close(mine, its)


def test_operators_based_on_sorts_agree() -> None:
    x = torch.stack(
        [torch.randperm(50, generator=torch.Generator().manual_seed(k)) for k in range(6)]
    ).float()
    compared(lambda x: (torch.msort(x), torch.argsort(x, 0), x.quantile(0.3, dim=1), x.nanquantile(0.7)), x)
    compared(lambda x: (*torch.mode(x, -1), torch.median(x), x.unique()), x)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES[:-1]])
def test_topk_of_every_dtype_agrees(dtype: torch.dtype, largest: bool) -> None:
    x = drawn(4, 300, dtype=dtype)
    for k in (1, 2, 7, 150, 300):
        got = compiled(lambda x, k=k: tuple(torch.topk(x, k, -1, largest)), x)
        chosen(x, got, -1, k, largest=largest)


def test_topk_of_every_layout_agrees() -> None:
    x = drawn(20, 40, 6)
    for dim in range(3):
        torch._dynamo.reset()
        for given in (x, x.transpose(0, 2), x[:, ::2]):
            k = min(5, given.shape[dim])
            got = compiled(lambda x, dim=dim, k=k: tuple(torch.topk(x, k, dim)), given)
            chosen(given, got, dim, k, largest=True)
    for given, k in ((x[:0], 3), (x, 0), (x[..., :1], 1), (drawn(1, 50000), 40)):
        got = compiled(lambda x, k=k: tuple(torch.topk(x, k, sorted=False)), given)
        assert got[0].shape == (*given.shape[:-1], k)
        torch.testing.assert_close(
            got[0].sort(-1).values,
            torch.topk(given, k).values.sort(-1).values,
            rtol=0,
            atol=0,
            equal_nan=True,
        )


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
)
def test_kthvalue_and_median_agree(dtype: torch.dtype) -> None:
    # no two equal ones in a row: which of them is found is free
    rows = torch.stack([torch.randperm(99, generator=torch.Generator().manual_seed(k)) for k in range(5)]).to(
        dtype
    )
    for x, dim in ((rows, -1), (rows.t(), 0), (rows[:, :1], 1)):

        def function(x: Tensor, dim: int = dim) -> tuple[Tensor, ...]:
            k = x.shape[dim] // 2 + 1
            return (
                *torch.kthvalue(x, k, dim, keepdim=True), *torch.median(x, dim), *torch.nanmedian(x, dim)
            )  # fmt: skip

        compared(function, x)
    if dtype.is_floating_point:
        some = rows.clone()
        some[2, 3], some[3] = math.nan, math.nan
        compared(lambda x: (*torch.median(x, -1), torch.nanmedian(x, -1).values), some)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.sort(x, -1, descending=True).values * torch.arange(30),
        lambda x: torch.topk(x, 7, 0).values,
        lambda x: torch.topk(x, 2).values,
        lambda x: torch.median(x, -1).values,
        lambda x: torch.kthvalue(x, 4, 0, keepdim=True).values,
        lambda x: x.quantile(0.4, dim=1),
        lambda x: torch.msort(x.exp()).cumsum(0),
    ],
)
def test_gradients_of_sorts_agree(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(12, 30, generator=torch.Generator().manual_seed(2))
    mine, its = x.clone().requires_grad_(), x.clone().requires_grad_()
    with no_fallback():
        compile_with(function, "coilwork")(mine).square().sum().backward()
    function(its).square().sum().backward()
    torch.testing.assert_close(mine.grad, its.grad)


def test_sorts_of_dynamic_length_agree() -> None:
    function = torch.compile(
        lambda x: (*torch.sort(x, dim=-1, stable=True), torch.argsort(x * 2, dim=0, stable=True)),
        backend=resolve_backend("coilwork"),
        dynamic=True,
    )
    for shape in ((3, 7), (4, 300), (2, 5000), (5, 2)):
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            x = drawn(*shape, dtype=dtype)
            with no_fallback():
                got = function(x)
            for mine, its in zip(got, (*ordered(x), torch.argsort(x * 2, dim=0, stable=True)), strict=True):
                same(mine, its)
