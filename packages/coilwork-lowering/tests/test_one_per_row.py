"""Scatters of one element per row into a constant are pointwise code: gradients of losses by labels, and of
`gather`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lowering_against_eager import assert_as_eager
from torch import Tensor

from coilwork_ir.loops import Pointwise

X, LABELS, SHARES = (
    torch.arange(15.0).view(3, 5),
    torch.tensor([[4], [0], [2]]),
    torch.tensor([[0.5], [2], [3]]),
)


@pytest.mark.parametrize(
    "placed",
    [
        lambda x, i, s: x.new_zeros(3, 5).scatter(1, i, s),
        lambda x, i, s: x.new_zeros(3, 5).scatter_add(1, i, s),
        lambda x, i, s: torch.full_like(x, 2.0).scatter_add(1, i, s),
        lambda x, i, s: torch.zeros_like(x, dtype=torch.int32).scatter_add(1, i, s.int()),
    ],
    ids=["stored", "added", "added to a number", "integers"],
)
def test_what_is_placed_is_computed_where_it_is_read(placed: Callable[..., Tensor]) -> None:
    lowered = assert_as_eager(lambda x, i, s: placed(x, i, s) + x, X, LABELS, SHARES)
    assert {type(node) for node in lowered.graph.nodes} == {Pointwise}


def test_several_elements_per_row_are_added_in_memory() -> None:
    two = torch.tensor([[4, 4], [0, 1], [2, 2]])
    lowered = assert_as_eager(lambda x, i: x.new_zeros(3, 5).scatter_add(1, i, x[:, :2]), X, two)
    assert {type(node) for node in lowered.graph.nodes} != {Pointwise}
