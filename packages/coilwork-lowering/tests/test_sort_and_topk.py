"""Sorted rows and the largest and smallest elements, as an accelerator gets them: against eager
on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.loops import Graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.machine import find_like_model
from coilwork_lowering import LoweringOptions, lower

LONGEST_ROW = find_like_model("cuda").sorts.on_chip
NAN, INF = float("nan"), float("inf")


TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.int8, torch.uint8]
ROWS = torch.tensor(
    [
        [1.0, 1.0, 1.0, 1.0, 1.0],
        [NAN, 1.0, NAN, NAN, INF],
        [-INF, -INF, -INF, -INF, 2.0],
        [NAN, NAN, NAN, NAN, NAN],
        [0.0, -0.0, 0.0, -1.0, 1e-45],
        [2.0, NAN, -0.0, 0.0, -INF],
    ]
)


KERNELS = LoweringOptions(sorting="kernels")


def for_accelerator(
    function: Callable[..., Any], *inputs: torch.Tensor, options: LoweringOptions = KERNELS
) -> Graph:
    """The graph that `function` gives on a GPU, with its memory on the CPU."""
    mode = FakeTensorMode()
    with mode:
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs]
        gm = make_fx(function)(*fakes)
    graph = parse_graph(format_graph(lower(gm, name="graph", options=options).graph).replace("cuda:0", "cpu"))
    verify_graph(graph)
    return graph


def check(x: torch.Tensor, k: int, dim: int = -1, *, largest: bool = True) -> None:
    def function(a: torch.Tensor) -> Any:
        return torch.topk(a, k, dim, largest)

    graph = for_accelerator(function, x)
    assert externs(graph) == []
    values, positions = loop_evaluator.run(graph, {}, [x])
    wanted = function(x)
    assert positions.dtype == torch.int64 and positions.shape == wanted.indices.shape
    assert values.dtype == x.dtype and values.stride() == wanted.values.stride()
    torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)
    # which of equal ones is chosen is free, but none twice
    torch.testing.assert_close(x.gather(dim, positions), values, rtol=0, atol=0, equal_nan=True)
    ordered = positions.sort(dim).values
    assert (ordered.diff(dim=dim) > 0).all()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
def test_topk_takes_every_type(dtype: torch.dtype, largest: bool) -> None:
    x = (torch.randn(5, 40) * 20).to(dtype)
    for k in (1, 2, 8, 11, 40):
        check(x, k, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
def test_rows_of_equal_and_special_elements(largest: bool) -> None:
    rows = torch.tensor(
        [
            [1.0, 1.0, 1.0, 1.0, 1.0],
            [NAN, 1.0, NAN, NAN, INF],
            [-INF, -INF, -INF, -INF, 2.0],
            [NAN, NAN, NAN, NAN, NAN],
            [0.0, -0.0, 0.0, -1.0, 1e-45],
        ]
    )
    for k in range(1, 6):
        check(rows, k, largest=largest)


def test_topk_orders_the_extreme_integers() -> None:
    info = torch.iinfo(torch.int32)
    rows = torch.tensor(
        [[info.min, info.min, info.max, 0], [info.max] * 4, [info.min] * 4], dtype=torch.int32
    )
    check(rows, 3)
    check(rows, 3, largest=False)


def test_topk_works_along_every_dimension() -> None:
    x = torch.randn(3, 9, 4)
    for dim in (0, 1, 2):
        check(x, 2, dim)
        check(x, x.shape[dim], dim)
    check(torch.randn(7), 2, 0)
    check(torch.randn(4, 6).t(), 3, 0)


def test_of_equal_ones_the_first_is_chosen() -> None:
    graph = for_accelerator(lambda a: torch.topk(a, 3), torch.zeros(2, 9))
    _, positions = loop_evaluator.run(graph, {}, [torch.zeros(2, 9)])
    assert positions.tolist() == [[0, 1, 2], [0, 1, 2]]


def same(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """`function` gives what eager gives to the bit, positions included, and calls nothing of ATen."""
    graph = for_accelerator(function, *inputs)
    assert externs(graph) == []
    found = loop_evaluator.run(graph, {}, list(inputs))
    wanted = function(*inputs)
    for mine, its in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert mine.dtype == its.dtype and mine.stride() == its.stride()
        torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)
        if its.dtype.is_floating_point:
            assert torch.equal(mine.signbit() & (mine == 0), its.signbit() & (its == 0))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [*TYPES, torch.bool])
def test_sorts_of_every_type(dtype: torch.dtype, descending: bool) -> None:
    x = (torch.randn(4, 33) * 3).round().to(dtype)
    same(partial(torch.sort, dim=-1, stable=True, descending=descending), x)
    same(partial(torch.argsort, dim=0, descending=descending, stable=True), x)


@pytest.mark.parametrize("descending", [False, True])
def test_sorts_of_special_elements(descending: bool) -> None:
    same(partial(torch.sort, dim=-1, stable=True, descending=descending), ROWS)
    same(partial(torch.sort, dim=0, stable=True, descending=descending), ROWS.t().contiguous())
    same(partial(torch.sort, dim=-1, stable=True, descending=descending), ROWS.bfloat16())


def test_sorts_of_every_layout() -> None:
    x = torch.randn(3, 8, 5).round()
    for dim in range(-3, 3):
        same(partial(torch.sort, dim=dim, stable=True), x)
        same(partial(torch.sort, dim=dim, stable=True), x.transpose(0, 2))
        same(partial(torch.sort, dim=dim, stable=True), x[:, ::2])
    same(partial(torch.sort, dim=-1, stable=True), torch.randn(9))
    same(partial(torch.sort, dim=-1, stable=True), torch.randn(4, 1))
    same(partial(torch.sort, dim=0, stable=True), torch.randn(1, 4))
    same(lambda a: torch.msort(a), torch.randn(6, 2))


def test_what_is_around_a_sort() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, positions = torch.sort(a * 2 - 1, dim=-1, stable=True)
        return values.cumsum(-1), positions + 1, values.exp()

    x = torch.randn(5, 12)
    graph = for_accelerator(function, x)
    assert externs(graph) == []
    for mine, its in zip(loop_evaluator.run(graph, {}, [x]), function(x), strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8])
def test_elements_by_rank(dtype: torch.dtype) -> None:
    # no two equal ones in a row: which of them is found is free
    x = torch.stack([torch.randperm(21) for _ in range(4)]).to(dtype)
    for k in (1, 7, 21):
        same(partial(torch.kthvalue, k=k), x)
        same(partial(torch.kthvalue, k=k, dim=0, keepdim=True), x.t())
    for row in (x, x[:, :20], x[:, :1]):
        same(lambda a: torch.median(a, -1), row)
        same(lambda a: torch.median(a, 1, keepdim=True), row)
        same(lambda a: torch.nanmedian(a, -1), row)


def test_medians_with_nan() -> None:
    rows = torch.tensor(
        [[3.0, NAN, 1.0, 2.0], [NAN, NAN, NAN, NAN], [4.0, 3.0, 2.0, 1.0], [NAN, -INF, INF, 0.0]]
    )
    same(lambda a: torch.median(a, -1), rows)
    same(lambda a: torch.nanmedian(a, -1).values, rows)
    same(lambda a: torch.nanmedian(a, -1, keepdim=True).indices, rows[[0, 2, 3]])
    same(lambda a: torch.kthvalue(a, 2).values, rows)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.uint8])
def test_first_elements_of_long_rows(dtype: torch.dtype, largest: bool) -> None:
    x = (torch.randn(2, 3 * LONGEST_ROW + 77) * 50).to(dtype)
    if dtype.is_floating_point:
        x[0, 5::7], x[0, 9::11], x[1, 1000:] = INF, -INF, -INF if largest else NAN
    check(x, 40, largest=largest)
    check(x[:, : 2 * LONGEST_ROW].t(), 3, 0, largest=largest)
    check(x[0], 100, largest=largest)


def test_of_equal_elements_of_long_rows_the_first_are_chosen() -> None:
    x = torch.zeros(2, LONGEST_ROW + 9)
    _, positions = loop_evaluator.run(for_accelerator(lambda a: torch.topk(a, 12), x), {}, [x])
    assert torch.equal(positions, torch.arange(12).expand(2, 12))
    x[:] = -INF
    x[:, -2:] = 0
    _, positions = loop_evaluator.run(for_accelerator(lambda a: torch.topk(a, 5), x), {}, [x])
    assert positions[0].tolist() == [LONGEST_ROW + 7, LONGEST_ROW + 8, 0, 1, 2]


def test_what_stays_with_aten() -> None:
    called = ["aten.topk.default"]
    for x, k in (
        (torch.zeros(2, LONGEST_ROW + 1), LONGEST_ROW // 2 + 1),
        (torch.zeros(2, 9, dtype=torch.float64), 2),
        (torch.zeros(2, 9, dtype=torch.int64), 2),
        (torch.zeros(0, 9), 2),
        (torch.tensor(1.0), 1),
    ):
        assert externs(for_accelerator(partial(torch.topk, k=k), x)) == called
    assert externs(for_accelerator(torch.sort, torch.zeros(2, LONGEST_ROW + 1))) == ["aten.sort.default"]


def test_by_default_accelerators_sort_in_kernels_but_long_rows_across_memory() -> None:
    x = torch.randn(80, 70)
    for function, called in (
        (partial(torch.topk, k=20), "aten.topk.default"),
        (torch.sort, "aten.sort.default"),
        (partial(torch.median, dim=-1), "aten.median.dim"),
        (partial(torch.kthvalue, k=3), "aten.kthvalue.default"),
    ):
        assert externs(for_accelerator(function, x, options=LoweringOptions())) == []
        assert externs(for_accelerator(function, x.t(), options=LoweringOptions())) == [called]
        # what lies across memory and is short shares a warp
        assert externs(for_accelerator(function, x[:40].t(), options=LoweringOptions())) == []
        assert externs(for_accelerator(function, x, options=LoweringOptions(sorting="calls"))) == [called]
    # two passes over a row have no need of its order in memory
    assert externs(for_accelerator(partial(torch.topk, k=2), x.t(), options=LoweringOptions())) == []


def test_rows_of_unknown_length_stay_with_aten() -> None:
    gm = make_fx(partial(torch.sort, dim=-1, stable=True), tracing_mode="symbolic")(torch.zeros(3, 7))
    options = LoweringOptions(sorting="kernels", sorts_in_memory=False)
    assert externs(lower(gm, name="graph", options=options).graph) == ["aten.sort.stable"]


def on_a_cpu(function: Callable[..., Any], x: torch.Tensor, **options: Any) -> list[str]:
    """What is called, after a comparison with eager."""
    graph = trace_and_lower(function, (x,), options=LoweringOptions(**options)).graph
    found, wanted = loop_evaluator.run(graph, {}, [x]), function(x)
    torch.testing.assert_close(tuple(found), tuple(wanted), rtol=0, atol=0, equal_nan=True)
    return externs(graph)


@pytest.mark.parametrize("dtype", [*TYPES, torch.bool, torch.float64, torch.int64])
def test_a_cpu_sorts_rows_of_any_type_and_length(dtype: torch.dtype) -> None:
    for length in (9, LONGEST_ROW + 1):
        x = (torch.randn(2, length) * 20).to(dtype)
        assert on_a_cpu(partial(torch.sort, dim=-1, stable=True), x) == []
        assert on_a_cpu(partial(torch.sort, dim=0, stable=True, descending=True), x.t()) == []
    if dtype.is_floating_point:
        assert on_a_cpu(partial(torch.sort, dim=-1, stable=True), ROWS.to(dtype)) == []


def test_a_cpu_sorts_rows_of_unknown_length() -> None:
    gm = make_fx(partial(torch.sort, dim=-1, stable=True), tracing_mode="symbolic")(torch.zeros(3, 7))
    assert externs(lower(gm, name="graph").graph) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.float64, torch.int64])
def test_a_cpu_chooses_elements_of_up_to_32_bits(dtype: torch.dtype) -> None:
    x = torch.stack([torch.randperm(3 * LONGEST_ROW).bitwise_and(255) for _ in range(2)])
    few = torch.stack([torch.randperm(200) for _ in range(3)]).to(dtype)
    called = dtype in (torch.float64, torch.int64)
    for function, name in (
        (partial(torch.topk, k=1), "aten.topk.default"),
        (partial(torch.topk, k=2, largest=False), "aten.topk.default"),
        (partial(torch.topk, k=9), "aten.topk.default"),
        (partial(torch.topk, k=200), "aten.topk.default"),
        (partial(torch.kthvalue, k=70), "aten.kthvalue.default"),
        (partial(torch.median, dim=-1), "aten.median.dim"),
        (partial(torch.nanmedian, dim=-1), "aten.nanmedian.dim"),
    ):
        assert on_a_cpu(function, few) == ([name] if called else [])
        assert on_a_cpu(function, few, sorting="kernels") == []
        assert on_a_cpu(function, few, sorting="calls") == [name]
    assert on_a_cpu(lambda a: (torch.topk(a, 40).values,), x.to(torch.int16)) == []


def test_what_a_cpu_leaves_to_aten() -> None:
    for x in (torch.zeros(0, 9), torch.zeros(9, 0), torch.tensor(1.0)):
        assert on_a_cpu(partial(torch.sort, dim=-1, stable=True), x) == ["aten.sort.stable"]
    assert on_a_cpu(partial(torch.topk, k=0), torch.zeros(2, 9)) == ["aten.topk.default"]
    zeros = (torch.zeros(2, 9),)
    as_accelerator = LoweringOptions(sorts_in_memory=False)
    assert externs(trace_and_lower(lambda a: torch.topk(a, 2), zeros, options=as_accelerator).graph) == [
        "aten.topk.default"
    ]
