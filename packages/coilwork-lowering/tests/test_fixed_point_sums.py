"""Sums of single elements in fixed point: within a rounding of exact sums, and the same in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, trace_and_lower

from coilwork_ir.index import as_int
from coilwork_ir.loops import Scatter, Sort
from coilwork_ir.machine import change_figures, find_like_model
from coilwork_ir.scalar import Load, iterate_postorder
from coilwork_ir.target import get_target
from coilwork_lowering import Lowered, LoweringOptions

INF, NAN = float("inf"), float("nan")
FIXED = LoweringOptions(accumulation="fixed")


@pytest.fixture(autouse=True, params=[False, True], ids=["few", "many"])
def as_on_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are summed by comparing, whatever the device. Few elements may have units of their sums' own,
    and common ones.
    """
    monkeypatch.setattr(
        "coilwork_lowering.ops.scattering.segment_sums.has_few_rows", lambda elements, machine: False
    )
    if request.param:
        one = change_figures(find_like_model("cpu"), {"scatters.many_elements": 1})
        monkeypatch.setattr("coilwork_ir.machine.data_file.read_model", lambda path: one)


def run(
    function: Callable[..., Any], *inputs: torch.Tensor, options: LoweringOptions = FIXED
) -> tuple[Lowered, Any]:
    lowered = trace_and_lower(function, inputs, options=options, mode="fake")
    assert externs(lowered.graph) == []
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [x.clone() for x in inputs])
    return lowered, found


def kinds(lowered: Lowered) -> set[type]:
    return {type(node) for node in lowered.graph.nodes}


