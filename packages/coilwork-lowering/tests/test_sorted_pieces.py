"""Keys that are sorted in pieces, which are merged by ranks: in the order of a stable sort, whatever is
equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, find_changed_model, trace_and_lower

from coilwork_ir.buffers import Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Reduce, Scatter, Sort
from coilwork_lowering import Lowered, LoweringOptions

aten = torch.ops.aten
SHORT = find_changed_model(sorts__short_piece=8)
SORTED = LoweringOptions(accumulation="sorted", sorts_in_memory=False, find_model=SHORT)
"""Pieces of 8 keys."""


@pytest.fixture(autouse=True)
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "coilwork_lowering.ops.scattering.segment_sums.has_few_rows", lambda elements, machine: False
    )


def gradient(rows: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def function(grad: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = aten.embedding_dense_backward(grad, ids, rows, -1, False)
        return found

    return function


def lowered_for(
    rows: int, ids: torch.Tensor, options: LoweringOptions = SORTED
) -> tuple[Lowered, torch.Tensor, torch.Tensor]:
    grad = torch.randn(len(ids), 3, dtype=torch.float64)
    lowered = trace_and_lower(gradient(rows), (grad, ids), options=options)
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [grad, ids])
    return lowered, found, gradient(rows)(grad, ids)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16, 61, 333])
@pytest.mark.parametrize("rows", [1, 5, 256, 300, 70_000])
def test_sums_of_rows(count: int, rows: int) -> None:
    lowered, found, wanted = lowered_for(rows, torch.randint(0, rows, (count,)))
    assert externs(lowered.graph) == []
    torch.testing.assert_close(found, wanted)
    (sort,) = [n for n in lowered.graph.nodes if isinstance(n, Sort)]
    extents = [r.extent.value for r in sort.ranges if r.extent is not None]
    assert extents == ([count] if count <= 8 else [-(-count // 8), 8])
    assert sum(isinstance(n, Scatter) for n in lowered.graph.nodes) == (2 if count > 8 else 0)


def test_keys_may_be_the_greatest_of_their_type() -> None:
    # behind the last piece's end are such numbers, too
    for ids in (torch.full((21,), 255), torch.tensor([255, 0] * 10 + [255])):
        _, found, wanted = lowered_for(256, ids)
        torch.testing.assert_close(found, wanted)


def test_equal_keys_stay_in_order() -> None:
    ids = torch.randint(0, 3, (100,))
    lowered, _, _ = lowered_for(1000, ids)
    nodes = lowered.graph.nodes
    places = [n for n in nodes if isinstance(n, Scatter)][1]
    until = nodes[: nodes.index(places) + 1]
    graph = replace(lowered.graph, nodes=until, outputs=(Ref(places.output.name),))
    (found,) = loop_evaluator.run(graph, lowered.constants, [torch.zeros(100, 3, dtype=torch.float64), ids])
    assert torch.equal(found[:100], torch.sort(ids, stable=True).indices)


def test_what_is_too_much_is_left_to_a_sort_by_digits() -> None:
    ids, searches = torch.randint(0, 9, (100,)), 13 * 13 * 8
    below = find_changed_model(sorts__short_piece=8, sorts__most_searches=searches - 1)
    lowered, found, wanted = lowered_for(9, ids, replace(SORTED, find_model=below))
    torch.testing.assert_close(found, wanted)
    assert not any(isinstance(n, Scatter) for n in lowered.graph.nodes)
    just = find_changed_model(sorts__short_piece=8, sorts__most_searches=searches)
    lowered, _, _ = lowered_for(9, ids, replace(SORTED, find_model=just))
    assert sum(isinstance(n, Scatter) for n in lowered.graph.nodes) == 2


def test_ranks_are_one_search_for_each_piece() -> None:
    lowered, _, _ = lowered_for(300, torch.randint(0, 300, (100,)))
    ranks = next(n for n in lowered.graph.nodes if isinstance(n, Reduce))
    assert ranks.kind == "sum" and ranks.outputs[0] is not None and ranks.outputs[0].dtype is DType.I32
    assert [r.extent.value for r in ranks.axes if r.extent is not None] == [13]
