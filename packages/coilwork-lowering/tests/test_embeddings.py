"""Rows of a table combined bag by bag, and the gradients of that, are eager's, element by element and bag by
bag.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import loop_evaluator
import pytest
import torch
from accelerator_graphs import compute_as_on_an_accelerator
from lowering_against_eager import externs, trace_and_lower

from coilwork_ir.loops import Scatter
from coilwork_lowering import LoweringOptions

aten = torch.ops.aten
SUM, MEAN, MAX = range(3)
How: TypeAlias = Literal["atomic", "sorted"]
HOW = ["atomic", "sorted"]


def bags(
    integers: torch.dtype = torch.int64, *, ends: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A table of 7 rows, and four bags, of which two are empty."""
    source = torch.Generator().manual_seed(0)
    table = torch.randn(7, 3, generator=source, dtype=torch.float64)
    indices = torch.tensor([1, 4, 4, 2, 6, 0, 2, 4, 5, 1], dtype=integers)
    offsets = [0, 3, 3, 9, 10, 10] if ends else [0, 3, 3, 9]
    return table, indices, torch.tensor(offsets, dtype=integers)


def results(function: Any, inputs: tuple[torch.Tensor, ...], how: How) -> list[torch.Tensor]:
    lowered = trace_and_lower(function, inputs, options=LoweringOptions(accumulation=how))
    assert externs(lowered.graph) == []
    if how == "sorted":
        assert not any(isinstance(node, Scatter) for node in lowered.graph.nodes)
    found: list[torch.Tensor] = loop_evaluator.run(
        lowered.graph, lowered.constants, [x.clone() for x in inputs]
    )
    return found


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("padding", [-1, 4, 5])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_bags_are_atens(mode: int, ends: bool, padding: int, how: How) -> None:
    inputs = bags(ends=ends)

    def function(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> Any:
        return aten._embedding_bag(table, indices, offsets, False, mode, False, None, ends, padding)[0]

    (found,) = results(function, inputs, how)
    torch.testing.assert_close(found, function(*inputs))


@pytest.mark.parametrize("padding", [-1, 4])
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_what_is_kept_for_the_gradient(mode: int, padding: int) -> None:
    inputs = bags()

    def function(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> Any:
        return aten._embedding_bag(table, indices, offsets, False, mode, False, None, False, padding)

    for got, wanted in zip(results(function, inputs, "atomic"), function(*inputs), strict=True):
        assert got.shape == wanted.shape and torch.equal(got, wanted)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("padding", [-1, 4])
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_weighted_bags_are_atens(integers: torch.dtype, padding: int, how: How) -> None:
    inputs = (*bags(integers), torch.linspace(-1, 2, 10, dtype=torch.float64))

    def function(*given: torch.Tensor) -> Any:
        table, indices, offsets, by_sample = given
        return aten._embedding_bag(table, indices, offsets, False, SUM, False, by_sample, False, padding)[0]

    (found,) = results(function, inputs, how)
    torch.testing.assert_close(found, function(*inputs))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("padding", [-1, 4])
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_gradients_of_bags_are_atens(
    mode: int, padding: int, few: bool, how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coilwork_lowering.ops.scattering.segment_sums.has_few_rows", lambda elements, machine: few
    )
    table, indices, offsets = bags()
    gradient = torch.randn(4, 3, dtype=torch.float64)

    def function(*given: torch.Tensor) -> Any:
        grad, table, indices, offsets = given
        _, places, sizes, largest = aten._embedding_bag(
            table, indices, offsets, False, mode, False, None, False, padding
        )
        return aten._embedding_bag_backward(
            grad, indices, offsets, places, sizes, largest, 7, False, mode, False, None, padding
        )

    inputs = (gradient, table, indices, offsets)
    (found,) = results(function, inputs, how)
    torch.testing.assert_close(found, function(*inputs))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("padding", [-1, 4])
def test_gradients_of_weighted_elements(padding: int, how: How) -> None:
    table, indices, offsets = bags()
    by_sample, gradient = torch.linspace(-1, 2, 10, dtype=torch.float64), torch.randn(4, 3).double()
    places = torch.tensor([0, 0, 0, 2, 2, 2, 2, 2, 2, 3])

    def by_table(*given: torch.Tensor) -> Any:
        grad, indices, offsets, places, by_sample = given
        nothing = torch.empty(0, dtype=torch.int64)
        return aten._embedding_bag_backward(
            grad, indices, offsets, places, nothing, nothing, 7, False, SUM, False, by_sample, padding
        )

    inputs: tuple[torch.Tensor, ...] = (gradient, indices, offsets, places, by_sample)
    (found,) = results(by_table, inputs, how)
    torch.testing.assert_close(found, by_table(*inputs))

    def by_weights(*given: torch.Tensor) -> Any:
        return aten._embedding_bag_per_sample_weights_backward(*given, SUM, padding)

    inputs = (gradient, table, indices, offsets, places)
    (found,) = results(by_weights, inputs, how)
    torch.testing.assert_close(found, by_weights(*inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_added_in_32_bits(dtype: torch.dtype) -> None:
    table, indices, offsets = bags()
    inputs = (table.to(dtype), indices, offsets)

    def function(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> Any:
        return aten._embedding_bag_forward_only(table, indices, offsets, False, MEAN)[0]

    (found,) = results(function, inputs, "sorted")
    exact = function(table.to(dtype).double(), indices, offsets)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_a_row_that_is_none_is_checked() -> None:
    table, indices, offsets = bags()
    indices[3] = 7

    def function(*given: torch.Tensor) -> Any:
        return aten._embedding_bag(*given)[0]

    with pytest.raises(RuntimeError, match="out of range"):
        results(function, (table, indices, offsets), "sorted")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("offsets", "message"),
    [([1, 3], "has to be 0"), ([-1, 3], "has to be 0"), ([0, 11], "can not be greater")],
)
def test_bags_that_begin_nowhere_are_refused(offsets: list[int], message: str, how: How) -> None:
    table, indices, _ = bags()
    inputs = (table, indices, torch.tensor(offsets))

    def function(*given: torch.Tensor) -> Any:
        return aten._embedding_bag(*given)[0]

    with pytest.raises(RuntimeError):
        function(*inputs)
    with pytest.raises(RuntimeError, match=message):
        results(function, inputs, how)


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize(
    ("offsets", "ends", "as_if"),
    [([2, 3, 3, 9], False, [0, 3, 3, 9]), ([1, 3, 5], True, [0, 3]), ([0, 3, 3, 7], True, [0, 3, 3])],
)
def test_on_accelerators_bags_have_all_elements(
    mode: int, offsets: list[int], ends: bool, as_if: list[int]
) -> None:
    """Eager's kernels for accelerators begin at the first element and end with the last, whatever offsets
    say.
    """
    table, indices, _ = bags()

    def function(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> Any:
        return aten._embedding_bag(table, indices, offsets, False, mode, False, None, ends)

    def result_and_bags(*given: torch.Tensor) -> Any:
        combined, offset2bag, sizes, _ = function(*given)
        return (combined, offset2bag, sizes) if mode == MEAN else (combined,)

    _, found = compute_as_on_an_accelerator(result_and_bags, table, indices, torch.tensor(offsets))
    combined, offset2bag, sizes, _ = aten._embedding_bag(table, indices, torch.tensor(as_if), False, mode)
    torch.testing.assert_close(found[0], combined)
    if mode == MEAN:
        torch.testing.assert_close(found[1].long(), offset2bag)
        torch.testing.assert_close(found[2][: len(as_if)], sizes)


def test_bags_without_elements_are_left_to_aten() -> None:
    table, _, offsets = bags()
    lowered = trace_and_lower(
        lambda t, i, o: aten._embedding_bag(t, i, o)[0],
        (table, torch.empty(0, dtype=torch.int64), offsets * 0),
    )
    assert externs(lowered.graph) == ["aten._embedding_bag.default"]


def test_weights_of_another_type_are_left_to_aten_which_refuses_them() -> None:
    table, indices, offsets = bags()
    lowered = trace_and_lower(
        lambda t, i, o, w: aten._embedding_bag(t, i, o, False, SUM, False, w)[0],
        (table.bfloat16(), indices, offsets, torch.ones(len(indices))),
    )
    assert externs(lowered.graph) == ["aten._embedding_bag.default"]