def fixed(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.Tensor:
    """The result, of which integers have been added in memory and nothing has been sorted."""
    lowered, found = run(function, *inputs)
    assert Scatter in kinds(lowered) and Sort not in kinds(lowered)
    assert all(not node.output.dtype.is_float for node in lowered.graph.nodes if isinstance(node, Scatter))
    return found


def close(found: torch.Tensor, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Within a rounding of what comes of `f64`."""
    wanted = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    torch.testing.assert_close(found, wanted.to(found.dtype), rtol=2 * torch.finfo(found.dtype).eps, atol=0)


def added(dim: int) -> Callable[..., Any]:
    return lambda x, i, s: torch.scatter_add(x, dim, i, s)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_as_the_sum_in_f64(dim: int, dtype: torch.dtype) -> None:
    shape = [5, 6, 7]
    longer = [n if k != dim else 40 for k, n in enumerate(shape)]
    # positive: what is cancelled by the old element is not the sum's to keep
    x, source = torch.rand(shape, dtype=dtype), torch.rand(longer, dtype=dtype)
    index = torch.randint(0, shape[dim], longer)
    close(fixed(added(dim), x, index, source), added(dim), x, index, source)


@pytest.mark.parametrize("dim", [0, 1])
def test_every_order_gives_the_same_bits(dim: int) -> None:
    x = torch.zeros(8, 4) if dim == 0 else torch.zeros(4, 8)
    source = torch.randn(200, 4) * 10.0 ** torch.randint(-20, 20, (200, 4))
    index = torch.randint(0, 8, (200, 4))
    order = torch.randperm(200)
    results = [
        fixed(added(dim), x, i.t().contiguous() if dim else i, s.t().contiguous() if dim else s)
        for i, s in ((index, source), (index[order], source[order]))
    ]
    assert torch.equal(*results)
    # sums in f32, one after the other, do not
    assert not torch.equal(
        *(torch.zeros(8, 4).scatter_add(0, i, s) for i, s in ((index, source), (index[order], source[order])))
    )


def test_large_elements_that_cancel_leave_what_small_ones_add_up_to() -> None:
    index = torch.zeros(4, 1, dtype=torch.int64)
    source = torch.tensor([[2.0**20], [1.0], [-(2.0**20)], [2.0**-10]])
    assert fixed(added(0), torch.zeros(1, 1), index, source).item() == 1.0 + 2.0**-10


def test_each_sum_has_its_own_unit() -> None:
    index = torch.tensor([[0], [0], [1], [1], [2]])
    source = torch.tensor([[3e38], [-1e38], [1e-44], [2e-45], [0.0]])
    found = fixed(added(0), torch.zeros(4, 1), index, source).flatten()
    assert found.tolist() == (
        source[:, 0].double()[[0, 2]] + source[:, 0].double()[[1, 3]]
    ).float().tolist() + [0, 0]


def test_sums_beyond_the_largest_number_are_infinite() -> None:
    index = torch.zeros(2, 1, dtype=torch.int64)
    assert fixed(added(0), torch.zeros(1, 1), index, torch.full((2, 1), -3e38)).item() == -INF


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ((INF, 1.0, INF), INF),
        ((-INF, 1.0, -INF), -INF),
        ((INF, -INF, 1.0), NAN),
        ((NAN, 1.0, 2.0), NAN),
        ((NAN, NAN, NAN), NAN),
        ((-INF, NAN, 3e38), NAN),
        ((3e38, 1.0, -INF), -INF),
    ],
)
def test_what_is_no_number(numbers: tuple[float, ...], wanted: float) -> None:
    index = torch.tensor([[1], [1], [1], [0]])
    source = torch.tensor([*numbers, 5.0]).reshape(4, 1)
    found = fixed(added(0), torch.ones(2, 1), index, source).flatten()
    torch.testing.assert_close(found, torch.tensor([6.0, wanted]), equal_nan=True)


def test_means_and_sums_without_the_old_elements_count_what_was_added() -> None:
    x, source = torch.rand(6, 3), torch.rand(30, 3)
    index = torch.randint(0, 5, (30, 3))
    for reduce in ("mean", "sum"):
        for include_self in (True, False):

            def reduced(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
                return torch.scatter_reduce(x, 0, i, s, reduce, include_self=include_self)  # noqa: B023

            found = fixed(reduced, x, index, source)
            wanted = reduced(x.double(), index, source.double())
            torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)


def test_single_elements_of_an_index_put() -> None:
    def put(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.index_put(x, (i, j), v, accumulate=True)

    x, values = torch.rand(5, 7), torch.rand(300)
    i, j = torch.randint(-5, 5, (300,)), torch.randint(0, 7, (300,))
    close(fixed(put, x, i, j, values), put, x, i, j, values)


@pytest.mark.parametrize("dim", [0, 1])
def test_an_index_out_of_range_is_found(dim: int) -> None:
    index = torch.zeros(6, 5, dtype=torch.int64)
    index[2, 3] = 5
    with pytest.raises(Exception, match="out of range"):
        run(added(dim), torch.zeros(5, 5) if dim == 0 else torch.zeros(6, 5), index, torch.ones(6, 5))


def test_what_sorts_instead() -> None:
    x, index, source = torch.rand(6, 3), torch.randint(0, 6, (30, 3)), torch.rand(30, 3)
    sorts = [
        (LoweringOptions(accumulation="sorted"), x, index, source),
        # as all have one place, they would wait for each other
        (FIXED, x[:1, :1], torch.zeros(100, 1, dtype=torch.int64), torch.rand(100, 1)),
        (FIXED, x.double(), index, source.double()),
        # a large table, most of which stays as it is
        (FIXED, torch.zeros(300_000, 1), torch.zeros(9, 1, dtype=torch.int64), torch.rand(9, 1)),
    ]
    for options, *inputs in sorts:
        lowered, found = run(added(0), *inputs, options=options)
        assert Sort in kinds(lowered) and Scatter not in kinds(lowered)
        torch.testing.assert_close(found, added(0)(*inputs))


def test_neighbouring_runs_are_taken_as_far_as_a_cache_goes() -> None:
    x, s = torch.randn(100, 64), torch.randn(500, 64)
    i = torch.randint(100, (500, 64))

    def taken(resident_bytes: int) -> set[int | None]:
        """How many neighbours share a group, of all additions."""
        options = replace(FIXED, resident_bytes=resident_bytes)
        lowered, found = run(added(0), x, i, s, options=options)
        torch.testing.assert_close(found, added(0)(x, i, s))
        scatters = [n for n in lowered.graph.nodes if isinstance(n, Scatter) and n.mode == "add"]
        return {as_int(node.ranges[-1].extent) for node in scatters if node.ranges[-1].extent is not None}

    # a sum takes at most 16 bytes, and 100 of them make a run's
    assert taken(get_target("sm_90").resident_bytes) == {64}
    assert taken(16 * 100 * 16) == {16}
    assert taken(16 * 100 * 4) == {1}


def test_what_is_left_out_reads_nothing_behind_the_sums() -> None:
    """The row of padding has no gradient; its elements' key is the number of rows."""

    def gradient(g: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten.embedding_dense_backward(g, i, 6, 2, False)
        return result

    grad, ids = torch.rand(40, 1), torch.randint(0, 6, (40,))
    lowered, found = run(gradient, grad, ids)
    close(found, gradient, grad, ids)
    reads = [
        scalar
        for node in lowered.graph.nodes
        if isinstance(node, Scatter)
        for scalar in iterate_postorder((node.value,))
        if isinstance(scalar, Load) and "exponents" in scalar.buffer
    ]
    assert reads and all(load.mask is not None for load in reads)
