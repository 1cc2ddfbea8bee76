"""Scatters as simpler ones give eager's results, and refuse what eager refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions

aten = torch.ops.aten
DTYPES = (torch.float32, torch.int64)


def traced(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What the decomposed function gives, and the operators that it calls."""
    gm = make_fx(function, decomposition_table=decompositions())()
    return gm(), [str(node.target) for node in gm.graph.nodes]


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    value = torch.arange(1, 13).view(4, 3).to(dtype)
    index = torch.tensor([[0, 3, 3], [0, 1, 3], [0, 3, 3]])
    source = torch.tensor([[7, -3, 0], [2, 5, -40], [-1, 9, 3]]).to(dtype)
    return value, index, source


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_old", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce_is_decomposed_as_eager_computes_it(
    reduce: str, with_old: bool, dtype: torch.dtype
) -> None:
    value, index, source = operands(dtype)

    def function() -> Any:
        return aten.scatter_reduce.two(value, 0, index, source, reduce, include_self=with_old)

    gm = make_fx(function, decomposition_table=decompositions())()
    kept = [node for node in gm.graph.nodes if node.target is aten.scatter_reduce.two]
    assert not [node for node in kept if node.args[4] == "mean" or "include_self" in node.kwargs]
    torch.testing.assert_close(gm(), function())


def test_a_nan_stays_the_extreme() -> None:
    value, index, source = operands(torch.float32)
    source[1, 0] = float("nan")

    def function() -> Any:
        return aten.scatter_reduce.two(value, 0, index, source, "amax", include_self=False)

    found, _ = traced(function)
    torch.testing.assert_close(found, function(), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_old", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dim", [0, -1])
def test_index_reduce_is_decomposed_as_eager_computes_it(
    dim: int, reduce: str, with_old: bool, dtype: torch.dtype
) -> None:
    value, _, source = operands(dtype)
    index = torch.tensor([2, 0, 2], dtype=torch.int32)
    value, source = (value, source) if dim == 0 else (value.t(), source.t())

    def function() -> Any:
        return aten.index_reduce.default(value, dim, index, source, reduce, include_self=with_old)

    found, called = traced(function)
    assert "aten.index_reduce.default" not in called
    torch.testing.assert_close(found, function())


def test_an_index_reduce_of_another_shape_is_refused() -> None:
    value, _, source = operands(torch.float32)
    with pytest.raises(RuntimeError, match="index_reduce"):
        traced(lambda: aten.index_reduce.default(value, 0, torch.tensor([0, 1]), source, "amax"))


def test_an_index_reduce_along_no_dimension_is_refused() -> None:
    value, _, source = operands(torch.float32)
    with pytest.raises(IndexError, match="Dimension out of range"):
        traced(lambda: aten.index_reduce.default(value, 2, torch.tensor([0, 1, 2]), source, "amax"))


ZERO = torch.tensor(0)
NUMBER = torch.tensor(2.0)
NUMBERS: dict[str, Callable[[], Any]] = {
    "src": lambda: aten.scatter.src(NUMBER, 0, ZERO, torch.tensor(5.0)),
    "value": lambda: aten.scatter.value(NUMBER, -1, ZERO, 5.0),
    "reduce": lambda: aten.scatter.reduce(NUMBER, 0, ZERO, torch.tensor(5.0), reduce="multiply"),
    "value_reduce": lambda: aten.scatter.value_reduce(NUMBER, 0, ZERO, 5.0, reduce="add"),
    "scatter_add": lambda: aten.scatter_add(NUMBER, 0, torch.tensor([0]), torch.tensor([5.0])),
    "into a row": lambda: aten.scatter_add(torch.tensor([1.0, 2.0]), 0, torch.tensor(1), torch.tensor(5.0)),
    "scatter_reduce": lambda: aten.scatter_reduce.two(NUMBER, 0, ZERO, torch.tensor(5.0), "amax"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_scatters_into_single_numbers_keep_their_shape(name: str) -> None:
    found, _ = traced(NUMBERS[name])
    expected = NUMBERS[name]()
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("accumulate", [True, False])
def test_put_is_decomposed_as_eager_computes_it(accumulate: bool) -> None:
    value = torch.arange(6.0).view(2, 3)
    index, source = torch.tensor([[0, -1], [4, 0]]), torch.tensor([[1.0, 2.0], [3.0, 1.0]])

    def function() -> Any:
        return aten.put.default(value, index, source, accumulate)

    found, called = traced(function)
    assert "aten.put.default" not in called
    torch.testing.assert_close(found, function())


@pytest.mark.parametrize("remainder", [0, 1, 4])
@pytest.mark.parametrize("sizes", [(12,), (3, 5)])
def test_the_gradient_of_a_masked_scatter(sizes: tuple[int, ...], remainder: int) -> None:
    gradient = torch.arange(1.0, 13).view(4, 3)
    mask = gradient % 4 > remainder

    def function() -> Any:
        return aten.masked_scatter_backward.default(gradient, mask, list(sizes))

    found, calls = traced(function)
    assert "aten.masked_scatter_backward.default" not in calls
    assert torch.equal(found, function())


FILLED: dict[str, Callable[[], tuple[torch.Tensor, int, torch.Tensor, Any]]] = {
    "rows": lambda: (torch.rand(4, 3), 0, torch.tensor([2, -1]), 5.0),
    "transposed": lambda: (torch.rand(4, 3).t(), 0, torch.tensor([1]), 5.0),
    "with gaps": lambda: (torch.rand(6, 4)[::2, ::2], 1, torch.tensor(1), 5.0),
    "of size one": lambda: (torch.rand(3, 1, 4).permute(2, 1, 0), -3, torch.tensor([0]), 5.0),
    "a number": lambda: (torch.rand(()), 0, torch.tensor([0]), 5.0),
    "no rows": lambda: (torch.rand(4, 3), 1, torch.tensor([], dtype=torch.int64), 5.0),
    "of another type": lambda: (
        torch.zeros(4, 3, dtype=torch.int32),
        1,
        torch.tensor([2]),
        torch.tensor(2.7),
    ),
}


@pytest.mark.parametrize("name", FILLED)
def test_index_fill_is_decomposed_as_eager_computes_it(name: str) -> None:
    value, dim, index, filling = FILLED[name]()

    def function() -> Any:
        return value.index_fill(dim, index, filling)

    found, called = traced(function)
    expected = function()
    # AOTAutograd refuses writes
    assert not [name for name in called if name.rpartition(".")[0].endswith("_")]
    assert torch.equal(found, expected)
    assert found.dtype is expected.dtype
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("index", [torch.tensor([[1]]), torch.tensor([1], dtype=torch.int32)])
def test_rows_that_are_no_list_of_positions_are_not_filled(index: torch.Tensor) -> None:
    with pytest.raises((IndexError, RuntimeError), match=r"[Ii]ndex"):
        traced(lambda: torch.rand(4, 3).index_fill(0, index, 5.0))
