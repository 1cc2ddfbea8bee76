"""Parts of a tensor replaced by strides: in place where the tensor is no one else's, and which strides are
boxes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lowering_against_eager import assert_as_eager, externs, trace_and_lower
from torch import Tensor

from coilwork_ir.loops import Pointwise, Scatter
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import Lowered, LoweringOptions
from coilwork_lowering.ops.storage_aliasing import find_box

aten = torch.ops.aten
X, PART, ROW = torch.arange(24.0).view(4, 6), torch.arange(6.0).view(2, 3) + 100, torch.arange(6.0) - 50


def place(whole: Tensor, part: Tensor, *start: int) -> Tensor:
    """`whole` with `part` from `start` on, functionally."""
    steps = whole.stride()
    offset = sum(a * b for a, b in zip(start, steps, strict=True))
    return aten.as_strided_scatter(whole, part, part.shape, steps, offset)


def nodes(lowered: Lowered) -> list[str]:
    verify_graph(lowered.graph)
    return [type(node).__name__ for node in lowered.graph.nodes]


def fills(lowered: Lowered) -> list[Scatter]:
    return [node for node in lowered.graph.nodes if isinstance(node, Scatter)]


def halves(x: Tensor, y: Tensor) -> Tensor:
    made = x.new_empty(4, 6)
    return place(place(made, x[:, :2] * 2, 0, 0), y[:, 2:].sin(), 0, 2)


def test_memory_of_any_contents_is_filled() -> None:
    lowered = assert_as_eager(halves, X, X + 1)
    assert nodes(lowered) == ["Pointwise", "Scatter"] * 2
    first, second = fills(lowered)
    assert first.into is None and second.into == first.output.name


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(4, 6),
        lambda x: torch.empty_strided((4, 6), (6, 1)),
        lambda x: x.new_empty(4, 6),
        torch.empty_like,
    ],
)
def test_every_way_to_make_such_memory(make: Callable[[Tensor], Tensor]) -> None:
    lowered = assert_as_eager(lambda x: place(make(x), x * 2, 0, 0), X)
    assert nodes(lowered) == ["Pointwise", "Scatter"]


def test_memory_that_somebody_else_reads_is_made_first() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.zeros_like(x)
        return place(made, x[:2] + 1, 0, 0), made

    lowered = assert_as_eager(twice, X)
    assert nodes(lowered) == ["Pointwise", "Pointwise", "Pointwise", "Scatter"]

    def empties(x: Tensor) -> tuple[Tensor, torch.Size]:
        made = torch.empty(4, 6)
        return place(place(made, x[:2], 0, 0), x[2:], 2, 0) + 0 * place(made, x, 0, 0), made.shape

    assert_as_eager(lambda x: empties(x)[0], X)


def test_a_value_is_copied_once() -> None:
    def three(x: Tensor, part: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        made = x * 2
        return place(place(place(made, part, 0, 1), part, 2, 3), row[None], 1, 0), made

    lowered = assert_as_eager(three, X, PART, ROW)
    assert nodes(lowered) == ["Pointwise", "Pointwise", "Scatter", "Scatter", "Scatter"]
    assert isinstance(lowered.graph.nodes[1], Pointwise)


def test_places_in_the_storage_of_an_input_are_left_to_the_operator() -> None:
    """Where the input begins in it may be another place in the next call; and so it may in what is made of
    it.
    """

    def three(x: Tensor, part: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        one = place(place(x, part, 0, 1), row[None], 1, 0)
        return one, one.t().as_strided((3,), (2,), 1) * 2

    lowered = assert_as_eager(three, X, PART, ROW, extern=True)
    scatter, strided = "aten.as_strided_scatter.default", "aten.as_strided.default"
    assert externs(lowered.graph) == [scatter, scatter, strided]
    assert externs(trace_and_lower(lambda x: x.as_strided((3,), (2,)) * 2, (X,)).graph) == []


def test_what_was_placed_may_be_needed_before_the_next() -> None:
    def both(x: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        one = place(x + 1, part, 0, 0)
        return one, place(one, part, 2, 2)

    assert_as_eager(both, X, PART)
    # the part is of the tensor that it goes to
    assert_as_eager(lambda x: place(x + 1, x[1:3, 1:4], 0, 0), X)
    assert_as_eager(lambda x: place(place(x * 2, x[:2], 1, 0), x[:3], 0, 0), X)
    assert_as_eager(lambda x: place(place(x * 2, x[:2], 1, 0), x[:3], 0, 0).t()[2:], X)


@pytest.mark.parametrize(
    "arguments",
    [((3, 2), (6, 2), 0), ((2, 2), (1, 6), 0), ((24,), (1,), 0), ((2, 3), (6, 1), 4), ((0, 3), (6, 1), 0)],
)
def test_other_strides_are_left_to_the_operator(
    arguments: tuple[tuple[int, ...], tuple[int, ...], int],
) -> None:
    size, stride, offset = arguments

    def other(x: Tensor) -> Tensor:
        return aten.as_strided_scatter(x * 2, x.new_ones(size), size, stride, offset)

    lowered = assert_as_eager(other, X, extern=True)
    assert externs(lowered.graph) == ["aten.as_strided_scatter.default"]


def test_the_fallback_gets_memory() -> None:
    lowered = trace_and_lower(halves, (X, X), options=LoweringOptions(fallback=("aten.as_strided_scatter",)))
    assert externs(lowered.graph) == ["aten.as_strided_scatter.default"] * 2
    verify_graph(lowered.graph)
    made = torch.zeros(2, 6, dtype=torch.complex64)
    lowered = trace_and_lower(lambda x: place(x.new_empty(4, 6), x, 0, 0), (made,))
    assert "aten.as_strided_scatter.default" in externs(lowered.graph)
    verify_graph(lowered.graph)


@pytest.mark.parametrize(
    ("size", "stride", "offset", "starts"),
    [
        ((4, 6), (6, 1), 0, (0, 0)),
        ((2, 3), (6, 1), 8, (1, 2)),
        ((1, 3), (77, 1), 9, (1, 3)),
        ((4, 1), (6, 5), 5, (0, 5)),
        ((2, 3), (6, 1), 10, None),
        ((4, 6), (6, 1), 6, None),
        ((2, 3), (12, 1), 0, None),
        ((6,), (1,), 0, None),
        ((1, 1), (1, 1), 24, None),
    ],
)
def test_views_that_are_boxes_are_found(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, starts: tuple[int, ...] | None
) -> None:
    assert find_box(X, size, stride, offset) == starts
    # memory with gaps, and memory that begins later
    assert find_box(torch.empty_strided((4, 6), (8, 1)), size, stride, offset) is None
    assert find_box(torch.empty(5, 6)[1:], size, stride, offset) is None
