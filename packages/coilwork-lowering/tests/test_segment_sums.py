"""Sums at positions from tensors, made by sorting: against eager and against f64, to the bit from
run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
from aot_compilers import TracingMode
from lowering_against_eager import externs, trace_and_lower
from torch.utils import _pytree as pytree

from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Reduce, Scatter, Sort
from coilwork_lowering import Lowered, LoweringOptions
from coilwork_lowering.ops.scattering.elements import PIECE

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def sorts_whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "coilwork_lowering.ops.scattering.segment_sums.has_few_rows", lambda elements, machine: False
    )


SORTED = LoweringOptions(accumulation="sorted")


def run(
    function: Callable[..., Any], *inputs: torch.Tensor, mode: TracingMode = "fake"
) -> tuple[Lowered, Any]:
    lowered = trace_and_lower(function, inputs, options=SORTED, mode=mode)
    assert externs(lowered.graph) == []
    assert not any(isinstance(node, Scatter) for node in lowered.graph.nodes)
    given = [x.clone() for x in inputs]
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, given)
    return lowered, found


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> Lowered:
    """As eager with every float in f64."""
    lowered, found = run(function, *inputs)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    (wanted,) = pytree.tree_leaves(function(*wide))
    assert found.shape == wanted.shape
    assert found.dtype == next(x.dtype for x in inputs if x.is_floating_point())
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4}.get(found.dtype, 2e-2)
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    return lowered


@pytest.mark.parametrize("count", [0, 1, 5, PIECE, 4 * PIECE - 1, 4 * PIECE, 333])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 3), (7, 1), (40, 5)])
def test_gradients_of_embeddings_are_sums_of_segments(count: int, rows: int, width: int) -> None:
    ids = torch.randint(0, rows, (count,))
    grad = torch.randn(count, width)
    check(lambda g, i: aten.embedding_dense_backward(g, i, rows, -1, False), grad, ids)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_embedding_backward_adds_wide(dtype: torch.dtype, index: torch.dtype) -> None:
    ids = torch.randint(0, 3, (4, 100), dtype=index)
    grad = torch.rand(4, 100, 6).to(dtype)
    check(lambda g, i: aten.embedding_dense_backward(g, i, 5, -1, False), grad, ids)


def test_the_row_of_padding_has_no_gradient() -> None:
    ids, grad = torch.randint(0, 4, (200,)), torch.randn(200, 6)
    _, found = run(lambda g, i: aten.embedding_dense_backward(g, i, 4, 2, False), grad, ids)
    assert found[2].abs().max() == 0
    check(lambda g, i: aten.embedding_dense_backward(g, i, 4, 2, False), grad, ids)


def test_one_row_may_have_all_elements() -> None:
    grad = torch.randn(50 * PIECE + 3, 2)
    ids = torch.full((50 * PIECE + 3,), 1)
    lowered = check(lambda g, i: aten.embedding_dense_backward(g, i, 3, -1, False), grad, ids)
    (axis,) = [n for n in lowered.graph.nodes if isinstance(n, Reduce)][-1].axes
    # far fewer steps than elements
    assert axis.extent is not None and axis.extent.value == 50 + 2 * (PIECE - 1)


def test_special_values_stay_in_their_rows() -> None:
    nan, inf = float("nan"), float("inf")
    grad = torch.tensor([[nan, inf], [1.0, -inf], [inf, 1.0], [2.0, 3.0]])
    ids = torch.tensor([0, 0, 1, 3])
    _, found = run(lambda g, i: aten.embedding_dense_backward(g, i, 4, -1, False), grad, ids)
    torch.testing.assert_close(found, torch.tensor([[nan, nan], [inf, 1], [0, 0], [2, 3]]), equal_nan=True)


def test_index_put_and_index_add() -> None:
    x = torch.randn(6, 5, 7)
    i, j = torch.tensor([0, -1, 3, 3, 0]), torch.tensor([0, 1, 2, 2, -5])
    check(lambda a, k, v: aten.index_put(a, [k], v, True), x, i.repeat(40), torch.randn(200, 5, 7))
    check(lambda a, k, v: aten.index_put(a, [None, k], v, True), x, i, torch.randn(6, 5, 7))
    check(lambda a, k, h, v: aten.index_put(a, [k, h], v, True), x, i, j, torch.randn(5, 7))
    check(lambda a, k, h, v: aten.index_put(a, [k, None, h], v, True), x, i, j, torch.randn(5, 5))
    check(
        lambda a, k, v: aten.index_put(a, [k], v, True), x, torch.tensor([[0, -1], [3, 3]]), torch.tensor(2.0)
    )
    check(lambda a, k, v: aten.index_put(a, [k], v, True), x.bfloat16(), i, torch.randn(5, 5, 7).bfloat16())
    check(lambda a, k, v: a.index_add(1, k, v, alpha=2), x, torch.tensor([0, 4, 3]), torch.randn(6, 3, 7))
    check(lambda a, k, v: a.index_add(0, k, v), x, torch.empty(0, dtype=torch.int64), torch.empty(0, 5, 7))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, g, m: x.index_add(0, torch.where(m)[0], g[torch.where(m)]),
        lambda x, g, m: x.index_put((torch.where(m)[0],), g[torch.where(m)], accumulate=True),
    ],
)
def test_rows_that_were_found_are_in_order(function: Callable[..., Any]) -> None:
    inputs = (torch.randn(9, 5), torch.randn(9, 2, 5), torch.rand(9, 2) > 0.5)
    lowered = trace_and_lower(function, inputs, options=SORTED, mode="symbolic")
    assert not any(isinstance(node, Sort | Scatter) for node in lowered.graph.nodes)
    assert set(externs(lowered.graph)) <= {"aten.nonzero.default"}


def test_scatters_that_add_are_sums_of_segments() -> None:
    x, i = torch.randn(6, 5, 7), torch.randint(0, 5, (6, 9, 7))
    check(lambda a, k, v: a.scatter_add(1, k, v), x, i, torch.randn(6, 9, 7))
    check(lambda a, k, v: a.scatter_add(0, k, v), x, i[:, :2, :3], torch.randn(10, 5, 7))
    check(lambda a, k, v: a.scatter_reduce(1, k, v, "sum"), x, i, torch.randn(6, 9, 7))
    check(lambda a, k: a.scatter(1, k, 1.5, reduce="add"), x, i)
    check(lambda a, k, v: a.scatter_add(1, k, v), x.half(), i, torch.randn(6, 9, 7).half())


@pytest.mark.parametrize("count", [5, 4 * PIECE, 9 * PIECE + 1])
@pytest.mark.parametrize("shape", [(7, 3), (1, 4, 2, 3)])
@pytest.mark.parametrize("hot", [False, True])
def test_along_the_first_dimension_positions_in_it_are_sorted(
    count: int, shape: tuple[int, ...], hot: bool
) -> None:
    dim = next(k for k, extent in enumerate(shape) if extent != 1)
    x, wide = torch.randn(shape), [count if k == dim else extent for k, extent in enumerate(shape)]
    i, v = torch.randint(0, shape[dim], wide), torch.randn(wide)
    if hot:
        # a piece of sorted positions of one row, and pieces of elements of different columns
        i[:] = 2
    lowered = check(lambda a, k, s: a.scatter_add(dim, k, s), x, i, v)
    (sort,) = [n for n in lowered.graph.nodes if isinstance(n, Sort)]
    assert sort.body.dtype is DType.I8
    check(lambda a, k, s: a.scatter_reduce(dim, k, s, "sum", include_self=False), x, i, v)
    check(lambda a, k, s: a.scatter_reduce(dim, k, s, "mean", include_self=False), x, i, v)
    _, found = run(lambda a, k, s: a.scatter_add(dim, k, s), x, i, v, mode="symbolic")
    torch.testing.assert_close(found, x.scatter_add(dim, i, v), rtol=1e-4, atol=1e-4)


def test_one_element_along_the_dimension_needs_no_order() -> None:
    x, i, v = torch.randn(40, 6), torch.randint(0, 6, (40, 1)), torch.randn(40, 1)
    lowered = trace_and_lower(lambda a, k, s: a.scatter_add(1, k, s), (x, i, v), options=SORTED)
    assert not any(isinstance(node, Sort) for node in lowered.graph.nodes)
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [x.clone(), i, v])
    assert torch.equal(found, x.scatter_add(1, i, v))


@pytest.mark.parametrize(
    ("rows", "padding", "width"),
    [
        (256, -1, DType.I8),
        (255, 3, DType.I8),
        (256, 3, DType.I16),
        (257, -1, DType.I16),
        (65536, -1, DType.I16),
        (65536, 3, DType.I32),
    ],
)
def test_keys_are_as_narrow_as_rows_allow(rows: int, padding: int, width: DType) -> None:
    ids = torch.tensor([0, rows - 1, rows // 2, rows // 2 - 1, 3, rows - 1, 1]).repeat(30)
    lowered = check(
        lambda g, i: aten.embedding_dense_backward(g, i, rows, padding, False), torch.randn(210, 2), ids
    )
    (sort,) = [n for n in lowered.graph.nodes if isinstance(n, Sort)]
    assert sort.body.dtype is width


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scatters_that_reduce_are_reductions_of_segments(
    reduce: str, include_self: bool, dtype: torch.dtype
) -> None:
    x, v = torch.randn(6, 5, 7).to(dtype), torch.randn(6, 9, 7).to(dtype)

    def function(a: torch.Tensor, k: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return a.scatter_reduce(1, k, s, reduce, include_self=include_self)

    # row 4 is hit by nothing
    check(function, x, torch.randint(0, 4, (6, 9, 7)), v)
    check(function, x, torch.randint(0, 4, (1, 9, 1)).expand(6, 9, 7), v)
    check(function, x, torch.empty(6, 0, 7, dtype=torch.int64), v[:, :0])


def test_an_index_for_whole_rows_sorts_rows() -> None:
    x, v, i = torch.randn(6, 5, 7), torch.randn(6, 9, 7), torch.randint(0, 5, (9,))
    lowered = check(lambda a, k, s: a.scatter_add(1, k.view(1, 9, 1).expand(6, 9, 7), s), x, i, v)
    (sort,) = [n for n in lowered.graph.nodes if isinstance(n, Sort)]
    assert [r.extent.value for r in sort.ranges if r.extent is not None] == [9]


def test_indices_out_of_range_are_told() -> None:
    for bad in (-7, 6):
        with pytest.raises(IndexError, match="index_put"):
            run(
                lambda a, k, v: aten.index_put(a, [k], v, True),
                torch.zeros(6, 2),
                torch.tensor([0, bad]),
                torch.ones(2, 2),
            )
    with pytest.raises(IndexError, match="embedding_dense_backward"):
        run(
            lambda g, i: aten.embedding_dense_backward(g, i, 4, -1, False),
            torch.ones(2, 2),
            torch.tensor([0, 4]),
        )


def test_sizes_may_be_unknown() -> None:
    ids, grad = torch.randint(0, 9, (150,)), torch.randn(150, 4)

    def function(g: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = aten.embedding_dense_backward(g, i, 9, -1, False)
        return found

    _, found = run(function, grad, ids, mode="symbolic")
    torch.testing.assert_close(found, function(grad, ids))


def test_integers_and_atomic_sums_need_no_sort() -> None:
    ids = torch.tensor([0, 1, 1])
    whole, floats = torch.ones(3, 2, dtype=torch.int64), torch.ones(3, 2)
    for options, grad in ((SORTED, whole), (LoweringOptions(accumulation="atomic"), floats)):
        lowered = trace_and_lower(
            lambda a, k, v: a.index_add(0, k, v),
            (torch.zeros(2, 2).to(grad.dtype), ids, grad),
            options=options,
        )
        assert [type(n) for n in lowered.graph.nodes if isinstance(n, Scatter | Sort)] == [Scatter]


def test_on_a_cpu_one_thread_adds_in_order() -> None:
    ids, grad = torch.randint(0, 4, (200,)), torch.randn(200, 6).bfloat16()
    lowered = trace_and_lower(lambda g, i: aten.embedding_dense_backward(g, i, 4, 1, False), (grad, ids))
    assert externs(lowered.graph) == []
    assert [type(n) for n in lowered.graph.nodes if isinstance(n, Scatter | Sort)] == [Scatter]
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [grad, ids])
    wanted = aten.embedding_dense_backward(grad.double(), ids, 4, 1, False)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)
